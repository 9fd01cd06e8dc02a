"""Measured values beside expected ones."""
