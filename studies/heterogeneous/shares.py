"""Replica that the clients of the load-balance study used, between the changes of the disks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from penstock.archive.bundle import Bundle

#: the windows between the changes, in order
WINDOWS = ("before", "first", "second", "after")
#: time after a change in which clients may still react, ignored if both disks are equal again [s]
SETTLES_S = 1.0


@dataclass(frozen=True)
class ClientRun:
    """Requests of one run. `at_s`: start of each, after the first change; `to_second`: True for s-1."""

    run_id: str
    client: str
    valid: bool
    changes_s: tuple[float, ...]
    at_s: npt.NDArray[np.float64]
    to_second: npt.NDArray[np.bool_]
    latency_s: npt.NDArray[np.float64]

    def _within(self, window: str) -> npt.NDArray[np.bool_]:
        edges = (-np.inf, *self.changes_s, np.inf)
        i = WINDOWS.index(window)
        begin, end = edges[i], edges[i + 1]
        if window == "after":
            begin += SETTLES_S
        return (self.at_s >= begin) & (self.at_s < end)

    def share(self, window: str) -> float:
        """Share of s-1 in a window."""
        return float(self.to_second[self._within(window)].mean())

    def requests(self, *windows: str) -> int:
        """Requests in some windows."""
        return sum(int(self._within(w).sum()) for w in windows)

    def series(self, step_s: float = 1.0) -> npt.NDArray[np.float64]:
        """Two rows: the middle of each step [s], and the share of s-1 in it."""
        edges = np.arange(np.floor(self.at_s.min()), self.at_s.max(), step_s)
        step = np.digitize(self.at_s, edges) - 1
        n = np.bincount(step, minlength=len(edges))
        share = np.bincount(step, self.to_second, len(edges)) / np.maximum(n, 1)
        return np.array([edges + step_s / 2, np.where(n > 0, share, np.nan)])


def client_runs(out: Path, *, invalid: bool) -> tuple[list[ClientRun], list[str]]:
    """Valid runs of the study in `out` (`invalid`: all that ended normally), and reasons why others are
    excluded.
    """
    runs, excluded = [], []
    if not (out / "runs.parquet").exists():
        return runs, ["no run"]
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_order").to_dict("records"):
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        usable = row["valid"] or (invalid and bundle.manifest["exit_status"] == 0)
        if not row["valid"]:
            excluded.append(f"{row['run_id']} ({row['client']}): {row['reason']}")
        if usable:
            runs.append(_read_run(bundle, str(row["client"]), bool(row["valid"])))
    return runs, excluded


def _read_run(bundle: Bundle, client: str, valid: bool) -> ClientRun:
    events = bundle.table("events").to_pandas()
    changes = np.array(sorted(events.groupby("planned_ns")["applied_ns"].max()))
    lines = pd.read_csv(
        bundle.path / "workload" / "requests.txt",
        sep=" ",
        names=["t_ns", "server", "latency_ns"],
    )
    zero = changes[0]
    return ClientRun(
        bundle.path.name,
        client,
        valid,
        tuple((changes - zero) / 1e9),
        (lines["t_ns"].to_numpy() - zero) / 1e9,
        (lines["server"] == "s-1").to_numpy(),
        lines["latency_ns"].to_numpy() / 1e9,
    )
