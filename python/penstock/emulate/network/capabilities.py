"""Features of this host's network, probed in a temporary namespace."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache

from penstock.emulate.network.qdisc import End
from penstock.emulate.network.traffic_shape import TrafficShape
from penstock.errors import PenstockError
from penstock.host.network.netlink import Netlink, NetlinkError
from penstock.host.network.netns import apart


@dataclass(frozen=True)
class Offers:
    """`bandwidth` by tbf, the rest by `netem` or by the `relay`; `why`: what is missing, by name."""

    bandwidth: bool
    netem: bool
    relay: bool
    why: dict[str, str]


@cache
def offers() -> Offers:
    """Probe the features, once per process."""
    why: dict[str, str] = {}
    if os.geteuid() != 0:
        why["bandwidth"] = why["netem"] = why["relay"] = "networks of nodes need root"
        return Offers(False, False, False, why)

    def works(name: str, shape: TrafficShape) -> bool:
        try:
            with apart(Netlink) as netlink:
                end = End(netlink, 1, name)
                end.make(shape)
                if not end.holds(end.read()):
                    raise PenstockError("it does not keep its settings")
        except (OSError, PenstockError) as error:
            missing = isinstance(error, NetlinkError) and error.code == 2
            config = {"tbf": "CONFIG_NET_SCH_TBF", "netem": "CONFIG_NET_SCH_NETEM"}[name]
            why[name] = f"this kernel has no {name} ({config})" if missing else str(error)
            return False
        return True

    bandwidth = works("tbf", TrafficShape(bps=1e6))
    netem = works("netem", TrafficShape(loss=0.5))
    relay = hasattr(importlib.import_module("penstock._native"), "relay_main")
    if not relay:
        why["relay"] = "this build of penstock has no relay"
    return Offers(bandwidth, netem, relay, why)
