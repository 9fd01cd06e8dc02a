"""Start a cluster, change it, run commands in it and stop it, as penstock does; print each phase.

Argument: the runtime. Uses $PENSTOCK_STATE and $PENSTOCK_RUNTIME.
"""

from __future__ import annotations

import json
import sys

from penstock.emulate.cluster.cluster import Cluster
from penstock.host.journal.journal import Journal
from penstock.profile.load import load_profile
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, LinkSpec, NodeSpec, When


def main() -> None:
    profile = json.loads(load_profile("sata-ssd").json)
    disk = DiskSpec("data", profile=profile, profile_name="sata-ssd")
    links = (LinkSpec(out_bps=50e6),)
    nodes = tuple(
        NodeSpec(name, memory_bytes=128 << 20, cpus=1.0, disks=(disk,), links=links)
        for name in ("one", "two")
    )
    print("up", flush=True)
    spec = ClusterSpec("gt", nodes, runtime=sys.argv[1])
    cluster = Cluster.up(spec, Journal(), outlive=True)
    print("set", flush=True)
    cluster.schedule(
        [Event(When(0.05), "cpu", {"cpus": 0.25}), Event(When(60), "cpu", {"cpus": 1})]
    )
    cluster.set(["*"], "memory", None, {"hard": 96 << 20})
    cluster.set(["one"], "network", "net", {"out_bps": 5e6})
    cluster.set(["two"], "node", None, {"state": "down"})
    cluster.set(["two"], "node", None, {"state": "up"})
    print("run", flush=True)
    cluster.refresh()
    cluster.exec("one", ["sh", "-c", "echo kept > /disks/data/kept; sync /disks/data/kept"])
    cluster.freeze("two")
    print("down", flush=True)
    Cluster.find("gt").down()
    print("end", flush=True)


main()
