"""A prediction: duration, interval, bottleneck, and applicability of the model.

`Prediction.to_dict` is the document `penstock/prediction/1`; docs/formats.md describes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.analyse.statistics.prediction_intervals import Interval
from penstock.parts.prediction.queue_network.applies import Applies
from penstock.parts.prediction.queue_network.cost import Cost
from penstock.parts.prediction.queue_network.energy import Energy
from penstock.parts.prediction.queue_network.idle import IdleHosts

SCHEMA = "penstock/prediction/1"

Row = dict[str, Any]
#: fields of a row with the maximum over runs instead of the mean
_LARGEST = ("wait_max_s", "queue_max", "task_max_s")

KINDS = {
    "net_out": "the out-queue of",
    "net_in": "the in-queue of",
    "loopback": "the loopback of",
    "storage": "the storage of",
    "manager": "the manager on",
    "client": "the storage client of",
    "slots": "computing on",
}

#: station of the latency common to all messages
LATENCY = "fabric"


@dataclass(frozen=True)
class Bottleneck:
    """The station with most of the critical path.

    `critical_share` is its share of the critical path, `kind_share` that of all stations of its kind.
    """

    station: str
    host: str
    kind: str
    utilisation: float
    critical_share: float
    kind_share: float

    @property
    def text(self) -> str:
        """`the in-queue of node-3`."""
        if self.kind == "fabric":
            return _shared(self.station)
        return f"{KINDS.get(self.kind, f'{self.kind} of')} {self.host}"

    def to_dict(self) -> Row:
        """As in `penstock/prediction/1`."""
        return {
            "station": self.station,
            "host": self.host,
            "kind": self.kind,
            "words": self.text,
            "utilisation": self.utilisation,
            "critical_share": self.critical_share,
            "kind_share": self.kind_share,
        }


def _shared(station: str) -> str:
    """Text of a link that several hosts share, or of the latency between all of them."""
    if station == LATENCY:
        return "the latency of the network"
    rack, _, way = station.partition("/")
    if rack.startswith("rack-"):
        return f"the {way}link of rack {rack.removeprefix('rack-')}"
    return "the core of the network"


@dataclass(frozen=True)
class Prediction:
    """Prediction of a workload on a platform. Times in seconds, sizes in bytes.

    `makespan_s` is the mean over the runs simulated at the platform's own values; rows of `stages`,
    `stations` (ranked; bulk predictions have the first few and no hosts) and `hosts` are means over the same
    runs. `events` counts those of all `simulations`, `wall_s` is their duration. `tasks` (of one of these
    runs: `task_seed`), `sensitivity`, `measure_next` and `frequencies` are None unless requested, `measured`
    without measured runs, `placement` (number of files at given locations) without a given placement. `error`
    is the reason why the run ended early (a full store), None otherwise; the other fields then describe the
    run until then.
    """

    workload: str
    platform: str
    makespan_s: float
    interval: Interval
    stages: list[Row]
    stations: list[Row]
    bottleneck: Bottleneck | None
    hosts: list[Row]
    bytes: dict[str, float]
    operations: dict[str, Row]
    energy: Energy | None
    cost: Cost | None
    applies: Applies
    events: int
    requests: float
    simulations: int
    wall_s: float
    seeds: list[int] = field(default_factory=list)
    error: Row | None = None
    #: None if the run ended early
    idle: IdleHosts | None = None
    tasks: list[Row] | None = None
    task_seed: int | None = None
    sensitivity: list[Row] | None = None
    measure_next: Row | None = None
    frequencies: Row | None = None
    measured: Row | None = None
    placement: Row | None = None

    @property
    def energy_j(self) -> float | None:
        """Joules of all counted hosts, None if the platform has no powers."""
        return None if self.energy is None else self.energy.total_j

    def to_dict(self) -> Row:
        """The document `penstock/prediction/1`, plain values only."""
        document: Row = {
            "schema": SCHEMA,
            "workload": self.workload,
            "platform": self.platform,
            "makespan_s": self.makespan_s,
            "interval": self.interval.to_dict(),
            "bottleneck": None if self.bottleneck is None else self.bottleneck.to_dict(),
            "stages": self.stages,
            "stations": self.stations,
            "hosts": self.hosts,
            "idle": None if self.idle is None else self.idle.to_dict(),
            "bytes": self.bytes,
            "operations": self.operations,
            "energy_j": self.energy_j,
            "energy": None if self.energy is None else self.energy.to_dict(),
            "cost": None if self.cost is None else self.cost.to_dict(),
            "applies": self.applies.to_dict(),
            "events": self.events,
            "requests": self.requests,
            "simulations": self.simulations,
            "seeds": self.seeds,
            "wall_s": self.wall_s,
            "error": self.error,
        }
        for name in (
            "tasks",
            "task_seed",
            "sensitivity",
            "measure_next",
            "frequencies",
            "measured",
            "placement",
        ):
            value = getattr(self, name)
            if value is not None:
                document[name] = value
        return document


def find_bottleneck(stations: Sequence[Row]) -> Bottleneck | None:
    """The station with most of the critical path, among those of the kind with most of it.

    Kinds come first: twenty equal in-queues with a twentieth each are one bottleneck, not none. Without a
    critical path, the busiest station.
    """
    if not stations:
        return None
    by_kind: dict[str, float] = {}
    for row in stations:
        by_kind[row["kind"]] = by_kind.get(row["kind"], 0.0) + row["critical_share"]
    best = max(by_kind.values())
    rows = list(stations)
    if best > 0:
        kind = next(k for k, v in by_kind.items() if v == best)
        rows = [r for r in rows if r["kind"] == kind]
    top = max(rows, key=lambda r: (r["critical_share"], r["utilisation"]))
    return Bottleneck(
        top["name"],
        top["host"],
        top["kind"],
        top["utilisation"],
        top["critical_share"],
        by_kind[top["kind"]],
    )


def mean_rows(runs: Sequence[Sequence[Row]], key: str = "name") -> list[Row]:
    """One row per name: means over runs, or maxima for fields with a largest value.

    Rows are in order of first appearance; non-numeric values are the first run's. A run without the row does
    not count in its means.
    """
    rows_by_name: dict[str, list[Row]] = {}
    for rows in runs:
        for row in rows:
            rows_by_name.setdefault(str(row[key]), []).append(row)
    return [_mean(rows) for rows in rows_by_name.values()]


def _mean(rows: Sequence[Row]) -> Row:
    first = rows[0]
    if len(rows) == 1:
        return dict(first)
    merged: Row = {}
    for name, value in first.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            merged[name] = value
            continue
        values = [row[name] for row in rows if row.get(name) is not None]
        if name in _LARGEST:
            merged[name] = max(values)
        elif values.count(value) == len(values):
            merged[name] = value
        else:
            merged[name] = sum(values) / len(values)
    return merged


def mean_numbers(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of every number of equal mappings (bytes of several runs)."""
    return _mean(list(rows)) if rows else {}


def ranked_stations(runs: Sequence[Row]) -> list[Row]:
    """Stations of several outcomes, most of the critical path first, then the busiest.

    Adds `critical_share`: its seconds on the critical path over the makespan, run by run.
    """
    shares: list[list[Row]] = []
    for outcome in runs:
        total = float(outcome["makespan_s"]) or 1.0
        shares.append(
            [
                row | {"critical_share": float(row.get("critical_s") or 0.0) / total}
                for row in outcome["stations"]
            ]
        )
    rows = mean_rows(shares)
    return sorted(rows, key=lambda r: (-r["critical_share"], -r["utilisation"], r["name"]))
