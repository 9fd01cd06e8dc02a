"""Series for plots and comparisons: of a bundle, of runs of a study, of an exported table, of CSV on a pipe.

A series has the values of one metric of one node in one run. Its `x` is the time since the start of the run
in seconds, or the index of a sequence; series are joined only by time (`joined`), never by index.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.archive.series.selector import selector
from penstock.errors import BadInput, printable
from penstock.text import like

Array = npt.NDArray[np.float64]
Axis = Literal["time", "index", "value"]

#: limit of series in one table
MOST_SERIES = 20_000


@dataclass(frozen=True)
class Phase:
    """A phase of a run: its start and end in seconds since the start of the run."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Series:
    """One series: `x` ascending [s, or an index], `y` in `unit` (NaN: missing value).

    `name` is metric and entity, `cpu_busy all`, from any source. `node` is its host or disk, `quantity` the
    metric, `run` the run or replicate, `group` the common treatment of its replicates, `verdict` its
    completeness, empty for that of the run. `alias`: another name that selects it; `source`: its collector;
    `lacks`: missing points of a partial one, for a message.
    """

    name: str
    x: Array
    y: Array
    unit: str = ""
    node: str = ""
    quantity: str = ""
    run: str = ""
    group: str = ""
    verdict: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    alias: str = ""
    source: str = ""
    lacks: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All its names."""
        return self.name, self.quantity, self.quantity.replace(" ", "_"), self.alias

    @property
    def key(self) -> tuple[str, str, str]:
        """Names common to its replicates."""
        return self.group, self.name, self.unit


@dataclass(frozen=True)
class Recorded:
    """Series on one axis, and the phases of their run."""

    series: list[Series]
    axis: Axis = "time"
    axis_name: str = ""
    axis_unit: str = ""
    phases: list[Phase] = field(default_factory=list)
    #: the time at 0, since 1970-01-01 UTC [ns], if known
    start_utc_ns: int | None = None
    #: the phase that starts at 0, empty for the start of the run
    origin: str = ""
    #: cells that were skipped, and assumptions about the others
    notes: list[str] = field(default_factory=list)

    @property
    def units(self) -> list[str]:
        """Units in the order of their first series."""
        return list(dict.fromkeys(s.unit for s in self.series))

    @property
    def points(self) -> int:
        """Number of points of all series together."""
        return sum(len(s.x) for s in self.series)

    def chosen(self, globs: Sequence[str]) -> Recorded:
        """Series selected by name or node. BadInput if there are none."""
        if not globs:
            return self
        chosen = [s for s in self.series if any(takes(g, s) for g in globs)]
        if not chosen:
            expected = names_near(globs, [s.name for s in self.series])
            raise BadInput(f"--series: found none called {' or '.join(globs)}; expected {expected}")
        return replace(self, series=chosen)

    def within(self, phase: str) -> Recorded:
        """The part within one phase, whose start becomes 0. BadInput for an unknown phase."""
        match = self.phase(phase, "--phase")
        return replace(
            self,
            series=[_cut(s, match.start_s, match.end_s) for s in self.series],
            phases=[
                Phase(p.name, p.start_s - match.start_s, p.end_s - match.start_s)
                for p in self.phases
                if p is not match and p.start_s >= match.start_s and p.end_s <= match.end_s
            ],
        )

    def from_phase(self, phase: str) -> Recorded:
        """Times relative to the start of a phase. BadInput for an unknown phase."""
        at = self.phase(phase, "--align").start_s
        start = self.start_utc_ns
        return replace(
            self,
            series=[replace(s, x=s.x - at) for s in self.series],
            phases=[Phase(p.name, p.start_s - at, p.end_s - at) for p in self.phases],
            start_utc_ns=None if start is None else start + round(at * 1e9),
            origin=phase,
        )

    def phase(self, phase: str, option: str) -> Phase:
        """First phase of a name, complete or without the phases around it.

        BadInput with the option's name for an unknown name, or an incomplete one of several phases.
        """
        named = [p for p in self.phases if p.name == phase]
        named = named or [p for p in self.phases if p.name.rpartition("/")[2] == phase]
        names = dict.fromkeys(p.name for p in named)
        if len(names) > 1:
            raise BadInput(f"{option}: found {phase}; expected one of {', '.join(names)}")
        if named:
            return named[0]
        expected = ", ".join(dict.fromkeys(p.name for p in self.phases)) or "none was recorded"
        raise BadInput(f"{option}: found {phase}; expected one of the run's phases: {expected}")

    def named(self, node: str, units: dict[str, str]) -> Recorded:
        """With the node from each name (the pattern's first group), and units by name."""
        try:
            pattern = re.compile(node) if node else None
        except re.error as error:
            raise BadInput(
                f"--node: found {node!r}, {error}; expected a regular expression"
            ) from None
        return replace(self, series=[_named(s, pattern, units) for s in self.series])


def takes(text: str, series: Series) -> bool:
    """True if a selector, or a pattern of the node, matches a series."""
    plain = any(fnmatch.fnmatchcase(n, text) for n in (*series.names, series.node) if n)
    return plain or selector(text).takes(series.names, series.node, series.labels)


def names_near(texts: Sequence[str], names: Iterable[str]) -> str:
    """Names for a message: those similar to `texts`, else the first twelve."""
    distinct = list(dict.fromkeys(names))
    near = list(dict.fromkeys(n for t in texts for n in like(t.partition("{")[0], distinct)))
    if near:
        return f"one like {' or '.join(printable(n) for n in near)}"
    more = f" and {len(distinct) - 12} more" if len(distinct) > 12 else ""
    return "one of " + (", ".join(printable(n) for n in distinct[:12]) or "none") + more


def _cut(series: Series, start_s: float, end_s: float) -> Series:
    use = (series.x >= start_s) & (series.x <= end_s)
    return replace(series, x=series.x[use] - start_s, y=series.y[use])


def _named(series: Series, pattern: re.Pattern[str] | None, units: dict[str, str]) -> Series:
    match = pattern.search(series.name) if pattern else None
    if match:
        node = match.group(1) if match.re.groups else match.group(0)
        rest = series.name[: match.start()] + series.name[match.end() :]
        series = replace(series, node=node, quantity=rest.strip(" _-:./") or series.quantity)
    for name in (series.name, series.quantity):
        if name in units:
            return replace(series, unit=units[name])
    return series


def at_times(series: Series, at: Array, how: str = "nearest", within: float | None = None) -> Array:
    """Values of a series at some times, NaN if missing.

    `exact`: at the same time; `nearest`: of the nearest point, at most `within` away, by default half a step
    of the series (its median); `last`: the last preceding value.
    """
    if how not in ("exact", "nearest", "last"):
        raise BadInput(f"--join: found {how}; expected exact, nearest or last")
    if not len(series.x):
        return np.full(len(at), np.nan)
    after = np.searchsorted(series.x, at, side="right")
    before = np.clip(after - 1, 0, len(series.x) - 1)
    after = np.clip(after, 0, len(series.x) - 1)
    if how == "nearest":
        if within is None:
            within = float(np.median(np.diff(series.x))) / 2 if len(series.x) > 1 else 0.0
        closer = np.abs(series.x[after] - at) < np.abs(series.x[before] - at)
        which = np.where(closer, after, before)
        # times are sums of steps, with rounding errors
        use = np.abs(series.x[which] - at) <= within * (1 + 1e-9)
    else:
        which = before
        use = series.x[which] == at if how == "exact" else series.x[which] <= at
    return np.where(use, series.y[which], np.nan)


def joined(
    x: Series, y: Series, how: str = "nearest", within: float | None = None
) -> tuple[Array, Array]:
    """Values of two series at the same time: for each point of `y` that of `x`, as in `at_times`.

    Points without a partner are omitted.
    """
    one = at_times(x, y.x, how, within)
    paired = np.isfinite(one) & np.isfinite(y.y)
    return one[paired], y.y[paired]


def median_step(series: Iterable[Series]) -> float:
    """Median distance of neighbouring points over all series, 1 without points."""
    steps = [np.diff(s.x) for s in series if len(s.x) > 1]
    every = np.concatenate(steps) if steps else np.empty(0)
    every = every[every > 0]
    return float(np.median(every)) if len(every) else 1.0


def check_count(series: int, name: Path | str) -> None:
    """Raise BadInput above the limit of series in one table."""
    if series > MOST_SERIES:
        raise BadInput(f"{name}: found {series} series; expected {MOST_SERIES} at most")
