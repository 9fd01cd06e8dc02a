"""Measured workloads: program output, responses, metrics and traced calls."""
