"""Why runs of one treatment differ: what else differed between them, and whether the response follows it.

Both are compared within treatments: logarithms of the response, and the other quantity, less their means per
treatment. Spearman's rank correlation of these residuals is tested by permutations within treatments; Holm's
method covers the quantities. The interval is that of Bonett and Wright (Psychometrika 65, 2000).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics.multiple_tests import holm
from penstock.analyse.statistics.strata import places_in_time
from penstock.text import counted, listed, percent

#: smallest standard deviation within treatments, as a share of the mean, that needs a reason
SPREAD = 0.1
#: fewest runs beyond those that the means of treatments take
_FEWEST = 8
_LEVEL = 0.05
#: permutations of the runs, and limit of the numbers that they take
_PERMUTATIONS, _NUMBERS = 9999, 20_000_000
_Z = 1.959964

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cause:
    """A quantity of a run that its response may follow; `least`: smallest range within treatments that may
    matter. `of` returns None for a run without it."""

    name: str
    least: float
    of: Callable[[Outcome, str], float | None]
    remedy: str


def _rows(outcome: Outcome, run_id: str, table: str, columns: list[str]) -> pd.DataFrame | None:
    """These columns of a table of the run; None without the table or one of them."""
    rows = outcome.table(run_id, table, columns)
    return rows if rows is not None and set(columns) <= set(rows.columns) else None


def _order(outcome: Outcome, run_id: str) -> float | None:
    """Share of the requests that begin where the one before ended."""
    columns = ["file_id", "tid", "phase_id", "basis", "requests", "consecutive_share"]
    rows = _rows(outcome, run_id, "patterns", columns)
    if rows is None:
        return None
    rows = rows[rows["tid"].isna() & rows["phase_id"].isna() & (rows["basis"] == "calls")]
    rows = rows[rows["file_id"].isin(_on_disks(outcome, run_id, rows["file_id"]))]
    return _mean(rows["consecutive_share"], rows["requests"])


def _on_disks(outcome: Outcome, run_id: str, files: pd.Series[int]) -> pd.Series[int]:
    """Files on emulated disks, if there are any: others may be libraries."""
    rows = _rows(outcome, run_id, "files", ["file_id", "disk_id"])
    if rows is None:
        return files
    chosen: pd.Series[int] = rows.loc[rows["disk_id"].notna(), "file_id"]
    return chosen if len(chosen) else files


def _layout(outcome: Outcome, run_id: str) -> float | None:
    """Share of the blocks of the files that lie right behind the one before."""
    columns = ["contiguous_share", "mapped_bytes"]
    rows = _rows(outcome, run_id, "extents", columns)
    if rows is None:
        return None
    return _mean(rows["contiguous_share"], rows["mapped_bytes"])


def _cache(outcome: Outcome, run_id: str) -> float | None:
    """Share of the pages that were in the page cache."""
    columns = ["pages_hit", "pages_missed"]
    rows = _rows(outcome, run_id, "cache_use", columns)
    if rows is None:
        return None
    hit, missed = (float(rows[name].sum()) for name in columns)
    return hit / (hit + missed) if hit + missed else None


def _others(outcome: Outcome, run_id: str) -> float | None:
    """Processors that other programs used."""
    delay = outcome.manifest(run_id).get("delay")
    value = delay.get("others_cpus") if isinstance(delay, dict) else None
    return float(value) if value is not None and math.isfinite(value) else None


def _place(outcome: Outcome, run_id: str) -> float | None:
    """Place in the order in which the runs were made; in that of the plan without all starting times."""
    if "places in time" not in outcome.memory:
        manifests = [outcome.manifest(r) for r in outcome.run_ids]
        starts = [(m.get("times") or {}).get("start_realtime_ns") for m in manifests]
        planned = np.array([m.get("run_order") for m in manifests], dtype=float)
        places = places_in_time(pd.DataFrame({"start_realtime_ns": starts}), planned)
        outcome.memory["places in time"] = dict(zip(outcome.run_ids, places.tolist(), strict=True))
    place: float = outcome.memory["places in time"].get(run_id, math.nan)
    return place if math.isfinite(place) else None


def _mean(values: pd.Series[float], weights: pd.Series[float]) -> float | None:
    usable = values.notna() & weights.notna()
    total = float(weights[usable].sum())
    return float((values[usable] * weights[usable]).sum()) / total if total > 0 else None


CAUSES = (
    Cause(
        "the order of their accesses (share that is consecutive)",
        0.05,
        _order,
        "Write the data in the order in which they are read, and measure again (docs/storage-layout.md).",
    ),
    Cause(
        "the layout of their files on the device (share that is contiguous)",
        0.05,
        _layout,
        "Create the files again on free space, and repeat the measurement.",
    ),
    Cause(
        "the share of pages from the page cache",
        0.05,
        _cache,
        "Give each run the same page cache: `settle` in the study file.",
    ),
    Cause(
        "the processors that other programs used",
        0.1,
        _others,
        "End other programs, and repeat the runs: `penstock run STUDY -o OUT --augment replicates:1`.",
    ),
    Cause(
        "the order of the runs",
        2.0,
        _place,
        "The host or the data changed during the study: compare the first runs with the last ones.",
    ),
)


@dataclass(frozen=True)
class Followed:
    """Rank correlation of a response with a cause within treatments: interval, p-value by Holm, runs."""

    cause: Cause
    correlation: float
    low: float
    high: float
    p_value: float
    runs: int


def differences(outcome: Outcome) -> Iterator[Finding]:
    """Causes that the main response of equal runs follows; none if the runs differ little, or are few."""
    for response in outcome.responses[:1]:
        runs = _replicated(outcome, response)
        if runs is None or (spread := _spread(runs)) < SPREAD:
            continue
        if results := followed(outcome, runs):
            yield _finding(response, spread, len(runs), results)


def _replicated(outcome: Outcome, response: ResponseUnit) -> pd.DataFrame | None:
    """Runs of treatments with replicates: `run_id`, `treatment_id`, logarithm `y`; None if there are few."""
    measured = outcome.measured
    if not {"run_id", "treatment_id", response.name} <= set(measured.columns):
        return None
    runs = measured[["run_id", "treatment_id", response.name]].dropna()
    if not (runs[response.name] > 0).all():
        return None
    runs = runs[runs.groupby("treatment_id")["run_id"].transform("size") > 1]
    free = len(runs) - runs["treatment_id"].nunique()
    if free < _FEWEST:
        return None
    return runs.assign(y=np.log(runs[response.name].astype(float))).reset_index(drop=True)


def _within(values: pd.Series[float], groups: pd.Series[str]) -> _Array:
    """Values less the mean of their treatment."""
    return np.asarray(values - values.groupby(groups).transform("mean"), dtype=float)


def _spread(runs: pd.DataFrame) -> float:
    """Standard deviation within treatments, as a share of the mean."""
    free = len(runs) - runs["treatment_id"].nunique()
    residuals = _within(runs["y"], runs["treatment_id"])
    return math.expm1(math.sqrt(float(np.sum(residuals**2)) / free))


def followed(outcome: Outcome, runs: pd.DataFrame) -> list[Followed]:
    """Causes that were recorded for all runs and differ within treatments, smallest p-value first."""
    groups = runs["treatment_id"].astype(str)
    y = rankdata(_within(runs["y"], groups))
    shuffles = _shuffles(groups)
    tested = []
    for cause in CAUSES:
        values = [cause.of(outcome, str(run_id)) for run_id in runs["run_id"]]
        if any(value is None for value in values):
            continue
        x = pd.Series(values, dtype=float)
        if float((x.groupby(groups).max() - x.groupby(groups).min()).max()) < cause.least:
            continue
        tested.append((cause, *_correlated(rankdata(_within(x, groups)), y, shuffles)))
    adjusted = holm([p for _, _, p in tested])
    free = len(runs) - groups.nunique() + 1
    results = [
        Followed(cause, r, *_interval(r, free), p, len(runs))
        for (cause, r, _), p in zip(tested, adjusted, strict=True)
    ]
    return sorted(results, key=lambda one: (one.p_value, -abs(one.correlation)))


def _shuffles(groups: pd.Series[str]) -> npt.NDArray[np.int64]:
    """Permutations of the runs within their treatments, one per row; the same for all causes."""
    draws, number = np.random.default_rng(1), min(_PERMUTATIONS, _NUMBERS // len(groups))
    places = np.tile(np.arange(len(groups)), (number, 1))
    for _, rows in groups.groupby(groups):
        own = rows.index.to_numpy()
        order = np.argsort(draws.random((number, len(own))), axis=1)
        places[:, own] = own[order]
    return places


def _correlated(x: _Array, y: _Array, shuffles: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Correlation of ranks, and the share of permutations with one as far from 0."""
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    if scale == 0:
        return 0.0, 1.0
    r = float(x @ y) / scale
    others = np.abs(y[shuffles] @ x) / scale
    return r, (1 + int(np.sum(others >= abs(r) - 1e-12))) / (1 + len(shuffles))


