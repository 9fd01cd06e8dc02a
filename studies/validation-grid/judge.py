"""Delivered rates of the cells of the validation grid, and the claims on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cells import Cell, by_direction

from penstock.analyse.fidelity.fidelity_counters import fidelity_of_counters
from penstock.archive.bundle import Bundle
from penstock.emulate.backends.counters import as_table
from studies.claims import Claim, Finding, Result, met_if, over_all

#: a shorter cell is too short for any rate [s]
SUSTAINED_S = 3.8
#: in a shorter cell a wrong rate may be flagged [s]
SHORT_S = 0.5
#: relative delay of sleeps of 10 ms from which the host had no free processor
LATE = 0.1
#: utilisation of the processors above which a new request waits
BUSY = 0.9
#: minimum counts for a quantile or a distance
FEWEST = {"p50": 100, "p99": 1000, "ks": 300}


@dataclass(frozen=True)
class Row:
    """One cell in one direction. `ratio`: delivered over specified. Specified are the sampled service times
    on `fuse`, and the limit on throttled devices, whose `ratio` is that of the windows after the first slice.
    If a window has only a few requests, it is the program's. `program` is fio's rate over the limit.
    """

    backend: str
    cell: str
    kind: str
    seconds: float
    ratio: float
    program: float
    verdict: str
    valid: bool
    reason: str = ""
    p50: float = float("nan")
    p99: float = float("nan")
    ks: float = float("nan")
    n: int = 0
    planted: float = 0.0
    limit_bps: float = float("nan")


@dataclass(frozen=True)
class Planned:
    """One cell of the grid in one direction, and its duration at its limit [s]."""

    backend: str
    cell: str
    kind: str
    seconds: float
    shaped: bool = False


#: verdicts of a cell that is not evaluated; a device slower than the limit is no failure of the limit
UNUSABLE = ("host-saturated", "failed")
NOT_JUDGED = (*UNUSABLE, "device-bound")
EXACT, BUFFERED, BOTH = ("read", "direct write"), ("buffered write",), ("mixed", "mapped")
FLAGS = ("too-short", "burst", "device-bound", "not-honoured", "host-saturated")


def kind_of(engine: str, pattern: str, direct: bool, direction: str) -> str:
    """Claim by which a cell is evaluated."""
    if engine == "mmap" and "write" in pattern:
        return "mapped"  # a page must be read before it is written: both directions at once
    if pattern in ("readwrite", "randrw"):
        return "mixed"
    if direction == "write":
        return "direct write" if direct else "buffered write"
    return "read"


def fuse_rows(out: Path, *, limit_of: dict[str, float] | None = None) -> list[Row]:
    """Runs of a study in `out`, valid or not; `limit_of`: limit [B/s] by level, if it has one."""
    names = [f["name"] for f in json.loads((out / "plan.json").read_text())["factors"]]
    rows = []
    for run in pd.read_parquet(out / "runs.parquet").sort_values("run_id").to_dict("records"):
        levels = {name: str(run[name]) for name in names}
        if levels.get("engine") == "mmap" and levels.get("path") == "direct":
            continue  # such a cell does not exist: the file is mapped in any case
        bundle = Bundle.open(out / "runs" / str(run["run_id"]))
        rows += _of_run(bundle, run, levels, limit_of or {})
    return rows


def _of_run(
    bundle: Bundle, run: dict[str, Any], levels: dict[str, str], limit_of: dict[str, float]
) -> list[Row]:
    text = bundle.path / "workload" / "fio.json"
    if not text.exists():
        return []
    reported = by_direction(text.read_text())
    certificate = bundle.table("fidelity").to_pandas()
    by = certificate.set_index("metric")
    requests = bundle.table("device_requests").to_pandas()
    limit = limit_of.get(levels.get("limit", "4m"), float("nan"))
    direct = levels.get("path", "direct") == "direct"
    out = []
    for direction, figures in reported.items():
        direction_requests = requests[requests["op"].astype(str) == direction]
        sampled_ns = (direction_requests["wait_ns"] + direction_requests["service_ns"]).to_numpy(
            float
        )
        distance = float("nan")
        if direct and len(sampled_ns) >= FEWEST["ks"] and "depth" in levels:
            bins = latencies(text.read_text(), direction)
            distance = ks_distance(bins, sampled_ns)
        out.append(
            Row(
                backend="fuse",
                cell=" ".join(levels.values()),
                kind=kind_of(levels.get("engine", ""), levels["pattern"], direct, direction),
                seconds=figures["seconds"],
                ratio=_number(by, "rate", "ratio"),
                program=figures["bytes"] / figures["seconds"] / limit
                if figures["seconds"]
                else np.nan,
                verdict=str(certificate["verdict"].iloc[0]),
                valid=bool(run["valid"]),
                reason=str(run["reason"]),
                p50=_seen(figures["p50_ns"], sampled_ns, 0.5, "p50")
                if distance == distance
                else np.nan,
                p99=_seen(figures["p99_ns"], sampled_ns, 0.99, "p99")
                if distance == distance
                else np.nan,
                ks=distance,
                n=len(sampled_ns),
                limit_bps=limit,
            )
        )
    return out


def throttled_rows(document: dict[str, Any]) -> list[Row]:
    """The cells of `throttled.py`."""
    rows = []
    for result in document["results"]:
        cell = Cell(**result["cell"])
        backend = str(result.get("backend", "throttled"))
        if result["error"]:
            rows.append(Row(backend, cell.name, "failed", 0.0, float("nan"), float("nan"), "failed",
                            False, result["error"], planted=cell.planted))  # fmt: skip
            continue
        # compared with the specified limit, which a planted failure does not set
        windows = [
            w | {"limit_bps": float(cell.limit_bps) if w["limit_bps"] else None}
            for w in result["windows"]
        ]
        by = {"disk_id": windows[0]["disk_id"], "backend": backend} if windows else {}
        certificate = fidelity_of_counters(as_table(windows), **by).overall.to_pylist()
        for direction, figures in result["fio"].items():
            (row,) = [r for r in certificate if r["metric"] == f"rate_{direction}"]
            ratio = float(row["ratio"]) if row["ratio"] is not None else float("nan")
            mean_bytes = figures["bytes"] / max(1.0, figures["ops"])
            if "buffered" in cell.name and direction == "read":
                mean_bytes = max(mean_bytes, 128 * 1024)  # readahead
            if 3 * mean_bytes > 0.02 * cell.limit_bps * figures["seconds"]:
                ratio = figures["bytes"] / figures["seconds"] / cell.limit_bps
            if result["late"] > LATE or result["busy"] > BUSY:
                reason = (f"sleeps were {100 * result['late']:.0f} % late, processors "
                         f"{100 * result['busy']:.0f} % busy")  # fmt: skip
                row |= {"verdict": "host-saturated", "valid": False, "reason": reason}
            rows.append(
                Row(
                    backend=backend,
                    cell=cell.name,
                    kind=kind_of(cell.engine, cell.pattern, cell.direct, direction),
                    seconds=figures["seconds"],
                    ratio=ratio,
                    program=figures["bytes"] / figures["seconds"] / cell.limit_bps,
                    verdict=row["verdict"],
                    valid=bool(row["valid"]),
                    reason=row["reason"],
                    n=int(figures["ops"]),
                    planted=cell.planted,
                    limit_bps=float(cell.limit_bps),
                )
            )
    return rows


def latencies(text: str, direction: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """fio's completion latencies [ns] as value and count, from its json+ bins."""
    job = json.loads(text[text.index("{") :])["jobs"][0]
    bins = job[direction]["clat_ns"].get("bins", {})
    pairs = sorted((float(k), float(v)) for k, v in bins.items())
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def ks_distance(
    bins: np.ndarray[Any, np.dtype[np.float64]], sampled_ns: np.ndarray[Any, Any]
) -> float:
    """Largest difference of two distribution functions: latencies in bins, and sampled times.

    A bin of fio is 1/64 wide, and times closer than that are in one bin. So sampled times are compared at the
    edges of a bin, and the smaller difference is taken (Kolmogorov-Smirnov, one resolution wide).
    """
    if len(bins) == 0 or len(sampled_ns) == 0:
        return float("nan")
    values, weights = bins[:, 0], np.cumsum(bins[:, 1]) / bins[:, 1].sum()
    ordered = np.sort(sampled_ns)
    low = np.searchsorted(ordered, values * (1 - 1 / 64), side="right") / len(ordered)
    high = np.searchsorted(ordered, values * (1 + 1 / 64), side="right") / len(ordered)
    over = np.maximum(weights - high, 0.0)
    under = np.maximum(low - weights, 0.0)
    return float(max(over.max(), under.max()))


