"""Comparison of measured with expected values."""
