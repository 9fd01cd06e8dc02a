"""`penstock seed`: a platform file with the service times of its store, measured on three of its nodes."""

from __future__ import annotations

import copy
import datetime
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.host.network.loopback import Measured as Interval
from penstock.host.network.loopback import interval
from penstock.parts.prediction.queue_network.identify import Identified, Linear, Measured, identify
from penstock.parts.stores.calibration.deploy import CONTROL, FRAME, seeding_platform
from penstock.parts.stores.calibration.homogeneity import Homogeneity, homogeneity
from penstock.parts.stores.calibration.trials import NARROW, Trials, link, measure, needed
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.hang_guard import guarded
from penstock.parts.stores.store import ready
from penstock.parts.stores.workflow.run import Progress, store_of
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform
from penstock.spec.units import parse_duration
from penstock.text import signed_percent

Note = Callable[[str], None]
_LEAST_RATE = 1.0
#: lower bound of an interval as a share of its mean: intervals of few, uneven times may reach below zero
_LEAST_OF_MEAN = 0.05


@dataclass(frozen=True)
class Measurements:
    """Measurements on three nodes like those of a platform, before a model is fitted."""

    engine: str
    trials: Trials
    network_bps: Interval
    loopback_bps: Interval
    latency_s: Interval


@dataclass(frozen=True)
class Seeded:
    """Measured and fitted values; `document` is the platform file with them."""

    document: dict[str, Any]
    measured: Measurements
    services: Identified
    #: messages about imprecise values
    cautions: list[str]
    #: comparison of all nodes with the seeded ones; None if not measured
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
    """Start the platform's store on a manager, a storage node and a client of it, measure and fit.

    Uses application-level calls only: files written and read through the mount, a TCP stream between two
    nodes. Ends when the 95 % interval of each mean is within 5 %, or after `budget_s`, which the file
    records. With `compare` all nodes are timed first, and those that differ become cautions. Raises
    PenstockError if the store fails or the host is too busy.
    """
    small = seeding_platform(platform)
    ready(*deployment(small, engine)[1:])
    alike = homogeneity(platform, note=note, progress=progress) if compare else None
    seen = measure_store(platform, engine=engine, budget_s=budget_s, note=note, progress=progress)
    return identified(platform, seen, alike)


def measure_store(
    platform: Platform,
    *,
    engine: str | None = None,
    budget_s: float = 120.0,
    note: Note = lambda _: None,
    progress: Progress | None = None,
) -> Measurements:
    """Measurements of the store alone, as in `seed`."""
    with store_of(seeding_platform(platform), engine, progress) as store:
        nodes = store.cluster.nodes
        client, server = nodes[store.roles.clients[-1]], nodes[store.roles.storage[0]]
        with guarded(store):
            note("the network between two nodes")
            network_bps, latency_s = link(client, server)
            note("the loopback of one")
            loopback_bps, _ = link(server, server)
            trials = measure(store, budget_s, note)
        return Measurements(store.spec.engine, trials, network_bps, loopback_bps, latency_s)


@dataclass(frozen=True)
class NetworkValues:
    """Network parameters of the model, in addition to the rates and latencies of the links.

    Those of the links do not change, so that a seeded platform is started as the measured one. `payload` is
    the share of the links' rate, `latency_s` is added to the links' latency.
    """

    payload: Interval
    latency_s: Interval
    loopback_bps: Interval

    def plain(self) -> dict[str, Any]:
        """Values by their path in a platform file."""
        return {
            "network.payload": self.payload.mean,
            "network.loopback": _rate(self.loopback_bps.mean),
            "protocol.latency": _time(self.latency_s.mean),
        }


def network_values(platform: Platform, seen: Measurements) -> NetworkValues:
    """Network values between a client and a storage node, excluding those of their links."""
    small = seeding_platform(platform)
    client, server = (
        next(n for n in cluster_spec(small).nodes if n.name.startswith(group)).links[0]
        for group in ("client", "storage")
    )
    nominal_bps = min(r for r in (client.out_bps, server.in_bps, math.inf) if r is not None)
    lowered = small.with_values({"network.loopback": _rate(seen.loopback_bps.mean)}).lower()
    declared_s = lowered["fabric"]["latency_s"] - parse_duration(small.file.protocol.latency)
    return NetworkValues(
        _changed(seen.network_bps, lambda bps: min(1.0, bps / nominal_bps)),
        _changed(seen.latency_s, lambda seconds: max(0.0, seconds - declared_s)),
        seen.loopback_bps,
    )


def _changed(of: Interval, change: Callable[[float], float]) -> Interval:
    """Transform an interval to another scale."""
    return replace(of, mean=change(of.mean), low=change(of.low), high=change(of.high))


