"""Measured runs of an exploration's first configurations, beside their predictions."""
