"""Recordings that the tracer did not make, as bundles of their own."""
