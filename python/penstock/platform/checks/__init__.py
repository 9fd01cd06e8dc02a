"""Checks of platforms and clusters beyond their schema."""
