"""Imported recordings of other sources as bundles."""
