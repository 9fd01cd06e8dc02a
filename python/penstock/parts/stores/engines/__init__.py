"""Engines of shared stores: one file per engine."""
