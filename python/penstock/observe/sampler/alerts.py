"""Alert rules over a monitor's samples; one evaluator for live runs and for recorded tables."""

from __future__ import annotations

import contextlib
import fnmatch
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.completeness import check_manifest
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput
from penstock.observe.sampler.formulas import Array
from penstock.observe.sampler.spool_reader import Follower, Values
from penstock.spec.alert import METRICS, Rule
from penstock.text import measured

ALERTS_SCHEMA = TABLES["alerts"].arrow
#: gap between samples, in intervals, that ends a stretch, as values in it are unknown
_LONGEST_GAP = 5
#: maximum number of reported stretches per rule
MOST_STRETCHES = 1000
#: minimum and maximum time between evaluations of a live run [s]
_LOOK_EVERY_S = (0.05, 0.5)
_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}


@dataclass
class Stretch:
    """Consecutive samples of one entity for which a rule holds for its duration [ns]."""

    rule: Rule
    entity: str
    since_ns: int
    fired_ns: int
    until_ns: int
    worst: float
    aborted: bool = False

    @property
    def summary(self) -> str:
        """The alert in one line."""
        lasted = (self.until_ns - self.since_ns) / 1e9
        lasting = f" for {lasted:.3g} s" if lasted else ""
        return f"{self.rule.text}: {self.rule.metric} of {self.entity} was {self.shown}{lasting}"

    @property
    def shown(self) -> str:
        """Worst value, with its unit."""
        return measured(self.worst, self.rule.unit)

    def row(self) -> dict[str, Any]:
        """Row of `alerts`."""
        return {
            "rule": self.rule.text,
            "action": self.rule.action,
            "metric": self.rule.metric,
            "entity": self.entity,
            "since_ns": self.since_ns,
            "fired_ns": self.fired_ns,
            "until_ns": self.until_ns,
            "worst": self.worst,
            "threshold": self.rule.threshold,
            "unit": self.rule.unit,
            "aborted": self.aborted,
        }


@dataclass
class _State:
    """State of one rule and entity: start of the current stretch, last sample, worst value, fired alert."""

    since_ns: int | None = None
    last_ns: int | None = None
    worst: float = float("nan")
    fired: Stretch | None = None


class Evaluator:
    """Evaluate rules over values in any number of portions; the results do not depend on the partition.

    A rule fires at the first sample that is `lasting_s` or more after the first of consecutive samples for
    which it holds. An empty value, or a gap of more than five intervals, ends the sequence.
    """

    def __init__(self, rules: Sequence[Rule], interval_ns: int) -> None:
        self.rules = tuple(rules)
        self._longest_ns = _LONGEST_GAP * interval_ns
        self._states: dict[tuple[int, str], _State] = {}
        self._counts = [0] * len(self.rules)
        self.stretches: list[Stretch] = []

    def feed(self, samples: Iterable[Values]) -> list[Stretch]:
        """Stretches that start to fire with these values."""
        fired = []
        for one in samples:
            for number, rule in enumerate(self.rules):
                if rule.metric == one.metric and _fits(rule, one.entity) and len(one.t_ns):
                    state = self._states.setdefault((number, one.entity), _State())
                    for stretch in self._of_one(rule, one, state):
                        self._counts[number] += 1
                        if self._counts[number] <= MOST_STRETCHES:
                            self.stretches.append(stretch)
                            fired.append(stretch)
        return fired

    def _of_one(self, rule: Rule, one: Values, state: _State) -> list[Stretch]:
        """Stretches of samples for which the rule holds, from their bounds; vectorised over the samples."""
        t, values = one.t_ns, one.values
        holds = _COMPARE[rule.comparison](values, rule.threshold)
        if state.last_ns is not None:  # prepend the previous sample
            t = np.concatenate([[state.last_ns], t])
            values = np.concatenate([[state.worst], values])
            holds = np.concatenate([[state.since_ns is not None], holds])
        joined = holds[:-1] & holds[1:] & (np.diff(t) <= self._longest_ns)
        begins = np.flatnonzero(holds & ~np.concatenate([[False], joined]))
        ends = np.flatnonzero(holds & ~np.concatenate([joined, [False]]))
        since = t[begins].copy()
        if state.since_ns is not None:
            since[0] = state.since_ns
        lasting_ns = round(rule.lasting_s * 1e9)
        fired = np.flatnonzero(t[ends] - since >= lasting_ns)
        begun: list[Stretch] = []
        last: Stretch | None = None
        for at in [*fired[: MOST_STRETCHES - 1], *fired[MOST_STRETCHES - 1 :][-1:]]:
            part = slice(int(begins[at]), int(ends[at]) + 1)
            worst = _worst(rule, values[part])
            last = state.fired if at == 0 and state.since_ns is not None else None
            if last is not None:
                last.until_ns, last.worst = int(t[ends[at]]), worst
                continue
            fires = int(begins[at]) + int(np.searchsorted(t[part], since[at] + lasting_ns))
            last = Stretch(rule, one.entity, int(since[at]), int(t[fires]), int(t[ends[at]]), worst)
            begun.append(last)
        state.last_ns = int(t[-1])
        if holds[-1]:
            state.since_ns = int(since[-1])
            state.worst = _worst(rule, values[int(begins[-1]) :])
            state.fired = last if len(fired) and fired[-1] == len(begins) - 1 else None
        else:
            state.since_ns, state.worst, state.fired = None, float("nan"), None
        return begun

    def table(self) -> pa.Table:
        """Alerts fired so far, by rule and time: the table `alerts`."""
        rows = sorted(
            (s.row() for s in self.stretches), key=lambda r: (r["rule"], r["since_ns"], r["entity"])
        )
        return pa.Table.from_pylist(rows, ALERTS_SCHEMA)


