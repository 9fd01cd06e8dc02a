"""Traces and platforms in formats of other programs, and runs as one archive file."""
