"""Published figures (Costa 2014) of another simulator on one node with CPUs of 2007 (Xeon E5345, 2.33 GHz).

They show the size of the task. Ratios to penstock's times do not compare the programs.
"""

from __future__ import annotations

from typing import Any

ENGINE = "published, other hardware"
REAL = "published, real run"


def _row(
    case: str, engine: str, metric: str, value: float, unit: str, n: int, *ends: float
) -> dict[str, Any]:
    low, high = ends or (value, value)
    return {
        "case": case,
        "engine": engine,
        "metric": metric,
        "value": value,
        "unit": unit,
        "low": low,
        "high": high,
        "n": n,
    }


def rows() -> list[dict[str, Any]]:
    """`n` 0: not stated in the text."""
    medium, large = "reduce, 20 nodes, medium, DSS", "reduce, 20 nodes, large, DSS"
    largest = "reduce, 1000 nodes, large"
    return [
        _row("events", ENGINE, "events/s", 1.535e6, "1/s", 0, 1.25e6, 1.82e6),
        _row(medium, ENGINE, "wall time", 0.041, "s", 10),
        _row(medium, REAL, "makespan", 4.5, "s", 15),
        _row(large, ENGINE, "wall time", 0.3, "s", 10),
        _row(large, REAL, "makespan", 39.0, "s", 15),
        _row(f"{largest}, DSS", ENGINE, "wall time", 37.0, "s", 10),
        _row(f"{largest}, WOSS", ENGINE, "wall time", 25.0, "s", 10),
    ]
