"""Collectors: what brings points of others into an experiment. One file each, by the table `COLLECTORS`."""
