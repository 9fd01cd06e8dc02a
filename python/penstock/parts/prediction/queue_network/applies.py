"""Applicability of the model to a prediction: ok, caution or outside, each with its reasons.

`outside`: there is no recommendation from this prediction. A note does not change the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.analyse.statistics.prediction_intervals import (
    conformal_rank,
    least_pairs,
    width_message,
    width_verdict,
)
from penstock.parts.prediction import quantities
from penstock.parts.prediction.queue_network.unequal import UNEQUAL, Rates
from penstock.text import counted, first_of, listed, percentage
from penstock.workload.events import GROUP_COMMITS, MAPPED

Severity = Literal["note", "caution", "outside"]
_VERDICTS = {"note": "ok", "caution": "caution", "outside": "outside"}

#: the model was not validated for a higher utilisation of the manager (its queue grows without bound at 1)
MANAGER_SATURATED = 0.9
MANAGER_BUSY = 0.7
#: shorter tasks are sensitive to any variation of the platform (25 % error in the source, Costa 2014)
SHORT_TASK_S = 2.0
#: smaller reads and writes are not dominated by data transfer [bytes]
SMALL_BYTES = 64 * 1024
#: factor beyond a measured range up to which linear extrapolation is accepted with caution
FAR_BEYOND = 4.0
#: ratio of random to sequential service time above which a device depends on its history
HISTORY_RATIO = 1.5
#: hosts named in a reason
_HOSTS_NAMED = 4
#: above this level a store's placement differs from the model's
NEARLY_FULL = 0.9
#: share of the tasks' time in concurrent writes, or of the bytes read, from which an error of a factor of two
#: in it is an error of 10 % in the result
MATTERS = 0.1
#: share of discarded rounds, or of throttled periods of a node, from which a seeding shows the processors
SATURATED = 0.5
#: operations that are not simulated and that determine the time
_DECISIVE = {
    MAPPED: "most accesses of mapped files leave no trace",
    GROUP_COMMITS: "the number of flushes depends on the store's speed",
}


@dataclass(frozen=True)
class Reason:
    """One reason: its stable code, its severity, and the sentence."""

    code: str
    severity: Severity
    text: str

    def to_dict(self) -> dict[str, str]:
        """As in `penstock/prediction/1`."""
        return {"code": self.code, "severity": self.severity, "text": self.text}


@dataclass(frozen=True)
class Applies:
    """The verdict and all reasons, most severe first."""

    verdict: Literal["ok", "caution", "outside"]
    reasons: tuple[Reason, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/prediction/1`."""
        return {"verdict": self.verdict, "reasons": [r.to_dict() for r in self.reasons]}

    @classmethod
    def of(cls, reasons: Iterable[Reason]) -> Applies:
        """Verdict of these reasons."""
        order = ("outside", "caution", "note")
        ordered = sorted(reasons, key=lambda r: order.index(r.severity))
        verdict: Any = _VERDICTS[ordered[0].severity] if ordered else "ok"
        return cls(verdict, tuple(ordered))


@dataclass(frozen=True)
class Used:
    """A value in use and its measured range, both in the same unit."""

    name: str
    value: float
    low: float
    high: float
    unit: str = ""


@dataclass(frozen=True)
class ReadAhead:
    """Read-ahead of an engine's clients that exceeds their cache.

    `share`: of the bytes read, those of files that are read ahead this far.
    """

    engine: str
    ahead_bytes: int
    cache_bytes: int
    share: float


