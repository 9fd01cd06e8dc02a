"""Verbs of monitoring."""
