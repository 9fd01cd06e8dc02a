"""Observers: each watches one run and leaves tables (`monitor` samples, `trace` I/O events and patterns)."""
