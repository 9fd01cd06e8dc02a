"""Verbs of `penstock dedup`."""
