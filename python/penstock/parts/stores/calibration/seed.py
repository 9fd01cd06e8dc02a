"""`penstock seed`: a platform file with the service times of its store, measured on a few of its nodes."""

from __future__ import annotations

import copy
import datetime
import math
import os
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.host.network.loopback import Measured as Interval
from penstock.host.network.loopback import interval
from penstock.parts.prediction.queue_network.identify import (
    Identified,
    Linear,
    Measured,
    identify,
    window_of,
)
from penstock.parts.stores.calibration.deploy import CONTROL, FRAME, seeding_platform
from penstock.parts.stores.calibration.distribution import empirical, quantiles, two_modes
from penstock.parts.stores.calibration.homogeneity import Homogeneity, homogeneity
from penstock.parts.stores.calibration.trials import (
    NARROW,
    Trials,
    link,
    measure,
    needed,
    sizes,
)
from penstock.parts.stores.calibration.window import DelayedReads, delayed_reads
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.hang_guard import guarded
from penstock.parts.stores.store import ready
from penstock.parts.stores.workflow.run import Progress, store_of
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform
from penstock.platform.lower import store_of as store_numbers
from penstock.spec.store import StoreSpec
from penstock.spec.store_engines import capabilities, client_sizes
from penstock.spec.units import parse_duration
from penstock.text import percent, signed_percent

Note = Callable[[str], None]
_LEAST_RATE = 1.0
#: lower bound of an interval as a share of its mean: intervals of few, uneven times may reach below zero
_LEAST_OF_MEAN = 0.05
#: difference of a simulated from the measured read time above which no window is chosen
_MOST_OFF = 0.25
#: share of throttled periods of a node's processor limit above which the times are those of the limit
_MOST_THROTTLED = 0.05


@dataclass(frozen=True)
class Measurements:
    """Measurements on a few nodes like those of a platform, before a model is fitted."""

    engine: str
    trials: Trials
    network_bps: Interval
    loopback_bps: Interval
    latency_s: Interval
    #: reads that show the window of a client; a reason if there could be none
    delayed: DelayedReads | str | None = None
    #: read-ahead of the clients; None if the engine's clients cache nothing, or if it was not recorded
    read_ahead_bytes: int | None = None


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
    #: requests of a client under way at once, or `unlimited`; None if not measured
    window: int | str | None = None


def seed(
    platform: Platform,
    *,
    engine: str | None = None,
    budget_s: float = 120.0,
    compare: bool = True,
    distributions: bool = False,
    note: Note = lambda _: None,
    progress: Progress | None = None,
) -> Seeded:
    """Start the platform's store on a manager, a storage node and clients of it, measure and fit.

    Uses application-level calls only: files written and read through the mount, a TCP stream between two
    nodes. Ends when the 95 % interval of each mean is within 5 %, or after `budget_s`, which the file
    records. With `compare` all nodes are timed first, and those that differ become cautions. With
    `distributions` the document has distributions, not means, where the model accepts them. Raises
    PenstockError if the store fails or the host is too busy.
    """
    small = seeding_platform(platform)
    ready(*deployment(small, engine)[1:])
    alike = homogeneity(platform, note=note, progress=progress) if compare else None
    seen = measure_store(platform, engine=engine, budget_s=budget_s, note=note, progress=progress)
    return identified(platform, seen, alike, distributions=distributions)


def measure_store(
    platform: Platform,
    *,
    engine: str | None = None,
    budget_s: float = 120.0,
    note: Note = lambda _: None,
    progress: Progress | None = None,
) -> Measurements:
    """Measurements of the store alone, as in `seed`."""
    small = seeding_platform(platform)
    chunk_bytes = int(store_numbers(small.file)["chunk_bytes"])
    with store_of(small, engine, progress) as store:
        nodes = store.cluster.nodes
        client, server = nodes[store.roles.clients[-1]], nodes[store.roles.storage[0]]
        with guarded(store):
            note("the network between two nodes")
            network_bps, latency_s = link(client, server)
            note("the loopback of one")
            loopback_bps, _ = link(server, server)
            trials = measure(store, budget_s, note, of_sizes=sizes(chunk_bytes))
            note("requests of a client at once")
            delayed = delayed_reads(store, chunk_bytes, network_bps.mean)
        rates = (network_bps, loopback_bps, latency_s)
        return Measurements(store.spec.engine, trials, *rates, delayed, read_ahead_of(store.spec))


def read_ahead_of(spec: StoreSpec) -> int | None:
    """Read-ahead of the clients of a store that penstock starts [bytes]; None without a client's cache."""
    engine = capabilities(spec.engine)
    if engine is None or engine.client is None:
        return None
    chunk_bytes = int(spec.parameters.get("chunk", engine.chunk_bytes))
    return client_sizes(engine.client, spec.parameters, chunk_bytes)[1]


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


