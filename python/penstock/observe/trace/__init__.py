"""The I/O tracer: its records as tables, verdicts, and one sentence of advice."""

#: recording in the kernel: records of the order, every event, sums
MODES = ("pattern", "trace", "count")
#: size of the kernel's event buffers, all processors together [bytes]
RING_BYTES = 64 << 20
