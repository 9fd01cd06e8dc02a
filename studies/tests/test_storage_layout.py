"""Claims of the storage-layout studies: what they accept and what they must refuse."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

STUDIES = Path(__file__).parents[2] / "studies"

Row = tuple[str, str, int, float, str, float]


@pytest.fixture(scope="module", name="parts")
def _parts() -> Iterator[tuple[Any, Any]]:
    sys.path.insert(0, str(STUDIES / "storage-layout"))
    try:
        yield importlib.import_module("steps"), importlib.import_module("claims")
    finally:
        sys.path.remove(str(STUDIES / "storage-layout"))
        for name in ("steps", "claims", "nodes"):
            sys.modules.pop(name, None)


def step(parts: tuple[Any, Any], row: Row, checksum: str = "a") -> Any:
    disk, name, replicate, time_s, verdict, share = row
    levels = {"disk": disk, "step": name}
    size = 28672.0
    return parts[0].Step(
        "r", levels, replicate, time_s, checksum, "t", verdict, share, 0.5, 99, size, ""
    )


def study(parts: tuple[Any, Any], before_s: float = 10.0, after_s: float = 1.0) -> list[Any]:
    rows: list[Row] = []
    for disk in ("hard-disk", "flash"):
        for replicate, noise in enumerate((0.98, 1.0, 1.03), 1):
            rows += [
                (disk, "scan-loaded", replicate, before_s * noise, "random", 0.001),
                (disk, "rewrite", replicate, 2 * before_s, "random", 0.001),
                (disk, "scan-rewritten", replicate, after_s, "consecutive", 0.996),
            ]
    return [step(parts, row) for row in rows]


def broken(parts: tuple[Any, Any], found: list[Any]) -> list[str]:
    return [c.says for c in parts[1].layout_claims("wiredtiger", found) if c.holds is False]


def test_gain_and_break_even_with_their_intervals(parts: tuple[Any, Any]) -> None:
    found = study(parts)
    gain = parts[1].gain(found, "flash")
    assert gain.value == pytest.approx(10 * (0.98 * 1.03) ** (1 / 3))
    assert 9 < gain.low < gain.value < gain.high < 11
    assert parts[1].break_even(found, "flash").value == pytest.approx(20 / 9, rel=0.01)
    assert broken(parts, found) == []


def test_a_gain_that_is_too_small_a_pattern_or_contents_that_differ_do_not_hold(
    parts: tuple[Any, Any],
) -> None:
    assert len(broken(parts, study(parts, before_s=4.0))) == 1  # enough for flash only
    assert len(broken(parts, study(parts, before_s=1.1))) == 2
    swapped = [step(parts, ("flash", "scan-loaded", 9, 10.0, "consecutive", 0.99))]
    assert broken(parts, study(parts) + swapped) == ["scan-loaded is random in every run"]
    other = [step(parts, ("flash", "scan-loaded", 9, 10.0, "random", 0.0), checksum="b")]
    assert broken(parts, study(parts) + other) == ["the contents are the same in all steps"]


def test_an_interval_that_reaches_below_the_least_gain_does_not_hold(
    parts: tuple[Any, Any],
) -> None:
    found = [s for s in study(parts) if s.levels["disk"] == "flash"]
    wild = [
        step(parts, ("flash", "scan-loaded", r, t, "random", 0.0)) for r, t in ((7, 0.4), (8, 9.0))
    ]
    wild += [step(parts, ("flash", "scan-rewritten", r, 1.0, "consecutive", 1.0)) for r in (7, 8)]
    assert any("flash" in says for says in broken(parts, found + wild))


def test_time_has_to_follow_the_pattern_over_ten_loads(parts: tuple[Any, Any]) -> None:
    def loads(times: list[float]) -> list[Any]:
        return [
            parts[0].Step(
                "r",
                {"disk": "flash", "shuffled": str(i)},
                1,
                t,
                "a",
                "t",
                "x",
                1 - i / 20,
                0.5,
                9,
                1.0,
                "",
            )
            for i, t in enumerate(times)
        ]

    rising = [float(t) for t in range(1, 11)]
    (claim,) = parts[1].shuffled_claims(loads(rising))
    assert claim.holds
    assert not parts[1].shuffled_claims(loads(rising[:9]))[0].holds  # too few loads
    assert not parts[1].shuffled_claims(loads(rising[::-1]))[0].holds
    assert not parts[1].shuffled_claims(loads([*rising[5:], *rising[:5]]))[0].holds


def builds(
    parts: tuple[Any, Any], two_s: float = 5.0, kind: str = "consecutive", busy: float = 0.3
) -> Any:
    nodes = importlib.import_module("nodes")
    made = []
    for setting, time_s, files in (
        ("one-node", 10.0, 5),
        ("half-memory", 11.0, 5),
        ("two-nodes", two_s, 10),
    ):
        for replicate in (1, 2, 3):
            rows = {"class": ["consecutive"] * (files - 1) + [kind], "basis": ["faults"] * files}
            time = time_s * (1 + 0.01 * replicate)
            pattern = pd.DataFrame(rows)
            made.append(nodes.Build("r", "flash", setting, replicate, time, 8.0, busy, 7, pattern))
    return nodes, made


def test_order_waiting_and_two_nodes(parts: tuple[Any, Any]) -> None:
    nodes, made = builds(parts)
    assert all(c.holds for c in nodes.cassandra_claims(made))


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ({"two_s": 7.0}, "two nodes"),
        ({"two_s": 3.0}, "two nodes"),
        ({"kind": "random"}, "every data file"),
        ({"busy": 0.7}, "less than half"),
    ],
)
def test_planted_departures_do_not_hold(
    parts: tuple[Any, Any], planted: dict[str, Any], says: str
) -> None:
    nodes, made = builds(parts, **planted)
    broken = [c.says for c in nodes.cassandra_claims(made) if c.holds is False]
    assert len(broken) == 1
    assert says in broken[0]
