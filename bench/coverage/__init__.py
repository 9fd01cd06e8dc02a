"""What the tracer recorded against what fio says it did."""
