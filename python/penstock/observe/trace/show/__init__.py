"""Terminal output of traces: during the run, at its end, compared with another."""
