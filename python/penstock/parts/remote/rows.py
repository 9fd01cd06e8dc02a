"""Rows of this part in the tables of `penstock.plugins`, and its commands."""

from __future__ import annotations

ROWS = {
    "conductors": {"hosts": "penstock.parts.remote.conductor:conductor_of"},
    "commands": {"hosts": "penstock.parts.remote.cli.hosts"},
    "functions": {
        "names-on-hosts": "penstock.parts.remote.cluster.records:names",
        "cluster-on-hosts": "penstock.parts.remote.running.nodes:ClusterOnHosts",
        "start-on-hosts": "penstock.parts.remote.running.nodes:start_on_hosts",
    },
}
VERBS = {
    "Emulate storage and clusters": {
        "hosts": "Plan, start and stop one virtual cluster on several hosts.",
    },
}