def identified(platform: Platform, seen: Measurements, alike: Homogeneity | None = None) -> Seeded:
    """Fit service times to the measurements, and insert them into the platform.

    `alike`: comparison of its nodes, if measured.
    """
    network = network_values(platform, seen)
    with_network = seeding_platform(platform).with_values(network.plain())
    means = seen.trials.means()
    services = identify(with_network, {k: m.mean for k, m in means.items()})
    ends = [
        identify(
            with_network,
            {k: max(getattr(m, end), _LEAST_OF_MEAN * m.mean) for k, m in means.items()},
        )
        for end in ("low", "high")
    ]
    cautions = [
        f"{key}: 95 % interval wider than 5 % after {m.n} operations; some "
        f"{needed(seen.trials.seconds[key])} would do"
        for key, m in means.items()
        if not m.converged
    ]
    cautions += [
        f"{key}: the model takes {signed_percent(off, 0)} of what was measured, with the best service "
        "times there are"
        for key, off in services.off.items()
        if abs(off) > NARROW
    ]
    cautions += seen.trials.dropped
    cautions += alike.cautions if alike is not None else []
    document = _document(platform, seen, network, services, ends)
    document["store"] = {**(document.get("store") or {}), "engine": seen.engine}
    if alike is not None:
        document["facts"]["seeding"]["alike"] = alike.to_dict()
    return Seeded(document, seen, services, cautions, alike)


def _document(
    platform: Platform,
    seen: Measurements,
    fitted_network: NetworkValues,
    services: Identified,
    ends: list[Identified],
) -> dict[str, Any]:
    """The platform's own file with measured values."""
    document = copy.deepcopy(platform.document)
    means, trials = seen.trials.means(), seen.trials
    about = {
        "method": "seeding",
        "date": datetime.date.today().isoformat(),
        "host": socket.gethostname(),
        "kernel": os.uname().release,
    }

    def mean(of: Interval, text: Callable[[float], Any]) -> dict[str, Any]:
        return _estimate([text(x) for x in (of.mean, of.low, of.high)], of, about)

    def fitted(
        values: Sequence[float], of: Interval, text: Callable[[float], str]
    ) -> dict[str, Any]:
        texts = [text(x) for x in (values[0], min(values), max(values))]
        clamped = {"clamped": True} if values[0] == 0 else {}
        return _estimate(texts, of, about) | clamped

    def service(which: str) -> dict[str, Any]:
        services_of: list[Linear] = [getattr(s, which) for s in (services, *ends)]
        # local operations take precedence
        of = {m.size_bytes: means[m] for m in sorted(means) if m.op == which and m.size_bytes}
        return {
            "overhead": fitted([s.overhead_s for s in services_of], of[min(of)], _time),
            "per_byte": fitted([s.per_byte_s for s in services_of], of[max(of)], _per_mib),
        }

    for group in document["hosts"]:
        roles = group.get("roles") or []
        if "storage" in roles:
            capacity = {k: v for k, v in (group.get("storage") or {}).items() if k == "capacity"}
            group["storage"] = {"read": service("read"), "write": service("write"), **capacity}
        if "manager" in roles:
            values = [s.manager_s for s in (services, *ends)]
            empty = means[Measured("write", 0)]
            group["manager"] = {"service": {"overhead": fitted(values, empty, _time)}}
    network = document.setdefault("network", {})
    if not isinstance(network, dict):
        network = document["network"] = {}
    network["payload"] = mean(fitted_network.payload, lambda share: round(share, 6))
    network["loopback"] = mean(seen.loopback_bps, _rate)
    document["protocol"] = {
        "frame": FRAME,
        **(document.get("protocol") or {}),
        "control": CONTROL,
        "latency": mean(fitted_network.latency_s, _time),
    }
    document["launch"] = {
        **(document.get("launch") or {}),
        "overhead": mean(interval(trials.launches_s), _time),
        "tag": mean(interval(trials.tags_s), _time),
        "locate": mean(interval(trials.locates_s), _time),
    }
    document.setdefault("facts", {})["seeding"] = {
        **about,
        "engine": seen.engine,
        "rounds": trials.rounds,
        "dropped": len(trials.dropped),
        "operations": {
            str(key): {"mean_s": round(m.mean, 7), "n": m.n} for key, m in means.items()
        },
    }
    return document


def _estimate(values: Sequence[Any], of: Interval, about: dict[str, str]) -> dict[str, Any]:
    """A value and its bounds, with the number of measurements."""
    value, low, high = values
    document: dict[str, Any] = {"value": value, "low": low, "high": high, "n": of.n, **about}
    return document if of.converged else {**document, "converged": False}


def _rate(bps: float) -> str:
    return f"{max(_LEAST_RATE, bps) / 1e6:.6g} MB/s"


def _time(seconds: float) -> str:
    return f"{1e6 * max(0.0, seconds):.6g} us"


def _per_mib(per_byte_s: float) -> str:
    return f"{1e3 * max(0.0, per_byte_s) * 2**20:.6g} ms/MiB"