@dataclass(frozen=True)
class Conditions:
    """Inputs of the rules. Everything is optional: missing values raise no reason."""

    stations: Sequence[Mapping[str, Any]] = ()
    stages: Sequence[Mapping[str, Any]] = ()
    used: Sequence[Used] = ()
    #: name of a device profile → mean random over mean sequential service time at the chunk size
    history: Mapping[str, float] = field(default_factory=dict)
    #: name of a device profile → uses that it excludes itself
    ruled_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: operations of the workload that are not simulated → how many
    unmodelled: Mapping[str, int] = field(default_factory=dict)
    #: reads and writes of the workload that move less than SMALL_BYTES, and the number of all
    small: tuple[int, int] = (0, 0)
    #: host → (bytes stored at the end, capacity)
    stored: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: engine whose concurrent writes no measurement calibrates, and their share of the tasks' time
    writers: tuple[str, float] | None = None
    read_ahead: ReadAhead | None = None
    #: rounds of the platform's seeding during which its host was saturated, and the number of all
    saturated: tuple[int, int] = (0, 0)
    #: node of the seeding → share of the periods in which its processor limit was reached
    throttled: Mapping[str, float] = field(default_factory=dict)
    #: rates of the hosts over which the store distributes data
    spread: Sequence[Rates] = ()
    error: Mapping[str, Any] | None = None
    #: message of a generated workflow's reader about files of uniform size
    uniform: str = ""
    #: other assumptions of the workload's reader
    notes: Sequence[str] = ()
    pairs: int = 0
    #: number of predictions in the pairs; 0: unknown
    predictions: int = 0
    #: half width of the calibrated interval relative to the prediction; None: not calibrated
    half_width: float | None = None
    own_calibration: bool = False
    level: float = 0.9
    draws: int = 0
    least_draws: int = 0
    #: further reasons from the platform's measurements (unconverged, clamped, shared network)
    platform: Sequence[Reason] = ()


def judge(conditions: Conditions) -> Applies:
    """Verdict and reasons."""
    reasons = [reason for rule in RULES for reason in rule(conditions)]
    return Applies.of([*reasons, *conditions.platform])


def _error(c: Conditions) -> list[Reason]:
    if c.error is None:
        return []
    return [Reason("failed", "outside", str(c.error.get("message") or c.error.get("kind")))]


def _manager(c: Conditions) -> list[Reason]:
    busy = [(float(s["utilisation"]), s["host"]) for s in c.stations if s["kind"] == "manager"]
    if not busy or max(busy)[0] <= MANAGER_BUSY:
        return []
    share, host = max(busy)
    if share > MANAGER_SATURATED:
        text = (
            f"the manager on {host} is saturated ({percentage(share)} busy): the model has one service "
            "time for all its requests, which is valid only if it does not limit the run"
        )
        return [Reason("manager-saturated", "outside", text)]
    text = f"the manager on {host} is {percentage(share)} busy, near the limit of its model"
    return [Reason("manager-busy", "caution", text)]


def _short_tasks(c: Conditions) -> list[Reason]:
    """Weighted median of the stages' mean task times: half of the tasks belong to shorter stages.

    Tasks with small transfers are excluded: they have a reason of their own.
    """
    if _mostly_small(c):
        return []
    stages = sorted((float(s["task_mean_s"]), int(s["tasks"])) for s in c.stages if s["tasks"])
    total, seen = sum(n for _, n in stages), 0
    for seconds, tasks in stages:
        seen += tasks
        if 2 * seen >= total:
            if seconds >= SHORT_TASK_S:
                return []
            text = (
                f"the median task takes {quantities.seconds(seconds, 2)}; below {SHORT_TASK_S:g} s, small "
                "differences between hosts matter (25 % error in the published validation)"
            )
            return [Reason("short-tasks", "caution", text)]
    return []


def _mostly_small(c: Conditions) -> bool:
    """True if most reads and writes are too small to be dominated by data transfer."""
    small, of = c.small
    return 2 * small > of


def _small_operations(c: Conditions) -> list[Reason]:
    if not _mostly_small(c):
        return []
    small, of = c.small
    text = (
        f"{small:,} of {of:,} reads and writes move less than {quantities.size(SMALL_BYTES)}. Most of their "
        "time is creating, opening and requests to the manager, for which the model has one service time "
        "(a real run took 2.2 times as long)"
    )
    return [Reason("small-operations", "caution", text)]


