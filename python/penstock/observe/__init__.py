"""Observers of runs, which yield tables (`monitor` samples, `trace` I/O events and patterns)."""
