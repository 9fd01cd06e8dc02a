"""The bars (spec PR-T-1 to T-3), judged on rows: a median against a number.

One simulation is one thread's work and is judged by its CPU time, which on an idle core is the wall time
and on a busy host is not the neighbours'. What uses all cores is judged by wall time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """Every row with this engine and metric whose case starts with `case` must be at least or at most
    `limit`."""

    case: str
    engine: str
    metric: str
    at_least: bool
    limit: float


FRAMES, TRAINS = "penstock, frames", "penstock, trains"
BARS = (
    Bar("events,", FRAMES, "events/s of CPU time", True, 10e6),
    Bar("events,", TRAINS, "chunk requests/s of CPU time", True, 1e6),
    Bar("reduce, 20 nodes, medium, DSS", FRAMES, "CPU time", False, 0.008),
    Bar("reduce, 20 nodes, large, DSS", FRAMES, "CPU time", False, 0.080),
    Bar("reduce, 20 nodes, medium, DSS", TRAINS, "CPU time", False, 0.004),
    Bar("reduce, 20 nodes, large, DSS", TRAINS, "CPU time", False, 0.030),
    Bar("reduce, 1000 nodes, large, DSS", FRAMES, "CPU time", False, 7.0),
    Bar("reduce, 1000 nodes, large, DSS", TRAINS, "CPU time", False, 1.0),
    Bar("weak scaling, DSS", FRAMES, "R2 of CPU time against nodes", True, 0.99),
    Bar("weak scaling, WOSS", FRAMES, "R2 of CPU time against nodes", True, 0.99),
    Bar("10000 configurations", TRAINS, "wall time", False, 60.0),
)


def verdicts(rows: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """One sentence and whether it holds, for every bar that some row was measured for."""
    found = []
    for bar in BARS:
        for row in rows:
            if (row["engine"], row["metric"]) == (bar.engine, bar.metric) and row[
                "case"
            ].startswith(bar.case):
                found.append(_judged(row, bar.at_least, bar.limit))
    for row in rows:
        if row["case"].startswith("Montage") and row["metric"] == "CPU time":
            if row["engine"] == TRAINS:
                limit = 1.0 if "1000 hosts" in row["case"] else 0.2
                found.append(_judged(row, False, limit))
        elif row["metric"] == "makespan beside frames" and row["engine"] == TRAINS:
            found.append(_judged({**row, "value": abs(row["value"])}, False, 2.0))
    return found + _cheaper(rows)


def _judged(row: dict[str, Any], at_least: bool, limit: float) -> tuple[str, bool]:
    word = "at least" if at_least else "at most"
    text = (
        f"{row['case']}, {row['engine']}: {row['metric']} {row['value']:.4g} {row['unit']}, "
        f"{word} {limit:g}"
    )
    return text, row["value"] >= limit if at_least else row["value"] <= limit


def _cheaper(rows: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Weak scaling: placement near the data makes fewer events, so it costs less (seed 003 L1269)."""
    cost = {
        row["case"]: row["value"]
        for row in rows
        if row["case"].startswith("weak scaling, ")
        and (row["engine"], row["metric"]) == (FRAMES, "CPU time")
    }
    pairs = [(c, c.replace("WOSS", "DSS")) for c in cost if c.endswith("WOSS")]
    if not pairs:
        return []
    below = sum(cost[woss] < cost[dss] for woss, dss in pairs)
    return [(f"weak scaling: WOSS below DSS at {below} of {len(pairs)} sizes", below == len(pairs))]
