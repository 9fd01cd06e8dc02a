"""Runs that are packed, described for others, and removed."""
