"""Comparison of two traced runs: files with different reads or writes, and the relevance of the differences.

The runs may have different lengths. Files are matched by path; then by device, inode and generation; then
by a name that is unique on both sides; the remainder by rank in bytes, if they have at least a twentieth
of the bytes on both sides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from penstock.analyse.traces.likeness import Distance
from penstock.analyse.traces.served import FLUSHES
from penstock.archive.traces.trace_tables import TraceTables, first_of_path
from penstock.archive.traces.verdicts import Verdict, of_best_basis
from penstock.errors import BadInput
from penstock.text import duration

Side = dict[str, Any]

#: number of latencies sampled per file and direction
_SAMPLE = 4000
_RESAMPLES = 600
#: maximum number of values in each resample: the studentized mean of more is close to normal
_DRAWN = 1000
_TAILS = (0.025, 0.975)
#: minimum share of the bytes of an unmatched file for a match by role
_ROLE_SHARE = 0.05
#: minimum relevant difference, relative to the larger run's time of reads and writes
_MATTERS = 0.05
#: number of files and directions compared with intervals, in descending order of time
_DEEP = 24
#: quantiles, minimum requests for each, and minimum independent requests for its interval
_QUANTILES = {"p50": (0.5, 10, 10), "p99": (0.99, 100, 400)}
#: minimum independent requests for the interval of the mean
_LEAST = 20

_SUMS = """
SELECT file_id, direction, count(*) requests, sum(done_bytes)::BIGINT bytes,
       sum(latency_ns)::BIGINT time_ns
FROM io_events WHERE direction IN ('read', 'write', 'sync') {accesses} GROUP BY ALL
"""
#: without ranges that the kernel mapped around a fault: they took no time, and include its page
_ACCESSES = "AND op NOT LIKE 'fault_around%'"
#: flushes without recorded events
_FLUSHES = f"""
SELECT file_id, sum(calls)::BIGINT requests, sum(time_ns)::BIGINT time_ns
FROM operations WHERE op IN ({", ".join(f"'{name}'" for name in FLUSHES)}) GROUP BY ALL
"""
_DIRECTIONS = ("read", "write", "sync")
SPOKEN = {"read": "reads", "write": "writes", "sync": "flushes"}
_LATENCIES = """
SELECT latency_ns FROM (
  SELECT * FROM (SELECT t_ns, latency_ns FROM io_events WHERE file_id IN (SELECT unnest(?))
    AND direction = ? {accesses})
  USING SAMPLE reservoir({n} ROWS) REPEATABLE (7)
) ORDER BY t_ns
"""


@dataclass(frozen=True)
class Ratio:
    """B over A with a 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """True if 1 is outside the interval."""
        return not self.low <= 1 <= self.high


@dataclass
class Difference:
    """One file and direction: each side's numbers (None if absent), and their ratios."""

    path: str
    direction: str
    matched_by: str
    a: Side | None
    b: Side | None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    matters: bool = False

    @property
    def change_ns(self) -> int:
        """Time of B minus that of A."""
        return int((self.b or {}).get("time_ns", 0)) - int((self.a or {}).get("time_ns", 0))

    def document(self) -> dict[str, Any]:
        return {
            **{k: v for k, v in asdict(self).items() if k != "ratios"},
            "change_ns": self.change_ns,
            "ratios": {name: asdict(ratio) for name, ratio in self.ratios.items()},
        }


@dataclass
class Comparison:
    """All differences, in descending order of change of time, and a concluding sentence."""

    a: str
    b: str
    wall_s: tuple[float | None, float | None]
    differences: list[Difference]
    distance: Distance | None
    closing: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "wall_s": list(self.wall_s),
            "distance": self.distance.document() if self.distance else None,
            "differences": [d.document() for d in self.differences],
            "closing": self.closing,
        }


