"""Verbs of shared stores: one file per verb."""