def _fits(rule: Rule, entity: str) -> bool:
    return fnmatch.fnmatchcase(entity, rule.labels.get("entity", "*"))


def _worst(rule: Rule, values: Array) -> float:
    return float(values.max() if rule.comparison.startswith(">") else values.min())


def recorded_values(samples: pa.Table | None, utilisation: pa.Table | None) -> list[Values]:
    """Values of a run's tables, as the follower returned them during the run."""
    values: list[Values] = []
    for table, kind in ((utilisation, "kind"), (samples, "source")):
        if table is None or not table.num_rows:
            continue
        frame = table.to_pandas()
        if "cumulative" in frame.columns:
            frame = frame[~frame["cumulative"].astype(bool)]
        for (k, e, m), rows in frame.groupby([kind, "entity", "metric"], observed=True):
            name = f"{k}_{m}"
            if name in METRICS:
                rows = rows.sort_values("t_ns")
                values.append(
                    Values(
                        name,
                        str(e),
                        rows["t_ns"].to_numpy(dtype=np.int64),
                        rows["value"].to_numpy(dtype=float),
                    )
                )
    return values


def judged(
    rules: Sequence[Rule],
    interval_ns: int,
    samples: pa.Table | None,
    utilisation: pa.Table | None,
    seen: Iterable[Stretch] = (),
) -> Evaluator:
    """Evaluate rules over a run's tables, and merge alerts `seen` during the run: only these include the
    abort, and finer samples of the start."""
    evaluator = Evaluator(rules, interval_ns)
    evaluator.feed(recorded_values(samples, utilisation))
    for live in seen:
        same = [
            s
            for s in evaluator.stretches
            if (s.rule, s.entity) == (live.rule, live.entity)
            and s.since_ns <= live.until_ns
            and live.since_ns <= s.until_ns
        ]
        for stretch in same:
            stretch.aborted = stretch.aborted or live.aborted
        if not same:
            evaluator.stretches.append(live)
    return evaluator


def of_bundle(rules: Sequence[Rule], path: Path) -> Evaluator:
    """Evaluate rules over the tables of a bundle. Raises BadInput if it has no monitoring data."""
    receipts = check_manifest(path / "manifest.json").get("receipts") or {}
    receipt = receipts.get("monitor")
    if not isinstance(receipt, dict) or not (path / "samples.parquet").exists():
        raise BadInput(f"{path}: found no samples; expected a run with a monitor")
    tables = []
    for name in ("samples", "utilisation"):
        file = path / f"{name}.parquet"
        try:
            tables.append(pq.read_table(file, columns=TABLES[name].arrow.names))
        except (OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())[:200]
            raise BadInput(f"{file}: found {reason}; expected the table {name}") from None
    interval_ns = receipt.get("used_ns") or receipt.get("interval_ns")
    if not isinstance(interval_ns, int) or interval_ns <= 0:
        raise BadInput(f"{path}: found interval {interval_ns!r}; expected nanoseconds")
    return judged(rules, interval_ns, *tables)


class AlertWatch:
    """Evaluate rules over a growing spool; `abort` is called once, by the first rule that aborts.

    An unreadable spool is no alert: the error is in `trouble`.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        spool: Path,
        interval_ns: int,
        abort: Callable[[], None],
        notify: Callable[[Stretch], None] = lambda _: None,
    ) -> None:
        from penstock.observe.sampler.monitor import link_capacities

        self._evaluator = Evaluator(rules, interval_ns)
        self._follower = Follower(spool, link_capacities())
        self._abort = abort
        self._notify = notify
        self._every_s = min(max(interval_ns / 4e9, _LOOK_EVERY_S[0]), _LOOK_EVERY_S[1])
        self._over = threading.Event()
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()

    @property
    def stretches(self) -> list[Stretch]:
        """Alerts fired during the run; valid after `end`."""
        return self._evaluator.stretches

    def end(self) -> None:
        """Stop evaluating."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        aborted = False
        while not self._over.wait(self._every_s):
            try:
                fired = self._evaluator.feed(self._follower.look())
            except Exception as error:  # the run continues without alerts and reports that
                self.trouble = f"alerts ended: {error}"
                return
            for stretch in fired:
                if stretch.rule.action == "abort" and not aborted:
                    stretch.aborted = aborted = True
                    self._abort()
                with contextlib.suppress(Exception):
                    self._notify(stretch)
