"""Results of the runs of a storage-layout study, and the order in which they read their table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from penstock.archive.bundle import Bundle


@dataclass(frozen=True)
class Step:
    """One valid run: its levels, time [s], checksum of the read data; verdict on the reads of its table."""

    run_id: str
    levels: dict[str, str]
    replicate: int
    time_s: float
    checksum: str
    table: str
    verdict: str
    consecutive_share: float
    forward_share: float
    requests: int
    median_size_bytes: float
    sentence: str


def steps(out: Path) -> tuple[list[Step], list[str]]:
    """Valid runs of the study in `out`, and the reasons why others are excluded."""
    valid, excluded = [], []
    if not (out / "runs.parquet").exists():
        return valid, ["no run"]
    names = [f["name"] for f in json.loads((out / "plan.json").read_text())["factors"]]
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_id").to_dict("records"):
        levels = {name: str(row[name]) for name in names}
        if not row["valid"]:
            excluded.append(f"{' '.join(levels.values())} #{row['replicate']}: {row['reason']}")
            continue
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        output = dict(
            line.split(": ", 1)
            for line in (bundle.path / "stdout.txt").read_text().splitlines()
            if ": " in line
        )
        table = (bundle.path / "workload" / "table").read_text().strip()
        read = read_pattern(bundle, table)
        valid.append(
            Step(
                run_id=str(row["run_id"]),
                levels=levels,
                replicate=int(row["replicate"]),
                time_s=float(row["time"]),
                checksum=output.get("checksum", ""),
                table=table,
                verdict=str(read["class"]),
                consecutive_share=float(read["consecutive_share"]),
                forward_share=float(read["forward_share"]),
                requests=int(read["requests"]),
                median_size_bytes=float(read["median_size_bytes"]),
                sentence=str(read["sentence"]),
            )
        )
    return valid, excluded


def read_pattern(bundle: Bundle, table: str) -> dict[str, Any]:
    """Row of `patterns` on the reads of the file whose path ends in `table`: all threads, complete run."""
    rows = bundle.table("patterns").to_pandas()
    table_rows = rows[
        rows["path"].str.endswith("/" + table, na=False) & (rows["direction"] == "read")
    ]
    for part in ("tid", "phase_id"):
        if part in table_rows:
            table_rows = table_rows[table_rows[part].isna()]
    if "basis" in table_rows:
        table_rows = table_rows[table_rows["basis"] == "calls"]
    (row,) = table_rows.to_dict("records")
    return {str(k): v for k, v in row.items()}


def reads(bundle: Bundle, table: str) -> pd.DataFrame:
    """The reads of that file in order of time: `t_s` from the first of them, `offset_bytes`, `size_bytes`."""
    files = bundle.table("files").to_pandas()
    (number,) = files.loc[files["path"].str.endswith("/" + table, na=False), "file_id"]
    events = bundle.table("io_events").to_pandas()
    chosen = (events["file_id"] == number) & (events["direction"] == "read")
    table_reads = events[chosen & (events["done_bytes"] > 0)].sort_values("t_ns", kind="stable")
    t_s = (table_reads["t_ns"] - table_reads["t_ns"].min()) / 1e9
    return pd.DataFrame(
        {
            "t_s": t_s,
            "offset_bytes": table_reads["offset_bytes"],
            "size_bytes": table_reads["done_bytes"],
        }
    ).reset_index(drop=True)


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.value:.3g}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"

    @property
    def lowest(self) -> float:
        """Lower end of the interval; of one value alone, the value."""
        return self.value if np.isnan(self.low) else self.low


def mean_interval(values: Iterable[float]) -> Interval:
    """Mean with Student's interval; a single value has no interval, no value has no mean (NaN)."""
    x = np.asarray(list(values), float)
    if len(x) < 2:
        return Interval(float(x[0]) if len(x) else float("nan"), float("nan"), float("nan"))
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half))


def ratio_interval(first: Iterable[float], second: Iterable[float]) -> Interval:
    """Geometric mean of first/second, pair by pair, with the interval of the mean logarithm."""
    pairs = np.log(np.asarray(list(first), float) / np.asarray(list(second), float))
    logs = mean_interval(pairs)
    return Interval(float(np.exp(logs.value)), float(np.exp(logs.low)), float(np.exp(logs.high)))


def by_replicate(valid_steps: list[Step], **levels: str) -> dict[int, Step]:
    """The steps at these levels, by replicate."""
    return {
        s.replicate: s
        for s in valid_steps
        if all(s.levels[name] == at for name, at in levels.items())
    }


def rank_correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Spearman's."""
    return float(stats.spearmanr(x, y).statistic)
