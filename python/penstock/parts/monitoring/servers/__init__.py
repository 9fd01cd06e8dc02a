"""Readers of servers that kept the points of a run: one file each, by the table `METRIC_SERVERS`."""
