"""Bundles of traces, and other formats of them."""