def _range(c: Conditions) -> list[Reason]:
    reasons = []
    for use in c.used:
        if use.low <= use.value <= use.high:
            continue
        beyond = use.value / use.high if use.value > use.high else use.low / max(use.value, 1e-300)
        far = beyond > FAR_BEYOND
        text = (
            f"{use.name} is {_text(use.value, use.unit)}; it was measured between {_text(use.low, use.unit)} "
            f"and {_text(use.high, use.unit)}"
        )
        reasons.append(Reason("beyond-measured", "outside" if far else "caution", text))
    return reasons


def _text(value: float, unit: str) -> str:
    return quantities.size(value) if unit == "B" else f"{value:g} {unit}".strip()


def _history(c: Conditions) -> list[Reason]:
    return [
        Reason(
            "history-dependent",
            "caution",
            f"{name} takes {ratio:.1f} times as long for a random chunk as for a sequential one: its time "
            "depends on what came before, and caches that fill up are not modelled",
        )
        for name, ratio in c.history.items()
        if ratio >= HISTORY_RATIO
    ]


def _ruled_out(c: Conditions) -> list[Reason]:
    return [
        Reason("profile-misses", "caution", f"{name} is not to be used for {'; '.join(what)}")
        for name, what in c.ruled_out.items()
    ]


def _operations(c: Conditions) -> list[Reason]:
    reasons = [
        Reason("decisive-operations", "outside", f"the workload has {n:,} {op}: {_DECISIVE[op]}")
        for op, n in sorted(c.unmodelled.items())
        if n and op in _DECISIVE
    ]
    others = {op: n for op, n in c.unmodelled.items() if n and op not in _DECISIVE}
    if others:
        counts = ", ".join(f"{n:,} {op}" for op, n in sorted(others.items()))
        text = f"the workload has operations that are not simulated: {counts}"
        reasons.append(Reason("unmodelled-operations", "caution", text))
    return reasons


def _read_ahead(c: Conditions) -> list[Reason]:
    if c.read_ahead is None or c.read_ahead.share < MATTERS:
        return []
    r = c.read_ahead
    text = (
        f"clients of {r.engine} read {quantities.size(r.ahead_bytes)} ahead into a cache of "
        f"{quantities.size(r.cache_bytes)} and fetch them again (a real run took 2.2 times as long)"
    )
    return [Reason("read-ahead", "outside", text)]


def _concurrent_writers(c: Conditions) -> list[Reason]:
    """Enough measured runs calibrate the interval, and with it concurrent writes."""
    if c.writers is None or c.half_width is not None or c.writers[1] < MATTERS:
        return []
    engine, share = c.writers
    text = (
        f"several clients write to {engine} at once for {percentage(share)} of the tasks' time, which no "
        "measurement calibrates (runs on CephFS took up to 1.5 times as long)"
    )
    return [Reason("concurrent-writers", "outside", text)]


def _saturated_host(c: Conditions) -> list[Reason]:
    """Processors that were saturated while the platform's service times were measured."""
    dropped, rounds = c.saturated
    texts = []
    if rounds and dropped / rounds >= SATURATED:
        texts.append(f"the host was saturated in {dropped} of {rounds} rounds of the seeding")
    slow = {node: share for node, share in c.throttled.items() if share >= SATURATED}
    if slow:
        node = max(slow, key=slow.__getitem__)
        text = f"{node} was at its processor limit in {percentage(slow[node])} of the periods of the seeding"
        texts.append(text)
    why = "the service times are those of the processors"
    return [Reason("saturated-host", "outside", f"{text}: {why}") for text in texts[:1]]


def _capacity(c: Conditions) -> list[Reason]:
    full = [(s / most, host) for host, (s, most) in c.stored.items() if most > 0]
    if not full or max(full)[0] <= NEARLY_FULL:
        return []
    share, host = max(full)
    if share > 1:
        return [
            Reason("capacity", "outside", f"{host} would store {percentage(share)} of its capacity")
        ]
    text = (
        f"{host} is {percentage(share)} full at the end; a store may then place files differently"
    )
    return [Reason("capacity", "caution", text)]


