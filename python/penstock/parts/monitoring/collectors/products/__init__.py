"""Collectors of single products."""
