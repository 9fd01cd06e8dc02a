"""What the cells of the validation grid delivered, and whether the criteria hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cells import Cell, said

from penstock.analyse.fidelity.fidelity_counters import fidelity_of_counters
from penstock.archive.bundle import Bundle
from penstock.emulate.backends.counters import as_table

#: shorter than this, a cell is sustained by nobody [s]
SUSTAINED_S = 3.8
#: shorter than this, a rate may be flagged instead of right [s]
SHORT_S = 0.5
#: sleeps of 10 ms that take longer by this share: the host had no processor for who needed one
LATE = 0.1
#: processors busier than this have no time for who asks next
BUSY = 0.9
#: counts from which a quantile or a distance can be judged
FEWEST = {"p50": 100, "p99": 1000, "ks": 300}


@dataclass(frozen=True)
class Row:
    """One cell in one direction. `ratio`: delivered over asked; `asked` are the draws on `fuse`, the limit on
    throttled devices, whose `ratio` is that of the windows after the first slice, but where a few requests
    make a window: there it is the program's. `program` is what fio said over the limit."""

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


@dataclass(frozen=True)
class Criterion:
    """One bar: what it asks, what was found, and whether it holds (None: nothing to judge)."""

    of: str
    asks: str
    found: str
    holds: bool | None


def kind_of(engine: str, pattern: str, direct: bool, direction: str) -> str:
    """Which bar a cell is measured by."""
    if engine == "mmap" and "write" in pattern:
        return "mapped"  # a page must be read before it is written: both directions at once
    if pattern in ("readwrite", "randrw"):
        return "mixed"
    if direction == "write":
        return "direct write" if direct else "buffered write"
    return "read"


def fuse_rows(out: Path, *, limit_of: dict[str, float] | None = None) -> list[Row]:
    """The runs of a study in `out`, valid or not; `limit_of`: limit [B/s] by level, where it has one."""
    names = [f["name"] for f in json.loads((out / "plan.json").read_text())["factors"]]
    rows = []
    for run in pd.read_parquet(out / "runs.parquet").sort_values("run_id").to_dict("records"):
        levels = {name: str(run[name]) for name in names}
        if levels.get("engine") == "mmap" and levels.get("path") == "direct":
            continue  # there is no such cell: the file is mapped all the same
        bundle = Bundle.open(out / "runs" / str(run["run_id"]))
        rows += _of_run(bundle, run, levels, limit_of or {})
    return rows


def _of_run(
    bundle: Bundle, run: dict[str, Any], levels: dict[str, str], limit_of: dict[str, float]
) -> list[Row]:
    text = bundle.path / "workload" / "fio.json"
    if not text.exists():
        return []
    spoken = said(text.read_text())
    certificate = bundle.table("fidelity").to_pandas()
    by = certificate.set_index("metric")
    requests = bundle.table("device_requests").to_pandas()
    limit = limit_of.get(levels.get("limit", "4m"), float("nan"))
    direct = levels.get("path", "direct") == "direct"
    out = []
    for direction, mine in spoken.items():
        drawn = requests[requests["op"].astype(str) == direction]
        asked_ns = (drawn["wait_ns"] + drawn["service_ns"]).to_numpy(float)
        distance = float("nan")
        if direct and len(asked_ns) >= FEWEST["ks"] and "depth" in levels:
            bins = latencies(text.read_text(), direction)
            distance = ks_distance(bins, asked_ns)
        out.append(
            Row(
                backend="fuse",
                cell=" ".join(levels.values()),
                kind=kind_of(levels.get("engine", ""), levels["pattern"], direct, direction),
                seconds=mine["seconds"],
                ratio=_number(by, "rate", "ratio"),
                program=mine["bytes"] / mine["seconds"] / limit if mine["seconds"] else np.nan,
                verdict=str(certificate["verdict"].iloc[0]),
                valid=bool(run["valid"]),
                reason=str(run["reason"]),
                p50=_seen(mine["p50_ns"], asked_ns, 0.5, "p50") if distance == distance else np.nan,
                p99=_seen(mine["p99_ns"], asked_ns, 0.99, "p99")
                if distance == distance
                else np.nan,
                ks=distance,
                n=len(asked_ns),
            )
        )
    return out


