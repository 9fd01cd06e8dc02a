"""Kinds of design, one file each behind `penstock.plugins.DESIGNS`; `base` has their protocol."""
