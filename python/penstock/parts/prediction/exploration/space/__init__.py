"""The space of an exploration: factors, their levels, and expressions over them."""
