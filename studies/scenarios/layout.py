"""Places of each scenario: storage nodes, addresses as seen by each node, caches.

Workers `w1` and `w2` run the tasks. `s1` is on the host of `w1`, `s2` on that of `w2`: each pair shares a
virtual link without a limit. All nodes are on the wire, whose links are shaped. `v1` to `v3` have volumes and
objects.
"""

from __future__ import annotations

from dataclasses import dataclass

#: address on the wire, and on the virtual link of the node's host if it has one
WIRE = {
    "head": "10.96.0.10",
    "w1": "10.96.0.11",
    "w2": "10.96.0.12",
    "s1": "10.96.0.21",
    "s2": "10.96.0.22",
    "v1": "10.96.0.31",
    "v2": "10.96.0.32",
    "v3": "10.96.0.33",
}
HOST = {"w1": "10.96.1.11", "s1": "10.96.1.21", "w2": "10.96.2.12", "s2": "10.96.2.22"}
PAIRS = {"w1": "s1", "s1": "w1", "w2": "s2", "s2": "w2"}
WORKERS = ("w1", "w2")
OBJECT_NODES = ("v1", "v2", "v3")
#: cores of each worker; the sum is the number of concurrent tasks
CORES, SLOTS = 2, 4


@dataclass(frozen=True)
class Scenario:
    """`data`: nodes with a data node of HDFS, none if data are objects; `near`: on the workers' hosts;
    `volumes`: blocks are on the shared volumes, which cache reads, instead of a node's own disk.
    """

    data: tuple[str, ...]
    near: bool = False
    volumes: bool = False


SCENARIOS = {
    "guest": Scenario(("w1", "w2"), near=True),
    "host": Scenario(("s1", "s2"), near=True),
    "host-volumes": Scenario(("s1", "s2"), near=True, volumes=True),
    "apart": Scenario(("s1", "s2")),
    "apart-volumes": Scenario(("s1", "s2"), volumes=True),
    "objects": Scenario(()),
}


def hosts_file(scenario: Scenario, node: str) -> str:
    """Names and addresses as seen by `node`: its neighbour by the virtual link if data are near."""
    addresses = dict(WIRE)
    on_virtual_link = scenario.near and not set(scenario.data) & set(WORKERS)
    if on_virtual_link and node in PAIRS:
        addresses[PAIRS[node]] = HOST[PAIRS[node]]
    return "".join(f"{address} {name}\n" for name, address in addresses.items())


def racks(scenario: Scenario) -> str:
    """Hadoop's table of racks, by address on the wire: a host is a rack if data are near."""
    place = {"head": "/head"}
    for worker in WORKERS:
        store = PAIRS[worker]
        place[worker] = f"/host-{worker}"
        place[store] = f"/host-{worker}" if scenario.near else f"/host-{store}"
    return "".join(f"{WIRE[node]} {rack}\n" for node, rack in place.items())
