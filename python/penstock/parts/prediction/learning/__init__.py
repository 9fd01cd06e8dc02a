"""Measurements of the points that a learned model needs."""