@dataclass(frozen=True)
class Subset:
    """Cells of one back end for a claim: usable rows, and the names of those without."""

    backend: str
    rows: Sequence[Row]
    missing: Sequence[str]

    def claim(self, wording: str, evaluate: Callable[[Sequence[Row]], Finding]) -> Claim:
        """Claim on every one of these cells."""
        needs = dict.fromkeys((r.cell for r in self.rows), 1) | dict.fromkeys(self.missing, 0)
        return over_all(self.backend, wording, needs, lambda: evaluate(self.rows))


def subset(
    backend: str,
    rows: Sequence[Row],
    planned: Sequence[Planned],
    usable: Callable[[Row], bool],
    expected: Callable[[Row | Planned], bool],
) -> Subset:
    """Rows of the cells that are `expected` in a claim; missing are those without a usable one."""
    of_backend = [r for r in rows if r.backend == backend and not r.planted]
    chosen = [r for r in of_backend if usable(r) and expected(r)]
    names = {r.cell for r in chosen}
    required = [p.cell for p in planned if p.backend == backend and expected(p)]
    required += [
        r.cell for r in of_backend if r.verdict in UNUSABLE and (expected(r) or r.kind == "failed")
    ]
    excused = {r.cell for r in of_backend if r.verdict == "device-bound"}
    missing = [cell for cell in dict.fromkeys(required) if cell not in names | excused]
    return Subset(backend, chosen, missing)