def identified(
    platform: Platform,
    seen: Measurements,
    alike: Homogeneity | None = None,
    *,
    distributions: bool = False,
) -> Seeded:
    """Fit service times to the measurements, and insert them into the platform.

    `alike`: comparison of its nodes, if measured.
    """
    network = network_values(platform, seen)
    deployed = seeding_platform(platform).with_values(network.plain())
    means = seen.trials.means()
    mean_s = {key: m.mean for key, m in means.items()}
    services = identify(deployed, mean_s)
    window, cautions = _window(deployed, services, seen.delayed)
    if window is not None:
        deployed = deployed.with_values({"store.window": window})
        services = identify(deployed, mean_s)
    ends = [
        identify(
            deployed,
            {k: max(getattr(m, end), _LEAST_OF_MEAN * m.mean) for k, m in means.items()},
        )
        for end in ("low", "high")
    ]
    document = _document(platform, seen, network, services, ends)
    document["store"] = {**(document.get("store") or {}), "engine": seen.engine}
    if window is not None:
        document["store"]["window"] = window
    if distributions:
        _insert_distributions(document, seen.trials, services)
    if alike is not None:
        document["facts"]["seeding"]["alike"] = alike.to_dict()
    cautions += _cautions(seen.trials, services, alike)
    return Seeded(document, seen, services, cautions, alike, window)


def _window(
    deployed: Platform, services: Identified, reads: DelayedReads | str | None
) -> tuple[int | str | None, list[str]]:
    """Value of `store.window`, None if not measured, and messages."""
    if isinstance(reads, str):
        return None, [f"store.window: not measured: {reads}"]
    if reads is None:
        return None, []
    longer_s = statistics.median(reads.many_s) - statistics.median(reads.one_s)
    if longer_s <= 0:
        return None, [f"store.window: {reads.chunks} chunks took no longer than one"]
    sizes_bytes = (reads.chunk_bytes, reads.chunks * reads.chunk_bytes)
    window, off = window_of(deployed, services.read, reads.delay_s, sizes_bytes, longer_s)
    if abs(off) > _MOST_OFF:
        text = f"the nearest window takes {signed_percent(off, 0)} of what was measured"
        return None, [f"store.window: not determined: {text}"]
    return "unlimited" if window is None else window, []


def _cautions(trials: Trials, services: Identified, alike: Homogeneity | None) -> list[str]:
    """Messages about imprecise values and unsuitable measurements."""
    cautions = [
        f"{key}: 95 % interval wider than 5 % after {m.n} operations; some "
        f"{needed(trials.seconds[key])} would do"
        for key, m in trials.means().items()
        if not m.converged
    ]
    cautions += [
        f"{key}: the model takes {signed_percent(off, 0)} of what was measured, with the best service "
        "times there are"
        for key, off in services.off.items()
        if abs(off) > NARROW
    ]
    cautions += [
        f"{node}: throttled in {percent(share)} of the periods of its processor limit; the times are those "
        "of the limit, not of disk and network. Raise its cpus, or measure without"
        for node, share in trials.throttled.items()
        if share > _MOST_THROTTLED
    ]
    modes = {key: two_modes(values) for key, values in trials.seconds.items()}
    cautions += [
        f"{key}: bimodal, {both}; the model uses the mean"
        for key, both in modes.items()
        if both is not None
    ]
    return [*cautions, *trials.dropped, *(alike.cautions if alike is not None else [])]


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
    alone = sorted(m for m in means if m.clients == 1)
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
        of = {m.size_bytes: means[m] for m in alone if m.op == which and m.size_bytes}
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
    if services.contention_s is not None:
        contentions = [s.contention_s or 0.0 for s in (services, *ends)]
        times = [_time(x) for x in (contentions[0], min(contentions), max(contentions))]
        together = means[max(m for m in means if m.clients > 1)]
        store = document["store"] = {**(document.get("store") or {})}
        store["write_contention"] = _estimate(times, together, about)
    document["launch"] = {
        **(document.get("launch") or {}),
        "overhead": mean(interval(trials.launches_s), _time),
        "tag": mean(interval(trials.tags_s), _time),
        "locate": mean(interval(trials.locates_s), _time),
    }
    facts = {**about, **_facts(seen.engine, trials)}
    if seen.read_ahead_bytes is not None:
        facts["read_ahead_bytes"] = seen.read_ahead_bytes
    document.setdefault("facts", {})["seeding"] = facts
    return document


def _facts(engine: str, trials: Trials) -> dict[str, object]:
    """Counts of rounds, throttled shares, and the distribution of each kind of operation."""
    return {
        "engine": engine,
        "rounds": trials.rounds,
        "dropped": len(trials.dropped),
        "throttled": {node: round(share, 4) for node, share in trials.throttled.items()},
        "operations": {
            str(key): {
                "mean_s": round(m.mean, 7),
                "n": m.n,
                "quantiles": quantiles(trials.seconds[key]),
            }
            for key, m in trials.means().items()
        },
    }


def _insert_distributions(
    document: Mapping[str, Any], trials: Trials, services: Identified
) -> None:
    """Replace estimates by distributions, from which the model draws for each request and each task.

    A request's deviations are those of the smallest operation, which takes one request.
    """
    for group in document["hosts"]:
        for which in ("read", "write"):
            if "storage" not in (group.get("roles") or []):
                continue
            smallest = min(
                (m for m in trials.seconds if m.op == which and m.size_bytes and m.clients == 1),
                key=lambda m: (not m.local, m.size_bytes),
            )
            overhead_s: float = getattr(services, which).overhead_s
            group["storage"][which]["overhead"] = empirical(trials.seconds[smallest], overhead_s)
    for key, values in (
        ("overhead", trials.launches_s),
        ("tag", trials.tags_s),
        ("locate", trials.locates_s),
    ):
        document["launch"][key] = empirical(values, statistics.fmean(values))


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
