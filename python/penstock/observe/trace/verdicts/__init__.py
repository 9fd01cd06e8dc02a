"""Verdicts on access patterns, and findings over them; made anew from a bundle's tables."""