def _backends(rows: Sequence[Row], planned: Sequence[Planned]) -> list[str]:
    return sorted({r.backend for r in rows} | {p.backend for p in planned})


def _usable(row: Row) -> bool:
    return row.verdict not in NOT_JUDGED and row.ratio == row.ratio


def criteria(rows: Sequence[Row], planned: Sequence[Planned] = ()) -> list[Claim]:
    """Claims on each back end, over cells whose certificate allows it; `planned`: the cells of the grid."""
    claims = []
    for backend in _backends(rows, planned):

        def cells(
            kinds: Sequence[str],
            usable: Callable[[Row], bool],
            low: float = SUSTAINED_S,
            high: float = float("inf"),
            backend: str = backend,
        ) -> Subset:
            def expected(cell: Row | Planned) -> bool:
                return cell.kind in kinds and low <= cell.seconds < high

            return subset(backend, rows, planned, usable, expected)

        # fio always requests more: only a busy host or the device excuses a rate below its limit
        exact = cells(EXACT, _usable)
        claims += [
            exact.claim("reads, direct writes: mean error 1 %", _mean_error),
            exact.claim("reads, direct writes: all within 5 %", _largest_error),
        ]
        if backend == "fuse":  # on other back ends, the rate is fio's already
            by_fio = cells(EXACT, lambda r: _usable(r) and r.valid)
            wording = "reads, direct writes, by fio's own rate: all within 5 %"
            claims.append(by_fio.claim(wording, _by_fio))
        claims += _buffered(backend, cells(BUFFERED, lambda r: r.verdict not in NOT_JUDGED))
        mixed = cells(BOTH, lambda r: r.kind != "failed", SUSTAINED_S / 2)
        if mixed.rows or mixed.missing:
            wording = "both directions: neither above its limit by 5 %"
            claims.append(mixed.claim(wording, _neither_above))
        claims += _shaped(backend, rows, planned)
        short = cells((*EXACT, *BUFFERED), lambda r: r.seconds > 0, 0.0, SHORT_S)
        if short.rows or short.missing:
            claims.append(
                short.claim("under 0.5 s: right within 10 % or flagged", _right_or_flagged)
            )
    return claims


