"""Around the I/O tracer: what it recorded as tables, verdicts, and one sentence to act on."""
