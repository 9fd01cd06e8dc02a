"""Exploration: provisioning, split and store configuration with the best time, cost and energy."""
