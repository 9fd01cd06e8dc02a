"""Goals for rows: a median compared with a number.

A simulation is the work of one thread and is evaluated by its CPU time, which other load on a busy host does
not change. Cases that use all cores are evaluated by wall time.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench import record
from bench.record import Row


@dataclass(frozen=True)
class Bar:
    """Goal of every row with this engine and metric whose case starts with `case`: at least or at most
    `limit`.
    """

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
    Bar("weak scaling, DSS", TRAINS, "R2 of CPU time against nodes", True, 0.99),
    Bar("weak scaling, WOSS", TRAINS, "R2 of CPU time against nodes", True, 0.99),
    Bar("10000 configurations", TRAINS, "wall time", False, 60.0),
    Bar("predictions", "penstock, predict", "node seconds of the run per CPU second", True, 2000),
)


#: deviations of either sign: metric and engine → limit
DEVIATIONS = {
    ("makespan beside frames", TRAINS): 2.0,
    ("beside the closed form", FRAMES): 1.0,
}
#: cases that the page shows in addition to those with a goal
QUOTED = ("times faster than", "peak resident memory", "of it by the simulation")


def with_verdicts(rows: list[Row]) -> list[Row]:
    """All rows with their verdicts, and a row on the cost of placement near the data."""
    evaluated = [_with_verdict(row) for row in rows]
    evaluated = [{**r, "quoted": _quoted(r)} for r in evaluated]
    return [*evaluated, *_cheaper(rows)]


def _quoted(row: Row) -> bool:
    shown = row["metric"].startswith(QUOTED) or row["engine"].startswith("published")
    return "bar" in row or shown


def _with_verdict(row: Row) -> Row:
    for bar in BARS:
        if (row["engine"], row["metric"]) == (bar.engine, bar.metric) and row["case"].startswith(
            bar.case
        ):
            return (record.at_least if bar.at_least else record.at_most)(row, bar.limit)
    if row["case"].startswith("Montage") and (row["engine"], row["metric"]) == (TRAINS, "CPU time"):
        return record.at_most(row, 1.0 if "1000 hosts" in row["case"] else 0.2)
    limit = DEVIATIONS.get((row["metric"], row["engine"]))
    if limit is None:
        return row
    verdict = record.MET if abs(row["value"]) <= limit else record.MISSED
    return {**row, "bar": f"within {limit:g} {row['unit']}", "verdict": verdict}


def _cheaper(rows: list[Row]) -> list[Row]:
    """Weak scaling: placement near the data causes fewer events, so it costs less (Costa 2014)."""
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
    share = record.share(
        "weak scaling", FRAMES, "sizes at which WOSS costs less", below, len(pairs)
    )
    return [{**share, "quoted": True}]