class Run:
    """One side: sums per file and direction, classes, and samples of latencies.

    Files of one path are treated as one, even if it was recreated: the number of the first identifies all.
    """

    def __init__(self, path: Path):
        self.tables = TraceTables(path)
        self.path = path
        self.events = self.tables.has("io_events")
        names = ["file_id", "path", "dev_major", "dev_minor", "inode", "generation"]
        table = self.tables.table("files", names)
        self.files: dict[int, dict[str, Any]] = {row["file_id"]: row for row in table.to_pylist()}
        for row in self.files.values():
            row["path"] = self._of_its_disk(row.get("path"))
        self.first_of = first_of_path({number: row["path"] for number, row in self.files.items()})
        best = of_best_basis(self.tables.overall_verdicts)
        verdicts = sorted(best, key=lambda row: row.requests)
        #: for files of one path, the verdict on the one with most requests
        self.classes = {(self._first(row.file_id), row.direction): row for row in verdicts}
        self.sums = self._sums(verdicts)

    def _of_its_disk(self, path: str | None) -> str | None:
        """The path relative to the run's own directory in a study: equal in each of its runs."""
        manifest = self.tables.manifest
        if path is None or not manifest.get("treatment_id"):
            return path
        for own in (f"/{manifest['run_id']}/", f"/.{manifest['run_id']}.partial/"):
            path = path.partition(own)[2] or path
        return path

    def _first(self, file_id: int) -> int:
        return self.first_of.get(file_id, file_id)

    def _sums(self, verdicts: list[Verdict]) -> dict[tuple[int, str], Side]:
        if self.events:
            rows = self._query("io_events", _SUMS.format(accesses=self._accesses))
        else:
            rows = [
                {
                    **{name: getattr(row, name) for name in ("file_id", "direction", "requests")},
                    "bytes": row.nbytes,
                    "time_ns": row.time_ns,
                }
                for row in verdicts
            ]
            if self.tables.has("operations"):  # flushes from the sums that every mode records
                flushes = self._query("operations", _FLUSHES)
                rows += [{**row, "direction": "sync", "bytes": 0} for row in flushes]
        sums: dict[tuple[int, str], Side] = {}
        for row in rows:
            key = (self._first(row["file_id"]), row["direction"])
            side = sums.setdefault(key, {"requests": 0, "bytes": 0, "time_ns": 0, "files": 0})
            side["files"] += 1
            for name in ("requests", "bytes", "time_ns"):
                side[name] += int(row[name] or 0)
        return sums

    @property
    def _accesses(self) -> str:
        """SQL condition for accesses of the program."""
        return _ACCESSES if self.tables.has("io_events", "op") else ""

    def _query(self, table: str, query: str) -> list[dict[str, Any]]:
        try:
            return self.tables.query(query)
        except duckdb.Error as error:
            place = self.path / f"{table}.parquet"
            raise BadInput(f"{place}: cannot be read: {error}") from error

    def path_of(self, file_id: int) -> str:
        """Path (for a study's run relative to the run's own directory), or `file N`."""
        return self.files.get(file_id, {}).get("path") or f"file {file_id}"

    def side(self, file_id: int, direction: str) -> Side | None:
        """The numbers of one file and direction."""
        sums = self.sums.get((file_id, direction))
        if sums is None:
            return None
        verdict = self.classes.get((file_id, direction))
        numbers = {**sums, "class": verdict and verdict.kind, "k": verdict and verdict.k}
        numbers["joint_class"] = verdict and verdict.joint_class
        numbers["mean_ns"] = sums["time_ns"] / max(sums["requests"], 1)
        return numbers

    def latencies(self, file_id: int, direction: str) -> npt.NDArray[np.float64]:
        """At most 4000 latencies [ns], sampled evenly, in order of time; empty without events."""
        if not self.events:
            return np.empty(0)
        query = _LATENCIES.format(n=_SAMPLE, accesses=self._accesses)
        members = [number for number, first in self.first_of.items() if first == file_id]
        sample = self.tables.arrays(query, [members or [file_id], direction])
        return np.asarray(sample["latency_ns"], np.float64)

    @property
    def wall_s(self) -> float | None:
        """Duration of the run."""
        wall = (self.tables.manifest.get("responses") or {}).get("wall_s") or {}
        if "value" in wall:
            return float(wall["value"])
        return None


def compare_runs(a: Run, b: Run, distance: Distance | None = None) -> Comparison:
    """The comparison of two traced runs; `distance` (see `likeness`) is copied to the result."""
    compared: list[tuple[Difference, int | None, int | None]] = []
    for one, other, by in match_files(a, b):
        path = a.path_of(one) if one is not None else b.path_of(other or 0)
        for direction in _DIRECTIONS:
            side_a = a.side(one, direction) if one is not None else None
            side_b = b.side(other, direction) if other is not None else None
            if side_a is not None or side_b is not None:
                compared.append((Difference(path, direction, by, side_a, side_b), one, other))
    compared.sort(key=lambda row: (-abs(row[0].change_ns), row[0].path, row[0].direction))
    totals = [sum(side["time_ns"] for side in run.sums.values()) for run in (a, b)]
    random = np.random.default_rng(7)
    for n, (row, one, other) in enumerate(compared):
        if row.a is None or row.b is None:
            row.matters = abs(row.change_ns) >= _MATTERS * max(*totals, 1)
            continue
        for name in ("requests", "bytes", "time_ns"):
            if row.a[name]:
                value = row.b[name] / row.a[name]
                row.ratios[name] = Ratio(value, value, value)
        if n < _DEEP and one is not None and other is not None:
            pair = (a.latencies(one, row.direction), b.latencies(other, row.direction))
            row.ratios.update(ratios_of(*pair, random))
            for side, sample in zip((row.a, row.b), pair, strict=True):
                for name, (part, least, _) in _QUANTILES.items():
                    if len(sample) >= least:
                        side[f"{name}_ns"] = float(np.quantile(sample, part))
        large = abs(row.change_ns) >= _MATTERS * max(*totals, 1)
        mean = row.ratios.get("mean")
        counts = row.ratios.get("requests")
        otherwise = row.a["class"] != row.b["class"]
        more = counts is not None and abs(math.log(max(counts.value, 1e-9))) > 0.1
        row.matters = large and (otherwise or more or mean is None or mean.differs)
    differences = [row for row, _, _ in compared]
    comparison = Comparison(str(a.path), str(b.path), (a.wall_s, b.wall_s), differences, distance)
    comparison.closing = _closing(comparison, totals)
    return comparison


