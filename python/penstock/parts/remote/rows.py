"""Rows of this part in the tables of `penstock.plugins`, and its commands."""

from __future__ import annotations

ROWS = {
    "conductors": {"hosts": "penstock.parts.remote.conductor:conductor_of"},
    "commands": {"hosts": "penstock.parts.remote.cli.hosts"},
    "functions": {
        "clusters-on-hosts": "penstock.parts.remote.cluster.records:clusters_on_hosts",
        "start-on-hosts": "penstock.parts.remote.cluster.nodes:start_on_hosts",
    },
}
VERBS = {
    "Emulate storage and clusters": {
        "hosts": "Plan, start and stop one virtual cluster on several hosts.",
    },
}
