"""Verbs of prediction: one file per verb."""
