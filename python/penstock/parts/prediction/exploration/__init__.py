"""Exploration: which provisioning, split and store configuration gives the best time, cost and energy."""