def _interval(r: float, runs: int) -> tuple[float, float]:
    """95 % interval of Spearman's correlation of this number of runs."""
    inside = max(-0.999999, min(0.999999, r))
    half = _Z * math.sqrt((1 + r * r / 2) / (runs - 3))
    return math.tanh(math.atanh(inside) - half), math.tanh(math.atanh(inside) + half)


def _finding(response: ResponseUnit, spread: float, runs: int, results: list[Followed]) -> Finding:
    differ = (
        f"Runs of one treatment differ: {response.name} varies by {percent(spread)} (standard deviation, "
        f"{counted(runs, 'run')})"
    )
    evidence = {
        "table": "runs",
        "response": response.name,
        "followed": [
            {
                "cause": one.cause.name,
                "correlation": one.correlation,
                "interval": [one.low, one.high],
                "p_value": one.p_value,
            }
            for one in results
        ],
    }
    first = results[0]
    if first.p_value >= _LEVEL:
        tested = listed([one.cause.name for one in results])
        return Finding(
            "runs-differ-open",
            "info",
            f"{differ}, and follows nothing that was recorded: {tested}.",
            evidence,
            "Record more: `trace` under `observers`, with `layers` for disks that are directories.",
        )
    return Finding(
        "runs-differ",
        "warning",
        f"{differ}, and follows {first.cause.name}: rank correlation {_signed(first.correlation)} "
        f"({_signed(first.low)} to {_signed(first.high)}).",
        evidence,
        first.cause.remedy,
        f"p = {first.p_value:.2g} by permutations within treatments, of {len(results)} quantities",
    )


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
