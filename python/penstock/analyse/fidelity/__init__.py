"""Validity of runs: certificates of disks, further sources, the influence of the host."""
