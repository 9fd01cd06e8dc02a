"""Sensitivity of the prediction to every assumed value, one at a time, and what to measure next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

#: smaller reductions of the interval's relative width do not justify a measurement
WORTH = 0.05
#: values whose removal from the interval is simulated, largest swing first
TRIED = 3

#: prefix of a value's path (`*` for one name) → measurement method
METHODS: tuple[tuple[str, str], ...] = (
    (
        "hosts.*.storage",
        "penstock profile DIR on a host of {group}, DIR on its storage: gives read and write service times",
    ),
    (
        "hosts.*.manager",
        "time files of 0 bytes written through the store (penstock trace -- CMD): "
        "mu = (mean time − 4 control messages) / 2",
    ),
    (
        "hosts.*.client",
        "time files of 0 bytes written through the store (penstock trace -- CMD) from one client",
    ),
    (
        "hosts.*.speed",
        "penstock trace -- CMD of one task on a host of {group}: its computing time over the workload's",
    ),
    ("hosts.*.slots", "penstock platform import on a host of {group}"),
    ("hosts.*.network", "a network test between two hosts of {group} (iperf3), both directions"),
    ("network.loopback", "a network test of a host with itself (iperf3 to 127.0.0.1)"),
    ("network.latency", "round trips between two hosts (ping), halved"),
    ("network", "a network test between two hosts (iperf3); several pairs at once for the fabric"),
    ("launch", "penstock trace -- CMD of a few empty tasks as the scheduler starts them"),
    ("power", "a power meter (RAPL, IPMI or the rack's) at idle and under each load"),
    ("store", "the configuration of the store that will be used"),
    ("protocol", "a packet capture of one write of the store"),
)


@dataclass(frozen=True)
class Uncertain:
    """An unmeasured value of the platform: its path, its value, its range, as base-unit numbers.

    `text` is the value in the file.
    """

    path: str
    value: float
    low: float
    high: float
    text: str = ""
    low_text: str = ""
    high_text: str = ""
    note: str = ""


def how_to_measure(path: str) -> str:
    """The command or method that measures the value at a path of the platform file."""
    parts = path.split(".")
    for pattern, method in METHODS:
        pattern_parts = pattern.split(".")
        if len(parts) >= len(pattern_parts) and all(
            w in ("*", p) for w, p in zip(pattern_parts, parts, strict=False)
        ):
            return method.format(group=parts[1] if parts[0] == "hosts" and len(parts) > 1 else "")
    return "measure it, or look it up in the maker's data sheet"


def elasticity(value_low: float, value_high: float, low_s: float, high_s: float) -> float | None:
    """Elasticity of the makespan over the value's range (per cent per per cent); None unless all are above
    0."""
    numbers = (value_low, value_high, low_s, high_s)
    if min(numbers) <= 0 or value_low == value_high or math.inf in numbers:
        return None
    return math.log(high_s / low_s) / math.log(value_high / value_low)


def sensitivity_rows(
    values: Sequence[Uncertain],
    makespan_s: float,
    ends: Sequence[tuple[float, float]],
    chance_s: Sequence[float] = (),
) -> list[Row]:
    """One row per value, largest change of the makespan first, preceded by values for which no run ends.

    `ends` are the mean makespans in seconds with the value at its low and at its high end, all else equal and
    with the same seeds; infinite if the run cannot end there, None in the row. `chance_s` is the standard
    error of each value's larger difference over the seeds.
    """
    rows: list[Row] = []
    chances = chance_s or [0.0] * len(values)
    for value, (low_s, high_s), chance in zip(values, ends, chances, strict=True):
        extremes = [s for s in (low_s, high_s, makespan_s) if math.isfinite(s)]
        rows.append(
            {
                "path": value.path,
                "value": value.text or value.value,
                "low": value.low_text or value.low,
                "high": value.high_text or value.high,
                "makespan_low_s": _finite(low_s),
                "makespan_high_s": _finite(high_s),
                "change_low": _change(low_s, makespan_s),
                "change_high": _change(high_s, makespan_s),
                "swing_s": max(extremes) - min(extremes),
                "chance_s": chance,
                "elasticity": elasticity(value.low, value.high, low_s, high_s),
                "method": how_to_measure(value.path),
                "note": value.note,
            }
        )
    rows.sort(key=lambda r: (None not in (r["change_low"], r["change_high"]), -r["swing_s"]))
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _change(value: float, beside: float) -> float | None:
    if not math.isfinite(value):
        return None
    return value / beside - 1 if beside else 0.0


def measure_next(
    rows: Sequence[Row],
    width_s: float,
    width_without: Callable[[str], float],
    related: Callable[[str], bool] = lambda _: True,
) -> Row:
    """The value whose measurement would narrow the interval most.

    `width_s` is the interval's current width; `width_without(path)` simulates it with that value fixed at its
    current one and the others uncertain. Only the values with the largest swings are tried, without those
    whose swing may be chance (below two standard errors) or is unrelated to the simulated runs
    (`related(path)`). If none narrows it by 5 %, `path` is None and `why` names the remaining uncertainty.
    """
    tried: list[tuple[float, Row]] = []
    if width_s > 0:
        for row in rows[:TRIED]:
            if row["swing_s"] > 2 * row["chance_s"] and related(row["path"]):
                tried.append((1 - width_without(row["path"]) / width_s, row))
    best = max(tried, key=lambda t: t[0], default=None)
    if best is None or best[0] < WORTH:
        why = "no assumed value widens the interval by 5 % or more: what remains is chance"
        return {"path": None, "narrows": 0.0, "method": None, "why": why}
    narrows, row = best
    return {
        "path": row["path"],
        "narrows": narrows,
        "width_s": width_s,
        "width_if_known_s": width_s * (1 - narrows),
        "method": row["method"],
        "why": f"its range, {row['low']} to {row['high']}, changes the makespan by {row['swing_s']:.3g} s",
    }
