"""`penstock seed`: a platform file with the service times of its store, measured on three of its nodes."""

from __future__ import annotations

import copy
import datetime
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.campaign.seeding.deploy import CONTROL, seeding_platform
from penstock.campaign.seeding.homogeneity import Homogeneity, homogeneity
from penstock.campaign.seeding.trials import SIZES, Key, Trials, link, measure, needed
from penstock.campaign.workflow.run import Progress, store_of
from penstock.host.loopback import Measured, interval
from penstock.platform.hosts import Platform
from penstock.predict.queue_network.identify import Identified, Linear, identify
from penstock.store.deployment import deployment
from penstock.store.guard import guarded
from penstock.store.store import ready

Note = Callable[[str], None]
#: of the section `store`, what is the engine's and not the prediction's
_LEAST_RATE = 1.0


@dataclass(frozen=True)
class Seeded:
    """What was measured and found; `document` is the platform file with it."""

    document: dict[str, Any]
    trials: Trials
    network_bps: Measured
    loopback_bps: Measured
    latency_s: Measured
    launch_s: Measured
    services: Identified
    #: what of it could not be known well enough, in words
    cautions: list[str]
    #: whether all nodes are like those; None where nothing was compared
    alike: Homogeneity | None = None


def seed(
    platform: Platform,
    *,
    engine: str | None = None,
    budget_s: float = 120.0,
    compare: bool = True,
    note: Note = lambda _: None,
    progress: Progress | None = None,
) -> Seeded:
    """Puts the platform's store up on a manager, a storage node and a client of it, measures and fits.

    Application-level calls only: files written and read through the mount, a TCP stream between two nodes.
    The 95 % interval of each mean is to be within 5 %, else `budget_s` ends it and the file says so. With
    `compare` all nodes are timed before, and those that differ from the others are cautions.
    Raises PenstockError where the store fails or the host is too busy to measure on.
    """
    small = seeding_platform(platform)
    ready(*deployment(small, engine)[1:])
    alike = homogeneity(platform, note=note, progress=progress) if compare else None
    with store_of(small, engine, progress) as store:
        nodes = store.cluster.nodes
        client, server = nodes[store.roles.clients[0]], nodes[store.roles.storage[0]]
        with guarded(store):
            note("the network between two nodes")
            network_bps, latency_s = link(client, server)
            note("the loopback of one")
            loopback_bps, _ = link(client, client)
            trials = measure(store, budget_s, note)
        name = store.spec.engine
    known = small.with_values(
        {
            "network.bandwidth": _rate(network_bps.mean),
            "network.loopback": _rate(loopback_bps.mean),
            "network.latency": _time(latency_s.mean),
        }
    )
    means = trials.means()
    services = _identified(known, {k: m.mean for k, m in means.items()})
    ends = [
        _identified(known, {k: getattr(m, end) for k, m in means.items()})
        for end in ("low", "high")
    ]
    launch_s = interval(trials.launches_s)
    cautions = [
        f"{op} of {size} B: 95 % interval wider than 5 % after {m.n} operations; some "
        f"{needed(trials.seconds[(op, size)])} would do"
        for (op, size), m in means.items()
        if not m.converged
    ]
    cautions += trials.dropped
    cautions += alike.cautions if alike is not None else []
    about = {
        "method": "seeding",
        "date": datetime.date.today().isoformat(),
        "host": socket.gethostname(),
        "kernel": os.uname().release,
    }
    document = _document(
        platform, services, ends, means, network_bps, loopback_bps, latency_s, launch_s, about
    )
    document["store"] = {**(document.get("store") or {}), "engine": name}
    document.setdefault("facts", {})["seeding"] = {
        **about,
        "engine": name,
        "rounds": trials.rounds,
        "dropped": len(trials.dropped),
        **({"alike": alike.to_dict()} if alike is not None else {}),
        "operations": {
            f"{op} {size} B": {"mean_s": round(m.mean, 7), "n": m.n}
            for (op, size), m in means.items()
        },
    }
    return Seeded(
        document, trials, network_bps, loopback_bps, latency_s, launch_s, services, cautions, alike
    )


def _identified(deployment: Platform, means: Mapping[Key, float]) -> Identified:
    return identify(
        deployment,
        means[("write", 0)],
        {size: means[("write", size)] for size in SIZES},
        {size: means[("read", size)] for size in SIZES},
    )


def _document(
    platform: Platform,
    services: Identified,
    ends: list[Identified],
    means: Mapping[Key, Measured],
    network_bps: Measured,
    loopback_bps: Measured,
    latency_s: Measured,
    launch_s: Measured,
    about: Mapping[str, str],
) -> dict[str, Any]:
    """The platform's own file with what was measured in the place of what it said."""
    document = copy.deepcopy(platform.document)

    def estimate(
        value: str, low: str, high: str, of: Measured, clamped: bool = False
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"value": value, "low": low, "high": high, "n": of.n, **about}
        if not of.converged:
            found["converged"] = False
        if clamped:
            found["clamped"] = True
        return found

    def service(which: str) -> dict[str, Any]:
        one: Linear = getattr(services, which)
        others: list[Linear] = [getattr(e, which) for e in ends]
        least, most = means[(which, SIZES[0])], means[(which, SIZES[-1])]
        fields = (
            ("overhead", "overhead_s", _time, least),
            ("per_byte", "per_byte_s", _per_mib, most),
        )
        found = {}
        for key, attribute, text, of in fields:
            values = [getattr(s, attribute) for s in (one, *others)]
            found[key] = estimate(
                text(values[0]), text(min(values)), text(max(values)), of, values[0] == 0
            )
        return found

    for group in document["hosts"]:
        roles = group.get("roles") or []
        if "storage" in roles:
            kept = {k: v for k, v in (group.get("storage") or {}).items() if k == "capacity"}
            group["storage"] = {"read": service("read"), "write": service("write"), **kept}
        if "manager" in roles:
            values = [s.manager_s for s in (services, *ends)]
            at = means[("write", 0)]
            group["manager"] = {
                "service": {
                    "overhead": estimate(
                        _time(values[0]), _time(min(values)), _time(max(values)), at, values[0] == 0
                    )
                }
            }
    network = document.setdefault("network", {})
    if not isinstance(network, dict):
        network = document["network"] = {}
    payload = network_bps.mean
    said = platform.plain.get("network", {}).get("bandwidth")
    network["bandwidth"] = estimate(
        _rate(payload), _rate(network_bps.low), _rate(network_bps.high), network_bps
    )
    network["loopback"] = estimate(
        _rate(loopback_bps.mean), _rate(loopback_bps.low), _rate(loopback_bps.high), loopback_bps
    )
    network["latency"] = estimate(
        _time(latency_s.mean), _time(latency_s.low), _time(latency_s.high), latency_s
    )
    document.setdefault("protocol", {})["control"] = CONTROL
    document.setdefault("launch", {})["overhead"] = estimate(
        _time(launch_s.mean), _time(launch_s.low), _time(launch_s.high), launch_s
    )
    if said is not None:
        document.setdefault("facts", {})["network_nominal"] = said
    return document


def _rate(bps: float) -> str:
    return f"{max(_LEAST_RATE, bps) / 1e6:.6g} MB/s"


def _time(seconds: float) -> str:
    return f"{1e6 * max(0.0, seconds):.6g} us"


def _per_mib(per_byte_s: float) -> str:
    return f"{1e3 * max(0.0, per_byte_s) * 2**20:.6g} ms/MiB"