def _unequal(c: Conditions) -> list[Reason]:
    """One reason for links and one for storage: hosts with parts of the same data at different rates."""
    reasons = []
    for part in ("links", "storage"):
        texts = [_slower(rates) for rates in c.spread if rates.part == part and rates.slow]
        if texts:
            differ = "differ" if part == "links" else "differs"
            text = (
                f"data are spread over hosts whose {part} {differ} by more than {quantities.share(UNEQUAL)}: "
                f"{'; '.join(texts)}. In the model the slowest host decides; a store that weights hosts "
                "or avoids slow ones behaves differently"
            )
            reasons.append(Reason(f"unequal-{part}", "caution", text))
    return reasons


def _slower(rates: Rates) -> str:
    """`store-3 receives at 10 % of what store-0 does, 119 MiB/s`."""
    slow = rates.slow
    shares = list(slow.values())
    low, high = (quantities.share(s) for s in (shares[0], shares[-1]))
    share = low if low == high else f"{low} to {high}"
    fastest = rates.by_host[rates.fastest]
    verb = rates.verb if len(slow) == 1 else rates.verb.removesuffix("s")
    named = listed(first_of(list(slow), _HOSTS_NAMED))
    rate = f"{quantities.size(fastest)}/s" if math.isfinite(fastest) else "which takes no time"
    return f"{named} {verb} at {share} of what {rates.fastest} does, {rate}"


def _notes(c: Conditions) -> list[Reason]:
    return [Reason("workload", "note", note) for note in c.notes]


def _uniform(c: Conditions) -> list[Reason]:
    return [Reason("uniform-sizes", "caution", c.uniform)] if c.uniform else []


def _pairs(c: Conditions) -> list[Reason]:
    rank = conformal_rank(c.pairs, c.level)
    need = least_pairs(c.level)
    if rank <= c.pairs:
        if not 0 < c.predictions < need:
            return []
        number = counted(c.predictions, "prediction")
        text = (
            f"the {c.pairs:,} measured runs of the calibration are of {number}: its error for other "
            "workloads and configurations is uncertain"
        )
        return [Reason("few-predictions", "note", text)]
    if c.pairs == 0 and not c.own_calibration:
        text = (
            "the interval comes from the simulation only: no measured run calibrates it "
            f"({need:,} needed)"
        )
        return [Reason("not-calibrated", "note", text)]
    text = (
        f"insufficient calibration: {counted(c.pairs, 'measured run')}, {need:,} needed for "
        f"{quantities.percent(c.level)}"
    )
    return [Reason("few-pairs", "caution", text)]


def _width(c: Conditions) -> list[Reason]:
    if c.half_width is None or (verdict := width_verdict(c.half_width)) == "ok":
        return []
    text = (
        f"measured runs widen the {quantities.percent(c.level)} interval to "
        f"±{quantities.digits(100 * c.half_width, 2)} % of the prediction: {width_message(c.half_width)}"
    )
    return [Reason("wide-calibration", verdict, text)]


def _draws(c: Conditions) -> list[Reason]:
    if not c.draws or c.draws >= c.least_draws:
        return []
    verb = "makes" if c.draws == 1 else "make"
    text = (
        f"{counted(c.draws, 'simulated run')} {verb} no {quantities.percent(c.level)} interval; "
        f"{c.least_draws:,} are needed"
    )
    return [Reason("few-seeds", "caution", text)]


RULES: tuple[Callable[[Conditions], list[Reason]], ...] = (
    _error,
    _manager,
    _range,
    _capacity,
    _read_ahead,
    _operations,
    _saturated_host,
    _concurrent_writers,
    _unequal,
    _history,
    _ruled_out,
    _small_operations,
    _short_tasks,
    _uniform,
    _notes,
    _pairs,
    _width,
    _draws,
)
