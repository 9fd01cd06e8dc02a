"""Bundles (one run each), the tables of a study, and the catalogue over many of them."""

from penstock.archive.bundle import Bundle

__all__ = ["Bundle"]
