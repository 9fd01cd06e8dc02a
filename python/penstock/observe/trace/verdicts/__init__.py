"""Verdicts on access patterns, and findings over them; also recomputed from a bundle's tables."""
