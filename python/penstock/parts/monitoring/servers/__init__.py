"""Readers of servers with points of a run: one file each, listed in `METRIC_SERVERS`."""
