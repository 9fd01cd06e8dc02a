"""Around the I/O tracer: what it recorded as tables, verdicts, and one sentence to act on."""

#: how much the kernel keeps: records of the order, every event, sums
MODES = ("pattern", "trace", "count")
#: room for events in the kernel, of all processors together
RING_BYTES = 64 << 20