def match_files(a: Run, b: Run) -> list[tuple[int | None, int | None, str]]:
    """Pairs of file numbers with their matching criterion; None on the side that lacks the file."""
    rest_a = {number for number, _ in a.sums}
    rest_b = {number for number, _ in b.sums}
    pairs: list[tuple[int | None, int | None, str]] = []

    def take(by: str, keys: tuple[dict[Any, list[int]], dict[Any, list[int]]]) -> None:
        for key, numbers in keys[0].items():
            others = keys[1].get(key, [])
            if len(numbers) == 1 and len(others) == 1:
                pairs.append((numbers[0], others[0], by))
                rest_a.discard(numbers[0])
                rest_b.discard(others[0])

    def keyed(run: Run, numbers: set[int], key: Any) -> dict[Any, list[int]]:
        by_key: dict[Any, list[int]] = {}
        for number in sorted(numbers):
            value = key(run.files.get(number, {}))
            if value is not None:
                by_key.setdefault(value, []).append(number)
        return by_key

    for by, key in (("path", _by_path), ("identity", _by_identity), ("name", _by_name)):
        take(by, (keyed(a, rest_a, key), keyed(b, rest_b, key)))
    ranked = [_main_files(run, numbers) for run, numbers in ((a, rest_a), (b, rest_b))]
    for one, other in zip(*ranked, strict=False):
        pairs.append((one, other, "role"))
        rest_a.discard(one)
        rest_b.discard(other)
    pairs += [(number, None, "only in A") for number in sorted(rest_a)]
    pairs += [(None, number, "only in B") for number in sorted(rest_b)]
    return pairs


def _by_path(row: Mapping[str, Any]) -> Any:
    return row.get("path")


def _by_identity(row: Mapping[str, Any]) -> Any:
    if not row.get("inode"):
        return None
    return tuple(row.get(name) for name in ("dev_major", "dev_minor", "inode", "generation"))


def _by_name(row: Mapping[str, Any]) -> Any:
    return row["path"].rsplit("/", 1)[-1] if row.get("path") else None


def _main_files(run: Run, numbers: set[int]) -> list[int]:
    """Files of `numbers` with at least a twentieth of the run's bytes, in descending order."""
    per: Counter[int] = Counter()
    for (number, _), sums in run.sums.items():
        per[number] += sums["bytes"]
    least = _ROLE_SHARE * max(per.total(), 1)
    ranked = sorted(per, key=lambda n: (-per[n], n))
    return [n for n in ranked if n in numbers and per[n] >= least]


def ratios_of(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], random: np.random.Generator
) -> dict[str, Ratio]:
    """Ratios of mean, median and 99th percentile of two series in order of time, with 95 % intervals.

    Neighbours in time are correlated: the effective sample size comes from the autocorrelation. The mean's
    interval is by the studentized bootstrap of its logarithm (Davison and Hinkley 1997, section 5.2), the
    quantiles' by order statistics of each side, combined as in Zou and Donner (2008).
    """
    if len(a) == 0 or len(b) == 0:
        return {}
    independent = [max(int(len(x) / _spread_in_time(x)), 1) for x in (a, b)]
    ratios = {}
    if min(independent) >= _LEAST and a.mean() > 0 and b.mean() > 0:
        ratios["mean"] = _of_means(a, b, independent, random)
    for name, (part, _, least) in _QUANTILES.items():
        if min(independent) >= least:
            ratio = _of_quantiles(a, b, independent, part)
            if ratio is not None:
                ratios[name] = ratio
    return ratios


