"""Commands of penstock's daemons and of the supervisor of nodes, and frames of the relay; only as root."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import yaml

from penstock.emulate.cluster.wire import to_json
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import read_platform
from tests.fuzz import daemons
from tests.fuzz import mutate as of
from tests.fuzz.drive import Target
from tests.fuzz.samples import ROOT


def _node_commands() -> list[Any]:
    spec = to_json(
        cluster_spec(
            read_platform(yaml.safe_dump(_CLUSTER).encode(), ROOT / "x.yaml", predicted=None)
        )
    )
    change = {"nodes": ["n-*"], "resource": "memory", "patch": {"hard": 1 << 28}}
    conditions: list[Any] = [{"at_s": 1e9}, {"phase": "p"}, {"condition": {"phase": "p"}}]
    return [
        {"cmd": "ping"},
        {"cmd": "reserve", "spec": spec},
        *(
            {"cmd": cmd, "cluster": "two"}
            for cmd in "keep progress describe networks spec status".split()
        ),
        {"cmd": "delays", "cluster": "two", "network": "net", "delays": [["n-0", "n-1", 0.1]]},
        {"cmd": "set", "cluster": "two", "changes": [change]},
        *(
            {
                "cmd": "schedule",
                "cluster": "two",
                "events": [change | {"when": condition}],
                "start_ns": 5,
            }
            for condition in conditions
        ),
        {"cmd": "mark", "cluster": "two", "phase": "p"},
        {"cmd": "events", "cluster": "two"},
        {"cmd": "down", "cluster": "two"},
    ]


_CLUSTER = {
    "penstock_platform": 1,
    "name": "two",
    "hosts": [
        {
            "group": "n",
            "count": 2,
            "memory": "256MiB",
            "cpus": 0.5,
            "disks": [{"name": "d", "profile": "sata-ssd", "limits": {"read": "20 MB/s"}}],
        }
    ],
    "network": {"bandwidth": "1 Gbit/s", "latency": "1ms", "loss": "1%"},
    "schedule": [{"at": "10s", "nodes": "n-0", "memory": "128MiB"}],
}


def _frame(draw: Random) -> bytes:
    ethernet_header = bytes.fromhex("020000000002") + bytes.fromhex("020000000001") + b"\x08\x00"
    ip_header = bytes.fromhex("45000064000000004011000a580001") + bytes.fromhex("0a580002")
    sample = ethernet_header + ip_header + draw.randbytes(draw.choice((0, 1, 20, 46, 400, 1400)))
    return of.mutate_bytes(draw, sample)


def targets() -> list[Target]:
    """Return the targets of this family."""
    if os.geteuid() != 0:
        return []
    return [
        Target("disk-commands", of.of_json(*daemons.DISK_COMMANDS), daemons.disk, cost=4),
        Target("relay-commands", of.of_json(*daemons.RELAY_COMMANDS), daemons.relay, cost=4),
        Target("relay-frames", _frame, daemons.frames),
        Target("sampler-commands", of.of_json(*daemons.SAMPLER_COMMANDS), daemons.sampler, cost=4),
        Target("tracer-commands", of.of_json(*daemons.TRACER_COMMANDS), daemons.tracer, cost=20),
        Target("node-commands", of.of_json(*_node_commands()), daemons.nodes, cost=10),
    ]
