"""Traces on a terminal: during the run, at its end, beside another."""