def _spread_in_time(values: npt.NDArray[np.float64]) -> float:
    """Integrated autocorrelation time of the ranks, at least 1.

    Summed over pairs of lags until one is not positive (Geyer, Statistical Science 7, 1992).
    """
    n = len(values)
    if n < _LEAST or values.min() == values.max():
        return 1.0
    # equal values share their rank, so that their order has no effect
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    centred = np.zeros(1 << (2 * n - 1).bit_length())
    centred[:n] = ranks - ranks.mean()
    spectrum = np.abs(np.fft.rfft(centred)) ** 2
    correlation = np.fft.irfft(spectrum)[:n]
    correlation /= correlation[0]
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    last = int(ends[0]) if len(ends) else len(pairs)
    return max(1.0, 2 * float(pairs[:last].sum()) - 1)


def _of_means(
    a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
    independent: list[int],
    random: np.random.Generator,
) -> Ratio:
    logs, squares, drawn_logs, drawn_squares = [], [], [], []
    for x, m in zip((a, b), independent, strict=True):
        logs.append(np.log(x.mean()))
        squares.append(x.var() / m / x.mean() ** 2)
        drawn = min(m, _DRAWN)
        draws = x[random.integers(0, len(x), (_RESAMPLES, drawn))]
        means = np.maximum(draws.mean(axis=1), np.finfo(float).tiny)
        # rescaled to m values: both sides keep their shares of the variance
        drawn_logs.append((np.log(means) - logs[-1]) * np.sqrt(drawn / m))
        drawn_squares.append(draws.var(axis=1) / m / means**2)
    middle, error = logs[1] - logs[0], np.sqrt(squares[0] + squares[1])
    errors = np.sqrt(drawn_squares[0] + drawn_squares[1])
    if error == 0 or not np.all(errors > 0):
        # nearly all values are equal: resamples have no variance
        ends = middle + np.quantile(drawn_logs[1] - drawn_logs[0], _TAILS)
        return Ratio(*(float(np.exp(x)) for x in (middle, *ends)))
    low, high = np.quantile((drawn_logs[1] - drawn_logs[0]) / errors, _TAILS)
    ends = (middle - high * error, middle - low * error)
    return Ratio(*(float(np.exp(x)) for x in (middle, *ends)))


def _of_quantiles(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], independent: list[int], part: float
) -> Ratio | None:
    middles, lows, highs = [], [], []
    for x, m in zip((a, b), independent, strict=True):
        from scipy.stats import binom

        below, above = binom.ppf(_TAILS, m, part)
        ordered = np.sort(x)
        ranks = np.array([(below - 0.5) / m, part, (above + 0.5) / m]) * len(x)
        ends = ordered[np.clip(ranks.astype(int), 0, len(x) - 1)]
        if ends[0] <= 0:
            return None
        middle = np.log(np.quantile(x, part))
        middles.append(middle)
        lows.append(middle - min(np.log(ends[0]), middle))
        highs.append(max(np.log(ends[2]), middle) - middle)
    middle = middles[1] - middles[0]
    low, high = np.hypot(lows[1], highs[0]), np.hypot(highs[1], lows[0])
    return Ratio(*(float(np.exp(x)) for x in (middle, middle - low, middle + high)))


def _closing(comparison: Comparison, totals: list[int]) -> str:
    if not any(totals):
        return "The times of the requests are in neither trace: only orders and sizes compare."
    ratio = totals[1] / totals[0] if totals[0] else float("inf")
    text = (
        f"Reads, writes and flushes took {duration(totals[0])} in A and {duration(totals[1])} in B"
    )
    if totals[0]:
        text += f" ({ratio:.2g} times)"
    main = [row for row in comparison.differences if row.matters]
    if not main:
        return text + "; no file differs by more than chance and a twentieth of that time."
    change = totals[1] - totals[0]
    # the change is explained by differences in the same direction
    alike = [row for row in main if row.change_ns * change > 0]
    top = (alike or main)[0]
    part = "most of it" if alike and 2 * abs(top.change_ns) >= abs(change) else "the largest part"
    if not alike:
        part = "the largest difference, in the opposite direction"
    where = f"{SPOKEN[top.direction]} of {top.path}"
    if top.a is None or top.b is None:
        only, side = ("B", top.b) if top.a is None else ("A", top.a)
        return f"{text}; {part}: {where} occur in {only} only ({duration(side['time_ns'])})."  # type: ignore[index]
    text += f"; {part}: {where}, {duration(top.a['time_ns'])} against {duration(top.b['time_ns'])}"
    if top.a["class"] != top.b["class"]:
        text += f", {top.a['class']} in A and {top.b['class']} in B"
    if top.a["requests"] != top.b["requests"]:
        text += f", {top.a['requests']} requests against {top.b['requests']}"
    mean = top.ratios.get("mean")
    if mean is not None:
        text += f", each {mean.value:.2g} times as long ({mean.low:.2g} to {mean.high:.2g})"
    return text + "."