def notes(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Figures without a goal: back end, subject, figure."""
    result = []
    for backend in sorted({r.backend for r in rows}):
        of_backend = [r for r in rows if r.backend == backend and not r.planted]
        busy = [r for r in of_backend if r.verdict == "host-saturated" and r.seconds >= SUSTAINED_S]
        off = np.array([abs(r.ratio - 1) for r in busy if r.kind not in BOTH])
        if len(off):
            figure = f"mean error {100 * off.mean():.2f} %, largest {100 * off.max():.2f} % of {len(off)}"
            result.append((backend, "on a busy host", figure))
        valid = sum(r.valid for r in of_backend)
        result.append(
            (backend, "cells", f"{len(of_backend)} run, {valid} valid: {_verdicts(of_backend)}")
        )
    return result


def planted_limits(rows: Sequence[Row]) -> dict[str, bool]:
    """Limits that were set wrong on purpose: true if detected."""
    return {
        f"{r.backend}: limit {100 * r.planted:g} % off ({100 * (r.ratio - 1):+.1f} %, {r.verdict})": (
            not r.valid or abs(r.ratio - 1) > 0.02
        )
        for r in rows
        if r.planted
    }


def _errors(values: Iterable[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.abs(np.array([v for v in values if v == v]) - 1)


def _mean_error(rows: Sequence[Row]) -> Finding:
    off = _errors(r.ratio for r in rows)
    mean, low, high = interval(off)
    evidence = f"{100 * mean:.2f} % [{100 * low:.2f}, {100 * high:.2f}] of {len(off)}"
    return met_if(bool(mean <= 0.01), evidence)


def _largest_error(rows: Sequence[Row]) -> Finding:
    off = _errors(r.ratio for r in rows)
    evidence = f"largest {100 * off.max():.2f} %, {int((off > 0.05).sum())} beyond"
    return met_if(bool((off <= 0.05).all()), evidence)


def _by_fio(rows: Sequence[Row]) -> Finding:
    """Rate by the program itself on an emulated disk, whose own log is the other source."""
    off = _errors(r.program for r in rows)
    if not len(off):
        return Finding(Result.NOT_MEASURED, "no rate of fio")
    evidence = f"mean error {100 * off.mean():.2f} %, largest {100 * off.max():.2f} % of {len(off)}"
    return met_if(bool((off <= 0.05).all()), evidence)


def _buffered(backend: str, cells: Subset) -> list[Claim]:
    wordings = ("buffered writes: 95 % within 10 %", "buffered writes: all within 15 %")
    if backend == "cgroup1":
        evidence = "blkio does not control write-back; the back end refuses them"
        result = Result.NOT_COMPARABLE
        return [Claim(backend, wording, "", "", evidence, result) for wording in wordings]

    def most(rows: Sequence[Row]) -> Finding:
        off = _errors(r.program for r in rows)
        share = float((off <= 0.1).mean())
        evidence = f"{100 * share:.0f} % of {len(off)}, mean error {100 * off.mean():.2f} %"
        return met_if(share >= 0.95, evidence)

    def largest(rows: Sequence[Row]) -> Finding:
        off = _errors(r.program for r in rows)
        return met_if(bool((off <= 0.15).all()), f"largest {100 * off.max():.2f} %")

    return [cells.claim(wordings[0], most), cells.claim(wordings[1], largest)]


def _neither_above(rows: Sequence[Row]) -> Finding:
    most = max(r.program for r in rows)
    return met_if(most <= 1.05, f"most {100 * most:.1f} % of {len(rows)}")


def _right_or_flagged(rows: Sequence[Row]) -> Finding:
    wrong = [r for r in rows if abs(r.program - 1) > 0.1 and r.verdict not in FLAGS]
    right = sum(abs(r.program - 1) <= 0.1 for r in rows)
    evidence = f"{right} right, {len(rows) - right - len(wrong)} flagged, {len(wrong)} wrong"
    return met_if(not wrong, evidence)


def _shaped(backend: str, rows: Sequence[Row], planned: Sequence[Planned]) -> list[Claim]:
    def expected(r: Row | Planned) -> bool:
        return r.shaped if isinstance(r, Planned) else r.ks == r.ks

    cells = subset(backend, rows, planned, lambda r: r.valid, expected)
    if not cells.rows and not cells.missing:
        return []

    def quantile(name: str) -> Callable[[Sequence[Row]], Finding]:
        def evaluate(subset: Sequence[Row]) -> Finding:
            off = _errors(getattr(r, name) for r in subset)
            if not len(off):
                return Finding(Result.NOT_MEASURED, f"too few requests for {name}")
            evidence = f"largest {100 * off.max():.1f} % of {len(off)}"
            return met_if(bool(off.max() <= 0.15), evidence)

        return evaluate

    def distance(subset: Sequence[Row]) -> Finding:
        most = max(r.ks for r in subset)
        return met_if(most <= 0.1, f"largest {most:.3f} of {len(subset)}")

    claims = [
        cells.claim(f"{name} within 15 % of the draws", quantile(name)) for name in ("p50", "p99")
    ]
    return [*claims, cells.claim("KS distance at most 0.1", distance)]


def interval(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval (2,000 resamples, seed 1)."""
    draws = np.random.default_rng(1).choice(values, (2000, len(values))).mean(axis=1)
    return float(values.mean()), *(float(q) for q in np.quantile(draws, (0.025, 0.975)))


def _seen(value_ns: float, sampled_ns: np.ndarray[Any, Any], p: float, name: str) -> float:
    if len(sampled_ns) < FEWEST[name]:
        return float("nan")
    return value_ns / float(np.quantile(sampled_ns, p))


def _number(by: pd.DataFrame, metric: str, column: str) -> float:
    if metric not in by.index or by.loc[metric, column] is None:
        return float("nan")
    return float(by.loc[metric, column])


def _verdicts(rows: Iterable[Row]) -> str:
    counts = pd.Series([r.verdict for r in rows]).value_counts()
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def as_dicts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows as dictionaries."""
    return [asdict(r) for r in rows]
