"""Collectors, which store metrics of other programs in an experiment: one file each, see `COLLECTORS`."""
