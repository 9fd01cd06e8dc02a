"""File formats of workloads."""
