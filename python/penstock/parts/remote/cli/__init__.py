"""Verbs of this part."""
