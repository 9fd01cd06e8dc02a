"""Claims of the storage-layout studies: met, not met and not measured."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from studies.claims import Result, status

STUDIES = Path(__file__).parents[2] / "studies"

Row = tuple[str, str, int, float, str, float]


@pytest.fixture(scope="module", name="parts")
def _parts() -> Iterator[tuple[Any, Any]]:
    sys.path.insert(0, str(STUDIES / "storage-layout"))
    try:
        yield importlib.import_module("steps"), importlib.import_module("layout_claims")
    finally:
        sys.path.remove(str(STUDIES / "storage-layout"))
        for name in ("steps", "layout_claims", "nodes"):
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


def broken(parts: tuple[Any, Any], steps: list[Any]) -> list[str]:
    claims = parts[1].layout_claims("wiredtiger", steps)
    assert not [c for c in claims if c.result is Result.NOT_MEASURED]
    return [c.wording for c in claims if c.result is Result.NOT_MET]


def test_gain_and_break_even_with_their_intervals(parts: tuple[Any, Any]) -> None:
    steps = study(parts)
    gain = parts[1].gain(steps, "flash")
    assert gain.value == pytest.approx(10 * (0.98 * 1.03) ** (1 / 3))
    assert 9 < gain.low < gain.value < gain.high < 11
    assert parts[1].break_even(steps, "flash").value == pytest.approx(20 / 9, rel=0.01)
    assert broken(parts, steps) == []


def test_a_gain_that_is_too_small_a_pattern_or_contents_that_differ_do_not_hold(
    parts: tuple[Any, Any],
) -> None:
    assert len(broken(parts, study(parts, before_s=4.0))) == 1  # enough for flash only
    assert len(broken(parts, study(parts, before_s=1.1))) == 2
    swapped = [step(parts, ("flash", "scan-loaded", 9, 10.0, "consecutive", 0.99))]
    assert broken(parts, study(parts) + swapped) == ["scan-loaded is random in every run"]
    other_contents = [step(parts, ("flash", "scan-loaded", 9, 10.0, "random", 0.0), checksum="b")]
    assert broken(parts, study(parts) + other_contents) == [
        "the contents are the same in all steps"
    ]


def test_an_interval_that_reaches_below_the_least_gain_does_not_hold(
    parts: tuple[Any, Any],
) -> None:
    steps = study(parts)
    wild = [
        step(parts, ("flash", "scan-loaded", r, t, "random", 0.0)) for r, t in ((7, 0.4), (8, 9.0))
    ]
    wild += [step(parts, ("flash", "scan-rewritten", r, 1.0, "consecutive", 1.0)) for r in (7, 8)]
    assert any("flash" in wording for wording in broken(parts, steps + wild))


def test_time_must_follow_the_pattern_over_ten_loads(parts: tuple[Any, Any]) -> None:
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
    shares = [str(i) for i in range(10)]

    def result(times: list[float]) -> Result:
        claims = {
            c.wording.split(":")[0]: c for c in parts[1].shuffled_claims(loads(times), shares)
        }
        assert claims["hard-disk"].result is Result.NOT_MEASURED  # there is no run
        flash: Result = claims["flash"].result
        return flash

    assert result(rising) is Result.MET
    assert result(rising[:9]) is Result.NOT_MEASURED  # too few loads
    assert result(rising[::-1]) is Result.NOT_MET
    assert result([*rising[5:], *rising[:5]]) is Result.NOT_MET


@pytest.mark.parametrize("step", ["scan-loaded", "rewrite", "scan-rewritten"])
@pytest.mark.parametrize("disk", ["hard-disk", "flash"])
def test_a_removed_treatment_is_not_measured(parts: tuple[Any, Any], disk: str, step: str) -> None:
    remaining = [s for s in study(parts) if (s.levels["disk"], s.levels["step"]) != (disk, step)]
    claims = parts[1].layout_claims("wiredtiger", remaining)
    missing = {c.wording for c in claims if c.result is Result.NOT_MEASURED}
    gains = {c.wording for c in claims if c.wording.startswith(disk)}
    patterns = {c.wording for c in claims if c.wording.startswith(f"{step} is")}
    contents = {"the contents are the same in all steps"}
    assert missing == contents | patterns | (gains if step != "rewrite" else set())
    assert {c.missing for c in claims if c.wording in missing} == {(f"{disk} {step}",)}
    assert status(claims) == 3


def test_a_study_without_runs_is_not_measured(parts: tuple[Any, Any], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"factors": []}')
    steps, excluded = parts[0].steps(tmp_path)
    assert (steps, excluded) == ([], ["no run"])
    nodes = importlib.import_module("nodes")
    assert nodes.builds(tmp_path) == ([], ["no run"])
    for claims in (
        parts[1].layout_claims("wiredtiger", steps),
        parts[1].shuffled_claims(steps, ["0", "1"]),
        nodes.cassandra_claims([]),
    ):
        assert {c.result for c in claims} == {Result.NOT_MEASURED}
        assert status(claims) == 3


def test_the_program_fails_without_runs(tmp_path: Path) -> None:
    line = [sys.executable, str(STUDIES / "storage_layout.py"), "--compare", "--json", "-o"]
    done = subprocess.run([*line, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    claims = json.loads(done.stdout)["claims"]
    assert {c["of"] for c in claims} == {"wiredtiger", "postgres", "shuffled", "cassandra"}
    assert {c["result"] for c in claims} == {"not measured"}


def builds(
    parts: tuple[Any, Any], two_s: float = 5.0, kind: str = "consecutive", busy: float = 0.3
) -> Any:
    nodes = importlib.import_module("nodes")
    result = []
    for setting, time_s, files in (
        ("one-node", 10.0, 5),
        ("half-memory", 11.0, 5),
        ("two-nodes", two_s, 10),
    ):
        for replicate in (1, 2, 3):
            rows = {"class": ["consecutive"] * (files - 1) + [kind], "basis": ["faults"] * files}
            time = time_s * (1 + 0.01 * replicate)
            pattern = pd.DataFrame(rows)
            for disk in ("hard-disk", "flash"):
                # departures are those of the flash drive
                part, of_disk = (busy, time) if disk == "flash" else (0.3, 0.01 * replicate)
                if disk == "hard-disk":
                    of_disk += {"one-node": 10.0, "half-memory": 11.0, "two-nodes": 5.0}[setting]
                result.append(
                    nodes.Build("r", disk, setting, replicate, of_disk, 8.0, part, 7, pattern)
                )
    return nodes, result


def test_order_waiting_and_two_nodes(parts: tuple[Any, Any]) -> None:
    nodes, valid_builds = builds(parts)
    assert {c.result for c in nodes.cassandra_claims(valid_builds)} == {Result.MET}


def test_less_time_with_half_the_memory_meets_the_relaxed_criterion_only(
    parts: tuple[Any, Any],
) -> None:
    nodes, valid_builds = builds(parts)
    less = [
        replace(b, time_s=0.8 * b.time_s) if b.setting == "half-memory" else b for b in valid_builds
    ]
    claims = [c for c in nodes.cassandra_claims(less) if "half the memory" in c.wording]
    assert {c.result for c in claims} == {Result.NOT_MET}
    assert {c.relaxed.result for c in claims} == {Result.MET}


@pytest.mark.parametrize("setting", ["one-node", "half-memory", "two-nodes"])
def test_a_removed_setting_is_not_measured(parts: tuple[Any, Any], setting: str) -> None:
    nodes, valid_builds = builds(parts)
    rest = [b for b in valid_builds if (b.disk, b.setting) != ("flash", setting)]
    claims = nodes.cassandra_claims(rest)
    missing = [c for c in claims if c.result is Result.NOT_MEASURED]
    assert {c.missing for c in missing} == {(f"flash {setting}",)}
    assert not [c for c in missing if c.wording.startswith("hard-disk")]
    assert len([c for c in missing if c.wording.startswith("flash")]) == (
        3 if setting == "one-node" else 2
    )
    assert status(claims) == 3


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
    nodes, valid_builds = builds(parts, **planted)
    broken = [c.wording for c in nodes.cassandra_claims(valid_builds) if c.result is Result.NOT_MET]
    assert len(broken) == 1
    assert says in broken[0]
