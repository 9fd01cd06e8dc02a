"""A plugin of every kind that penstock supports: see docs/extending.md."""
