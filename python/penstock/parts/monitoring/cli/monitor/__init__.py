"""penstock monitor: experiments, their marks, their data; a command that is sampled meanwhile."""

# the order of the help page
from penstock.parts.monitoring.cli.monitor import experiments

# isort: split
from penstock.parts.monitoring.cli.monitor import data

# isort: split
from penstock.parts.monitoring.cli.monitor import sources

# isort: split
from penstock.parts.monitoring.cli.monitor import command

# isort: split
from penstock.parts.monitoring.cli.monitor import cluster
from penstock.parts.monitoring.cli.monitor.options import app

__all__ = ["app", "cluster", "command", "data", "experiments", "sources"]
