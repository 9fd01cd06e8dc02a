"""Responses from recorded series of a run: the monitor's, a collector's, an expression of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Response
from penstock.study.load import read_study
from penstock.workload.measured import IncompleteError
from penstock.workload.responses import measure

S = 10**9
UTC = 1_700_000_000 * S
STUDY = """penstock: 1
name: energy
question: Which?
factors: {size: {levels: [1, 2]}}
platform: {nodes: [{name: n}]}
workload: {command: "true {size}"}
responses:
  it: {from: FROM, unit: "UNIT", better: lower}
"""


def response(source: str, unit: str) -> Response:
    text = STUDY.replace("FROM", source).replace("UNIT", unit)
    (measured,) = read_study(text.encode(), Path("energy.study.yaml")).responses
    return measured


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = TABLES[name].arrow
    return pa.Table.from_pylist(
        [{**dict.fromkeys(schema.names), **row} for row in rows], schema=schema
    )


@pytest.fixture
def run(tmp_path: Path) -> Bundle:
    """A run of 10 s whose workload began at 5 s: two outlets that a collector read each second, the second
    with half of its samples missing, and the monitor's share of a disk."""
    bundle = Bundle.create(tmp_path / "r001", {"run_id": "r001"})
    phases = [("prepare", 0, 5), ("workload", 5, 15), ("stop", 16, 17)]
    bundle.write_table(
        "phases",
        pa.Table.from_pylist(
            [{"phase_id": p, "start_ns": a * S, "end_ns": b * S} for p, a, b in phases]
        ),
    )
    clocks = [
        {"point": p, "monotonic_ns": t * S, "realtime_ns": UTC + t * S}
        | {"boottime_ns": t * S, "offset_ns": UTC, "offset_bound_ns": 0}
        for p, t in (("start", 0), ("end", 16))
    ]
    bundle.write_table("clocks", pa.Table.from_pylist(clocks))
    rows, series = [], []
    for number, (outlet, verdict) in enumerate((("a", "complete"), ("b", "partial"))):
        identity = {"series_id": number, "source": "pdu", "metric": "power_watts", "kind": "time"}
        labels = json.dumps({"outlet": outlet})
        series.append(identity | {"labels": labels, "unit": "W", "verdict": verdict})
        rows += [
            # 100 W before, 200 W in the workload; 10 W at the other outlet
            {"series_id": number, "utc_ns": UTC + t * S, "float": power}
            for t in range(1, 16, 1 + number)
            for power in [10.0 if number else 200.0 if t >= 5 else 100.0]
        ]
    bundle.write_table("points", table("points", rows))
    bundle.write_table("series", table("series", series))
    shares = [
        {"t_ns": t * S, "kind": "disk", "entity": "sda", "metric": "busy", "unit": "%", "value": t}
        for t in range(1, 16)
    ]
    bundle.write_table("utilisation", pa.Table.from_pylist(shares))
    return bundle


def value(bundle: Bundle, source: str, unit: str) -> float:
    measured = response(source, unit)
    return measure([measured], "none", bundle.path, "", "", 10.0, bundle)[measured.name].value


@pytest.mark.parametrize(
    ("source", "unit", "expected"),
    [
        ("{series: 'power_watts{a}'}", "W", 200),
        ("{series: 'power_watts{a}', take: integral}", "J", 2000),
        ("{series: 'power_watts{a}', take: first, phase: prepare}", "W", 100),
        ("{series: 'power_watts{a} / 2', take: max}", "W", 100),
        # 5 at the begin, 15 at the end of the phase
        ("{series: disk_busy, take: mean}", "%", 10),
        ("{series: disk_busy, take: median}", "%", 10),
        ("{series: disk_busy, take: last}", "%", 15),
        ("{series: disk_busy, take: min}", "%", 5),
        ("{series: disk_busy, take: sum}", "%", sum(range(5, 16))),
    ],
)
def test_a_number_of_a_series(run: Bundle, source: str, unit: str, expected: float) -> None:
    assert value(run, source, unit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("source", "unit", "message"),
    [
        ("{series: power_watts}", "W", "power_watts b to be partial"),
        ("{series: 'sum(power_watts)'}", "W", "power_watts b to be partial"),
        (
            "{series: 'power_watts{a}', phase: teardown}",
            "W",
            "found teardown; expected one of the run's",
        ),
        ("{series: volts}", "V", "found no series volts"),
        ("{series: 'power_watts{a}'}", "s", "W"),
        ("{series: '3 + 4'}", "1", "found a number"),
        ("{series: disk_busy, phase: stop}", "%", "no value"),
    ],
)
def test_unusable_series_are_reported(run: Bundle, source: str, unit: str, message: str) -> None:
    with pytest.raises(PenstockError, match="response it: ") as raised:
        value(run, source, unit)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("of", "unit", "expected"),
    [
        # 100 for 10 s
        ("W", "Wh", 1000 / 3600),
        ("kW", "J", 1e6),
        ("MiB/s", "GiB", 1000 / 1024),
        ("requests/min", "requests", 1000 / 60),
        ("IOPS", "requests", 1000),
        ("Mbit/s", "MB", 125),
        ("%", "s", 10),
        ("tasks", "min", 1000 / 60),
        ("1", "1", 1000),
        ("", "J", 1000),
    ],
)
def test_integrals_have_the_unit_of_the_response(
    run: Bundle, of: str, unit: str, expected: float
) -> None:
    shares = run.table("utilisation").to_pylist()
    rows = [row | {"unit": of, "value": 100} for row in shares]
    run.write_table("utilisation", pa.Table.from_pylist(rows))
    source = "{series: disk_busy, take: integral}"
    assert value(run, source, unit) == pytest.approx(expected)


@pytest.mark.parametrize(("of", "unit"), [("B", "B"), ("°C", "°C"), ("ms", "s"), ("B/s", "s")])
def test_integrals_without_a_unit_are_refused(run: Bundle, of: str, unit: str) -> None:
    rows = [row | {"unit": of} for row in run.table("utilisation").to_pylist()]
    run.write_table("utilisation", pa.Table.from_pylist(rows))
    with pytest.raises(PenstockError, match=f"in {of}: its integral over time is no"):
        value(run, "{series: disk_busy, take: integral}", unit)


def test_several_series_are_no_number(run: Bundle) -> None:
    series = run.table("series").to_pylist()
    run.write_table("series", table("series", [s | {"verdict": "unknown"} for s in series]))
    with pytest.raises(PenstockError, match=r"found 2 series .*sum\(power_watts\)"):
        value(run, "{series: power_watts}", "W")
    # the other outlet was read every other second
    assert value(run, "{series: sum(power_watts)}", "W") == pytest.approx(210)


def test_a_run_that_lacks_samples_has_no_response_of_its_monitor(run: Bundle) -> None:
    run.manifest["receipts"] = {"monitor": {"expected": 100, "samples": 50, "complete": "partial"}}
    with pytest.raises(IncompleteError, match=r"response it: found .*busy sda to be partial"):
        value(run, "{series: disk_busy}", "%")
    assert value(run, "{series: 'power_watts{a}'}", "W") == pytest.approx(200)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{series: 'a + §'}", "an expression of series"),
        ("{series: a, take: most}", "mean"),
        ("{series: a, file: x}", "file"),
    ],
)
def test_mistakes_in_the_study_are_reported(source: str, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        response(source, "W")
    assert message in str(raised.value)
