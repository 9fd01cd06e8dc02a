"""Nodes on this host, as JSON on standard output: `python -m penstock.parts.remote.running.nodes_here`.

Arguments: `describe` or `status`, and the name of the cluster.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.emulate.cluster.cluster import Cluster
from penstock.errors import PenstockError
from penstock.host.nodes.spawner import ENTER


def describe(cluster: Cluster) -> dict[str, Any]:
    """Descriptions of the nodes, and the programs of this host that enter them."""
    nodes = cluster.described["nodes"]
    return {"python": sys.executable, "program": ENTER, "nodes": nodes}


def main(what: str, name: str) -> int:
    """Print the reply to a request; returns the exit status."""
    try:
        cluster = Cluster.find(name)
        print(json.dumps(cluster.status() if what == "status" else describe(cluster)))
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