def throttled_rows(found: dict[str, Any]) -> list[Row]:
    """The cells that `throttled.py` ran."""
    rows = []
    for result in found["results"]:
        cell = Cell(**result["cell"])
        backend = str(result.get("backend", "throttled"))
        if result["error"]:
            rows.append(Row(backend, cell.name, "failed", 0.0, float("nan"), float("nan"), "failed",
                            False, result["error"], planted=cell.planted))  # fmt: skip
            continue
        # judged against what was asked for, which a planted failure does not set
        windows = [
            w | {"limit_bps": float(cell.limit_bps) if w["limit_bps"] else None}
            for w in result["windows"]
        ]
        by = {"disk_id": windows[0]["disk_id"], "backend": backend} if windows else {}
        certificate = fidelity_of_counters(as_table(windows), **by).overall.to_pylist()
        for direction, mine in result["fio"].items():
            (row,) = [r for r in certificate if r["metric"] == f"rate_{direction}"]
            ratio = float(row["ratio"]) if row["ratio"] is not None else float("nan")
            mean_bytes = mine["bytes"] / max(1.0, mine["ops"])
            if "buffered" in cell.name and direction == "read":
                mean_bytes = max(mean_bytes, 128 * 1024)  # readahead
            if 3 * mean_bytes > 0.02 * cell.limit_bps * mine["seconds"]:
                ratio = mine["bytes"] / mine["seconds"] / cell.limit_bps
            if result["late"] > LATE or result["busy"] > BUSY:
                words = (f"sleeps were {100 * result['late']:.0f} % late, processors "
                         f"{100 * result['busy']:.0f} % busy")  # fmt: skip
                row |= {"verdict": "host-saturated", "valid": False, "reason": words}
            rows.append(
                Row(
                    backend=backend,
                    cell=cell.name,
                    kind=kind_of(cell.engine, cell.pattern, cell.direct, direction),
                    seconds=mine["seconds"],
                    ratio=ratio,
                    program=mine["bytes"] / mine["seconds"] / cell.limit_bps,
                    verdict=row["verdict"],
                    valid=bool(row["valid"]),
                    reason=row["reason"],
                    n=int(mine["ops"]),
                    planted=cell.planted,
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
    bins: np.ndarray[Any, np.dtype[np.float64]], asked_ns: np.ndarray[Any, Any]
) -> float:
    """Largest difference of two distribution functions: latencies in bins, and drawn times.

    A bin of fio is 1/64 wide; two times nearer than that are not told apart, so drawn times are compared at
    the edges of a bin and the smaller difference is taken (Kolmogorov-Smirnov, one resolution wide).
    """
    if len(bins) == 0 or len(asked_ns) == 0:
        return float("nan")
    values, weights = bins[:, 0], np.cumsum(bins[:, 1]) / bins[:, 1].sum()
    drawn = np.sort(asked_ns)
    low = np.searchsorted(drawn, values * (1 - 1 / 64), side="right") / len(drawn)
    high = np.searchsorted(drawn, values * (1 + 1 / 64), side="right") / len(drawn)
    over = np.maximum(weights - high, 0.0)
    under = np.maximum(low - weights, 0.0)
    return float(max(over.max(), under.max()))


def criteria(rows: Sequence[Row]) -> list[Criterion]:
    """The bars, each back end by itself, over cells whose certificate lets them be judged."""
    out = []
    for backend in sorted({r.backend for r in rows}):
        mine = [r for r in rows if r.backend == backend and not r.planted]
        good = [r for r in mine if r.valid]
        # fio always asks for more, so what is below its limit has no excuse but a busy host or the device
        judged = [r for r in mine if r.verdict not in ("host-saturated", "device-bound", "failed")]
        long = [r for r in judged if r.seconds >= SUSTAINED_S]
        exact = [r.ratio for r in long if r.kind in ("read", "direct write")]
        out += _exact(backend, exact)
        if backend == "fuse":  # the others' are fio's already
            out += _by_fio(
                [r.program for r in long if r.valid and r.kind in ("read", "direct write")]
            )
        buffered = [r.program for r in long if r.kind == "buffered write"]
        if backend != "cgroup1":  # which says itself that it does not honour them
            out += _buffered(backend, buffered)
        mixed = [r for r in mine if r.kind in ("mixed", "mapped") and r.seconds >= SUSTAINED_S / 2]
        if mixed:
            most = max(r.program for r in mixed)
            out.append(Criterion(backend, "both directions: neither above its limit by 5 %",
                                 f"most {100 * most:.1f} % of {len(mixed)}", most <= 1.05))  # fmt: skip
        shaped = [r for r in good if r.ks == r.ks]
        if shaped:
            out += _shaped(backend, shaped)
        busy = [r for r in mine if r.verdict == "host-saturated" and r.seconds >= SUSTAINED_S]
        if busy:
            off = np.array(
                [abs(r.ratio - 1) for r in busy if r.kind not in ("mixed", "mapped")] or [np.nan]
            )
            out.append(Criterion(backend, "on a busy host (not judged)",
                                 f"mean error {100 * off.mean():.2f} %, largest "
                                 f"{100 * off.max():.2f} % of {len(off)}", None))  # fmt: skip
        short = [r for r in mine if 0 < r.seconds < SHORT_S and r.kind not in ("mixed", "mapped")]
        if short:
            flags = ("too-short", "burst", "device-bound", "not-honoured", "host-saturated")
            wrong = [r for r in short if abs(r.program - 1) > 0.1 and r.verdict not in flags]
            right = sum(abs(r.program - 1) <= 0.1 for r in short)
            out.append(Criterion(backend, "under 0.5 s: right within 10 % or flagged",
                                 f"{right} right, {len(short) - right - len(wrong)} flagged, "
                                 f"{len(wrong)} wrong", not wrong))  # fmt: skip
        out.append(
            Criterion(
                backend, "cells", f"{len(mine)} made, {len(good)} valid: " + _verdicts(mine), None
            )
        )
    planted = [r for r in rows if r.planted]
    for row in planted:
        found = not row.valid or abs(row.ratio - 1) > 0.02
        words = f"{100 * (row.ratio - 1):+.1f} %, {row.verdict}"
        out.append(
            Criterion(row.backend, f"planted: limit {100 * row.planted:g} % off", words, found)
        )
    return out


def _exact(backend: str, ratios: list[float]) -> list[Criterion]:
    if not ratios:
        return [Criterion(backend, "reads, direct writes: mean error 1 %", "no cells", None)]
    off = np.abs(np.array(ratios) - 1)
    mean, low, high = interval(off)
    words = f"{100 * mean:.2f} % [{100 * low:.2f}, {100 * high:.2f}] of {len(off)}"
    worst = f"largest {100 * off.max():.2f} %, {int((off > 0.05).sum())} beyond"
    return [
        Criterion(backend, "reads, direct writes: mean error 1 %", words, bool(mean <= 0.01)),
        Criterion(
            backend, "reads, direct writes: all within 5 %", worst, bool((off <= 0.05).all())
        ),
    ]


def _by_fio(ratios: list[float]) -> list[Criterion]:
    """What the program itself counted of a disk of the model, whose own log says the rest."""
    off = np.abs(np.array([r for r in ratios if r == r]) - 1)
    asks = "reads, direct writes, by fio's own rate: all within 5 %"
    if not len(off):
        return [Criterion("fuse", asks, "no cells", None)]
    words = f"mean error {100 * off.mean():.2f} %, largest {100 * off.max():.2f} % of {len(off)}"
    return [Criterion("fuse", asks, words, bool((off <= 0.05).all()))]


def _buffered(backend: str, ratios: list[float]) -> list[Criterion]:
    if not ratios:
        return [Criterion(backend, "buffered writes: 95 % within 10 %", "no cells", None)]
    off = np.abs(np.array(ratios) - 1)
    share = float((off <= 0.1).mean())
    words = f"{100 * share:.0f} % of {len(off)}, mean error {100 * off.mean():.2f} %"
    return [
        Criterion(backend, "buffered writes: 95 % within 10 %", words, share >= 0.95),
        Criterion(backend, "buffered writes: all within 15 %",
                  f"largest {100 * off.max():.2f} %", bool((off <= 0.15).all())),
    ]  # fmt: skip


def _shaped(backend: str, rows: list[Row]) -> list[Criterion]:
    out = []
    for name in ("p50", "p99"):
        off = [abs(getattr(r, name) - 1) for r in rows if getattr(r, name) == getattr(r, name)]
        if off:
            out.append(Criterion(backend, f"{name} within 15 % of the draws",
                                 f"largest {100 * max(off):.1f} % of {len(off)}",
                                 max(off) <= 0.15))  # fmt: skip
    most = max(r.ks for r in rows)
    out.append(Criterion(backend, "KS distance at most 0.1", f"largest {most:.3f} of {len(rows)}",
                         most <= 0.1))  # fmt: skip
    return out


def interval(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval (2,000 resamples, seed 1)."""
    draws = np.random.default_rng(1).choice(values, (2000, len(values))).mean(axis=1)
    return float(values.mean()), *(float(q) for q in np.quantile(draws, (0.025, 0.975)))


def _seen(value_ns: float, asked_ns: np.ndarray[Any, Any], p: float, name: str) -> float:
    if len(asked_ns) < FEWEST[name]:
        return float("nan")
    return value_ns / float(np.quantile(asked_ns, p))


def _number(by: pd.DataFrame, metric: str, column: str) -> float:
    if metric not in by.index or by.loc[metric, column] is None:
        return float("nan")
    return float(by.loc[metric, column])


def _verdicts(rows: Iterable[Row]) -> str:
    counts = pd.Series([r.verdict for r in rows]).value_counts()
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def as_dicts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """As plain values."""
    return [asdict(r) for r in rows]
