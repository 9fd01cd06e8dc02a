"""Comparison of two or more experiments, treatments or runs, phase by phase, with ties; gates.

A row is a quantity in a phase: for each run its statistic over the points of that phase, over all nodes;
for each selection the mean over its runs. With two or more runs each, pairs are tested by Welch's test,
all pairs of a row together by Holm's adjustment (`ranking`). Single runs have no test.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.analyse.treatments.ranking import Measured, Order, order
from penstock.archive.bundle import Bundle
from penstock.archive.completeness import TAKEN, unknown_note
from penstock.archive.selection import Selection
from penstock.archive.series.read_series import of_selection, run_name
from penstock.archive.series.series import Array, Phase, Recorded
from penstock.errors import BadInput, printable
from penstock.text import without_nan

#: name of the phase that spans a run
WHOLE = "run"
DURATION = "duration"
MOST_COMPARED = 100
MOST_ROWS = 20_000
STATISTICS: dict[str, Callable[[Array], float]] = {
    "mean": lambda y: float(np.mean(y)),
    "median": lambda y: float(np.median(y)),
    "min": lambda y: float(np.min(y)),
    "max": lambda y: float(np.max(y)),
    "p95": lambda y: float(np.quantile(y, 0.95)),
    "p99": lambda y: float(np.quantile(y, 0.99)),
    "sum": lambda y: float(np.sum(y)),
    "last": lambda y: float(np.mean(y)),  # of the last points
}
#: ratio of intervals up to which sums are comparable
_ALIKE = 1.5
_GATE = re.compile(
    r"(?P<metric>.+?)(?:@(?P<phase>[^@<>]+?))?\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d+(?:\.\d+)?)\s*%"
)
#: phase, metric, unit
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Row:
    """One quantity in one phase: the values of the runs of each selection."""

    phase: str
    metric: str
    unit: str
    values: dict[str, list[float]]
    #: None if a selection has a single run
    order: Order | None

    @property
    def means(self) -> dict[str, float]:
        return {name: float(np.mean(v)) for name, v in self.values.items()}

    def change(self, name: str) -> float:
        """Change of a mean relative to the first, as a share; infinite if that is 0."""
        means = self.means
        first = next(iter(means.values()))
        if means[name] == first:
            return 0.0
        return (means[name] - first) / abs(first) if first else math.inf * (means[name] - first)

    def apart(self, name: str) -> bool | None:
        """True if a selection differs significantly from the first; None without a test."""
        if self.order is None:
            return None
        return self.order.pair(next(iter(self.values)), name).apart

    def document(self) -> dict[str, Any]:
        names = list(self.values)
        pairs = (
            [] if self.order is None else [{**vars(p), "apart": p.apart} for p in self.order.pairs]
        )
        return {
            "phase": self.phase,
            "metric": self.metric,
            "unit": self.unit,
            "values": self.values,
            "means": self.means,
            "changes": without_nan({n: self.change(n) for n in names[1:]}),
            "order": None if self.order is None else str(self.order),
            "groups": None if self.order is None else self.order.groups,
            "pairs": without_nan(pairs),
        }


@dataclass(frozen=True)
class Compared:
    """The compared selections, the first as the reference, and a row for each quantity in each phase."""

    names: list[str]
    runs: dict[str, list[str]]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "compared": self.names,
            "runs": self.runs,
            "rows": [r.document() for r in self.rows],
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Gate:
    """`METRIC[@PHASE] > 5%`: a change from the first that fails the gate."""

    text: str
    metric: str
    phase: str | None
    sign: str
    share: float

    @classmethod
    def of(cls, text: str) -> Gate:
        """Parse a gate. BadInput for invalid text."""
        match = _GATE.fullmatch(text.strip())
        if match is None:
            raise BadInput(
                f"--fail-on: found {printable(text[:80])!r}; expected METRIC > 5%, METRIC < -5% or "
                "METRIC@PHASE > 5%"
            )
        share = float(match["percent"]) / 100
        return cls(text.strip(), match["metric"].strip(), match["phase"], match["sign"], share)


@dataclass(frozen=True)
class Judged:
    """Result of a gate in one row of a compared selection.

    `failed`: beyond the bound, and significantly different from the first if several runs of each allow a
    test.
    """

    gate: str
    name: str
    phase: str
    metric: str
    change: float
    beyond: bool
    apart: bool | None

    @property
    def failed(self) -> bool:
        return self.beyond and self.apart is not False

    def document(self) -> dict[str, Any]:
        return {**vars(self), "change": without_nan(self.change), "failed": self.failed}


def compared(
    selections: Sequence[Selection],
    *,
    metrics: Sequence[str] = (),
    align: str | None = None,
    statistic: str = "mean",
    partial: bool = False,
    table: str | None = None,
) -> Compared:
    """Compare the selections. `align` selects one phase, `metrics` metrics by name (`*`, `?`).

    Phases are those that every run has. BadInput for fewer than two selections, for selections with
    nothing in common, and without `partial` for an incomplete run.
    """
    if not 2 <= len(selections) <= MOST_COMPARED:
        raise BadInput(f"found {len(selections)} to compare; expected 2 to {MOST_COMPARED}")
    names = _names(selections)
    if statistic not in STATISTICS:
        raise BadInput(f"--statistic: found {statistic}; expected one of {', '.join(STATISTICS)}")
    measured: dict[str, list[dict[Key, float]]] = {}
    runs: dict[str, list[str]] = {}
    unknown: list[str] = []
    spacings: list[dict[Key, float]] = []
    for name, selection in zip(names, selections, strict=True):
        if not selection.runs:
            raise BadInput(f"{name}: found no valid run; expected one at least")
        bundles = [Bundle.open(run) for run in selection.runs]
        if not partial:
            _check_complete(name, bundles)
        unknown += [warning for b in bundles if (warning := unknown_note(b.manifest))]
        runs[name] = [run_name(b) for b in bundles]
        measured[name] = []
        for bundle in bundles:
            spacings.append({})
            of_run = _of_run(bundle, statistic, align, table, partial, spacings[-1])
            measured[name].append(of_run)
    result = _together(names, runs, measured, metrics, align)
    intervals = _interval_note(result.rows, spacings) if statistic == "sum" else []
    return replace(result, notes=[*result.notes, *intervals, *unknown])


def _interval_note(rows: Sequence[Row], spacings: Sequence[Mapping[Key, float]]) -> list[str]:
    """A note on quantities whose sums depend on the intervals of their points, which differ."""
    differing: dict[str, tuple[float, float]] = {}
    for row in rows:
        key = row.phase, row.metric, row.unit
        between_s = [one[key] for one in spacings if key in one]
        if between_s and max(between_s) > _ALIKE * min(between_s):
            differing.setdefault(row.metric, (min(between_s), max(between_s)))
    if not differing:
        return []
    shown = ", ".join(f"{printable(m)} ({a:.3g} to {b:.3g} s)" for m, (a, b) in differing.items())
    return [f"sums of points at different intervals, with which they change: {shown}"]


def judge(comparison: Compared, gates: Sequence[Gate]) -> list[Judged]:
    """Results of all gates. BadInput for a gate that matches no row."""
    judged = []
    for gate in gates:
        rows = [
            r
            for r in comparison.rows
            if fnmatch.fnmatchcase(r.metric, gate.metric)
            and gate.phase in (None, r.phase, r.phase.rpartition("/")[2])
        ]
        # default: the run as one phase, or the requested phase
        of_run = [r for r in rows if r.phase == WHOLE]
        rows = rows if gate.phase is not None else of_run or rows
        if not rows:
            metrics = ", ".join(dict.fromkeys(printable(r.metric) for r in comparison.rows))
            raise BadInput(
                f"--fail-on: found nothing called {gate.text!r}; expected one of {metrics}"
            )
        for row in rows:
            for name in comparison.names[1:]:
                change = row.change(name)
                beyond = change > gate.share if gate.sign == ">" else change < gate.share
                judged.append(
                    Judged(gate.text, name, row.phase, row.metric, change, beyond, row.apart(name))
                )
    return judged


def _names(selections: Sequence[Selection]) -> list[str]:
    names = [s.name for s in selections]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise BadInput(f"found {twice} twice; expected each to be compared once")
    return names


def _check_complete(name: str, bundles: Sequence[Bundle]) -> None:
    for bundle in bundles:
        verdict = (bundle.manifest.get("experiment") or {}).get("verdict", "complete")
        if verdict not in TAKEN or not bundle.manifest.get("valid", True):
            why = bundle.manifest.get("reason") or f"it is {verdict}"
            raise BadInput(
                f"{name}: found {run_name(bundle)}, which is not valid ({printable(str(why))}); expected "
                "complete runs (--partial takes it all the same)"
            )


def _of_run(
    bundle: Bundle,
    statistic: str,
    align: str | None,
    table: str | None,
    partial: bool,
    spacing: dict[Key, float],
) -> dict[Key, float]:
    """Values of a run; `spacing` gets the median time between points of each quantity [s]."""
    values: dict[Key, float] = {}
    times = bundle.manifest.get("times") or {}
    if align is None:
        for name, value in (bundle.manifest.get("responses") or {}).items():
            number = value.get("value") if isinstance(value, dict) else None
            if isinstance(number, int | float) and math.isfinite(number):
                values[WHOLE, name, str(value.get("unit") or "")] = float(number)
        wall = times.get("wall_s")
        if isinstance(wall, int | float) and (WHOLE, "wall_s", "s") not in values:
            values[WHOLE, DURATION, "s"] = float(wall)
    watched = set(bundle.tables) & {"utilisation", "points", "samples"}
    if not watched and align is None and table is None:
        return values  # a run without observers has only its responses
    one = Selection(str(bundle.path), "run", bundle.path, [bundle.path])
    recorded = of_selection(one, table, partial=partial)
    stretches: dict[str, list[Phase]] = {}
    for one_phase in recorded.phases:  # one of the same name may occur several times
        stretches.setdefault(one_phase.name, []).append(one_phase)
    if align is not None:
        stretches = {align: stretches[recorded.phase(align, "--align").name]}
    else:
        values |= _statistics(recorded, WHOLE, None, statistic, spacing)
    for name, phases in stretches.items():
        values[name, DURATION, "s"] = sum(p.end_s - p.start_s for p in phases)
        values |= _statistics(recorded, name, phases, statistic, spacing)
    return values


def _statistics(
    recorded: Recorded,
    phase: str,
    within: Sequence[Phase] | None,
    statistic: str,
    spacing: dict[Key, float],
) -> dict[Key, float]:
    """Statistics of each quantity over all its nodes, and of each node if there are several.

    `last` of several nodes is the mean of their last points.
    """
    parts: dict[Key, list[Array]] = {}
    single: dict[Key, list[Array]] = {}
    between_s: dict[Key, list[float]] = {}
    for s in recorded.series:
        use = np.isfinite(s.y)
        if within is not None:
            use &= np.any([(s.x >= p.start_s) & (s.x < p.end_s) for p in within], axis=0)
        y = s.y[use]
        if not len(y):
            continue
        quantity = (s.quantity or s.name).replace(" ", "_")
        keys = [(parts, (phase, quantity, s.unit))]
        if s.name.replace(" ", "_") != quantity:
            keys.append((single, (phase, s.name, s.unit)))
        for of, key in keys:
            of.setdefault(key, []).append(y)
            if len(y) > 1:
                between_s.setdefault(key, []).append(float(np.median(np.diff(s.x[use]))))
    spacing |= {key: float(np.median(of_nodes)) for key, of_nodes in between_s.items()}
    values = {}
    for key, of_nodes in [*parts.items(), *single.items()]:
        points = [y[-1:] for y in of_nodes] if statistic == "last" else of_nodes
        values[key] = STATISTICS[statistic](np.concatenate(points))
    return values


def _together(
    names: Sequence[str],
    runs: Mapping[str, list[str]],
    measured: Mapping[str, list[dict[Key, float]]],
    metrics: Sequence[str],
    align: str | None,
) -> Compared:
    every = [one for each in measured.values() for one in each]
    common = [key for key in every[0] if all(key in one for one in every)]
    if metrics:
        common = [k for k in common if any(fnmatch.fnmatchcase(k[1], m) for m in metrics)]
        absent = [m for m in metrics if not any(fnmatch.fnmatchcase(k[1], m) for k in common)]
        if absent:
            metric_names = list(dict.fromkeys(k[1] for one in every for k in one))
            raise BadInput(
                f"--metric: found {printable(absent[0])} not in every run; expected one of "
                f"{', '.join(printable(n) for n in metric_names[:20])}"
            )
    else:
        # nodes individually only on request
        quantities = {k[1] for k in common if " " not in k[1]}
        common = [k for k in common if k[1] in quantities]
    if not common or len(common) > MOST_ROWS:
        raise BadInput(
            f"found {len(common)} quantities that all runs have; expected 1 to {MOST_ROWS}"
        )
    several = all(len(measured[n]) > 1 for n in names)
    rows = []
    for key in common:
        values = {n: [one[key] for one in measured[n]] for n in names}
        ranked = order([Measured.of(n, v) for n, v in values.items()]) if several else None
        rows.append(Row(*key, values, ranked))
    notes = []
    if not several:
        notes.append("a single run of one of them: no statement about chance (NAME#1..5, OUT:t01)")
    lost = {k[0] for one in every for k in one} - {k[0] for k in common}
    if lost and align is None and not metrics:
        notes.append(f"not in every run: {', '.join(sorted(map(printable, lost)))}")
    return Compared(list(names), dict(runs), rows, notes)
