"""Formats of other programs: traces, platforms, and runs as one file."""
