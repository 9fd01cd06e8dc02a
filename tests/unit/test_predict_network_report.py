"""Page, figures, text and trace of a prediction."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.analyse.statistics.prediction_intervals import calibrate, order_statistics
from penstock.archive.documents import PREDICTION
from penstock.errors import PenstockError
from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import find_bottleneck
from penstock.parts.prediction.queue_network.applies import (
    Applies,
    Conditions,
    ReadAhead,
    Reason,
    judge,
)
from penstock.parts.prediction.queue_network.perfetto import slots_of, trace_events, write_trace
from penstock.parts.prediction.report import prediction_text
from penstock.parts.prediction.report.prediction import page, write_figures
from penstock.parts.prediction.report.prediction_figures import FIGURES, draw, timeline
from penstock.report import style
from penstock.text import HEADLINE
from penstock.workload.events import GROUP_COMMITS, MAPPED
from tests.examples.prediction import prediction, station


def test_answer_names_time_bottleneck_cost_and_energy() -> None:
    p = replace(
        prediction(), makespan_s=4.8, interval=order_statistics([4.6 + i / 76 for i in range(39)])
    )
    assert p.energy is not None
    conclusion = prediction_text.answer(p)
    sentence = conclusion.headline
    assert len(sentence.split()) <= HEADLINE
    assert sentence.startswith(
        "montage takes 4.8 s (90 % between 4.61 and 5.09 s); the bottleneck is the "
    )
    assert sentence.endswith("in-queue of nodes-0, 97 % busy.")
    points = dict(conclusion.points)
    assert re.fullmatch(r"0\.31 EUR, [\d.]+ kJ\.", points["Cost"])
    assert points["Model"].startswith("applies")
    single_run = replace(p, interval=order_statistics([4.8]), cost=None, energy=None)
    assert "Cost" not in dict(prediction_text.answer(single_run).points)
    assert prediction_text.answer(single_run).headline.endswith(
        "(one run simulated, no interval); the bottleneck is the in-queue of nodes-0, 97 % busy."
    )
    few = replace(p, interval=order_statistics([4.6, 4.7, 4.8, 4.9, 5.0]))
    assert "(66.6 % between 4.6 and 5 s)" in prediction_text.answer(few).headline
    few = replace(p, interval=replace(few.interval, attained=0.57))
    assert "(57 % between 4.6 and 5 s)" in prediction_text.answer(few).headline


def test_outside_of_the_model_the_answer_is_not_predicted() -> None:
    p = replace(
        prediction(),
        applies=Applies.of([Reason("clients", "outside", "four clients write at once")]),
    )
    conclusion = prediction_text.answer(p)
    assert conclusion.headline == "Not predicted: four clients write at once."
    assert conclusion.points[0][0] == "Unknown"
    assert "decides nothing: montage takes " in conclusion.points[0][1]
    assert "Model" not in dict(conclusion.points)
    assert prediction_text.document(p)["headline"] == conclusion.headline
    text = page(p).partition('id="applies"')[0]
    assert f'<div class="answer">{conclusion.headline}</div>' in text
    assert re.findall(r"<b>([^<]*)</b>", text)[0] == "outside"


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        (
            Conditions(writers=("cephfs", 0.45)),
            "Not predicted: several clients write to cephfs at once for 45 % of the tasks' time, which no "
            "measurement calibrates (runs on CephFS took up to 1.5 times as long).",
        ),
        (
            Conditions(read_ahead=ReadAhead("cephfs", 16 << 20, 1 << 20, 0.5)),
            "Not predicted: clients of cephfs read 16 MiB ahead into a cache of 1 MiB and fetch them again "
            "(a real run took 2.2 times as long).",
        ),
        (
            Conditions(unmodelled={MAPPED: 3, "waits of synchronous writes": 1}),
            "Not predicted: the workload has 3 mapped files: most accesses of mapped files leave no trace.",
        ),
        (
            Conditions(unmodelled={GROUP_COMMITS: 1200}),
            "Not predicted: the workload has 1,200 flushes of files that several threads flush in turn "
            "(group commit): the number of flushes depends on the store's speed.",
        ),
        (
            Conditions(saturated=(6, 9)),
            "Not predicted: the host was saturated in 6 of 9 rounds of the seeding: the service times are "
            "those of the processors.",
        ),
        (
            Conditions(throttled={"storage-0": 0.85, "client-0": 0.6}),
            "Not predicted: storage-0 was at its processor limit in 85 % of the periods of the seeding: the "
            "service times are those of the processors.",
        ),
    ],
)
def test_answer_outside_of_the_model_gives_the_reason(
    conditions: Conditions, sentence: str
) -> None:
    p = replace(prediction(), applies=judge(conditions))
    conclusion = prediction_text.answer(p)
    assert conclusion.headline == sentence
    assert len(sentence.split()) <= HEADLINE
    assert prediction_text.document(p)["headline"] == sentence


def test_interval_of_too_few_runs_has_its_level() -> None:
    p = replace(prediction(), interval=order_statistics([4.0, 5.0, 6.0]))
    assert "(50 % between 4 and 6 s)" in prediction_text.answer(p).headline
    few = replace(p, interval=calibrate(p.interval, 5.0, [0.1] * 8, False))
    assert "(50 % between 4 and 6 s)" in prediction_text.answer(few).headline, (
        "too few pairs do not calibrate"
    )
    enough = replace(p, interval=calibrate(p.interval, 5.0, [0.1] * 9, False))
    assert "(90 % between 4.5 and 5.5 s)" in prediction_text.answer(enough).headline


def test_stations_of_one_kind_are_one_bottleneck() -> None:
    """Twenty in-queues with 4 % of the critical path each exceed one storage server with 15 %."""
    rows = [station(f"h{i}/in", f"h{i}", "net_in", 0.8, 10, 0.04) for i in range(20)]
    rows.append(station("h3/storage", "h3", "storage", 0.5, 10, 0.15))
    rows = [r | {"critical_share": r["critical_s"] / 10} for r in rows]
    bottleneck = find_bottleneck(rows)
    assert bottleneck is not None
    assert (bottleneck.kind, bottleneck.kind_share) == ("net_in", pytest.approx(0.8))
    assert bottleneck.text == "the in-queue of h0"
    assert find_bottleneck([]) is None


@pytest.mark.parametrize(("tasks", "hosts", "slots"), [(20, 4, 1), (1000, 50, 1), (60, 3, 4)])
def test_page_is_self_contained(tasks: int, hosts: int, slots: int) -> None:
    p = prediction(tasks, hosts, slots)
    text = page(p)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]+"', text)
    assert "url(http" not in text
    assert "default-src 'none'" in text
    for section in (
        "answer",
        "applies",
        "bottleneck",
        "timeline",
        "stages",
        "sensitivity",
        "energy",
    ):
        assert f'id="{section}"' in text
    assert text.count('class="wide"') == text.count('class="narrow"') == len(FIGURES)
    # each task has a tooltip in both forms of the timeline
    assert len(re.findall(r'data-tip="m[A-Za-z]+-\d+ \(', text)) == 2 * tasks
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert len(text) < 1_500_000


def test_missing_parts_are_stated() -> None:
    p = replace(
        prediction(20, 4),
        tasks=None,
        sensitivity=None,
        measure_next=None,
        frequencies=None,
        energy=None,
    )
    text = page(p)
    assert "made without its tasks" in text
    assert "has no assumed or estimated values" in text
    assert "states no power" in text


def test_page_warns_outside_of_the_model() -> None:
    text = page(replace(prediction(20, 4), applies=Applies("outside")))
    assert "do not base decisions on this prediction" in text


def test_timeline_has_every_task_and_marks_critical_ones() -> None:
    p = prediction(1000, 50)
    assert p.tasks is not None
    with style.look():
        fig = timeline(p, style.WIDE_INCHES)
    collections = [c for c in fig.axes[0].collections if c.get_paths()]
    assert sum(len(c.get_paths()) for c in collections) == 1000
    outlined = [c for c in collections if c.get_linewidth()[0] > 1]
    assert sum(len(c.get_paths()) for c in outlined) == sum(t["critical"] for t in p.tasks)
    ticks = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert 10 <= len(ticks) <= 50
    with pytest.raises(style.NotDrawn):
        draw(replace(p, tasks=None), "timeline", 7.6)


def test_figures_are_written(tmp_path: Path) -> None:
    written = write_figures(prediction(40, 5), tmp_path / "figures")
    assert {p.name for p in written} == {f"{n}.{e}" for n in FIGURES for e in ("svg", "pdf")}
    assert all(p.stat().st_size > 2000 for p in written)


def test_tables_fit_a_terminal() -> None:
    p = prediction()
    for table in (
        prediction_text.stage_table(p),
        prediction_text.station_table(p),
        prediction_text.frequency_table(p),
    ):
        widths = [
            max(len(c.lstrip("#")), *(len(r[i]) for r in table.rows)) + 2
            for i, c in enumerate(table.columns)
        ]
        assert sum(widths) <= 100, table.title


# ---------------------------------------------------------------- trace


def nested(slices: list[dict[str, Any]]) -> bool:
    """True if slices of one thread nest: each starts within an open slice and ends no later."""
    open_ends: list[int] = []
    for event in slices:
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            return False
        open_ends.append(end)
    return True


@pytest.mark.parametrize(("tasks", "hosts", "slots"), [(200, 20, 1), (300, 4, 3)])
def test_trace_has_hosts_as_processes_and_nested_slices(
    tmp_path: Path, tasks: int, hosts: int, slots: int
) -> None:
    p = prediction(tasks, hosts, slots)
    path = tmp_path / "trace.json"
    write_trace(p, path)
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == sorted({t["host"] for t in p.tasks or []})
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in slices} == threads
    assert len(threads) <= hosts * slots
    assert len(slices) == tasks * 5
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(slices))
    for thread in threads:
        assert nested([e for e in slices if (e["pid"], e["tid"]) == thread])
    critical = [e for e in slices if "critical" in e["cat"].split(",")]
    assert len(critical) == sum(t["critical"] for t in p.tasks or [])


def test_concurrent_tasks_never_share_a_slot() -> None:
    def task(start: float, end: float) -> dict[str, Any]:
        return {"host": "h", "start_s": start, "end_s": end}

    rows = [task(0, 4), task(0, 2), task(1, 3), task(2, 5), task(3, 6)]
    assert slots_of(rows) == [0, 1, 2, 1, 2]


def test_span_outside_its_task_does_not_nest() -> None:
    """A span that ends after its task does not nest."""
    p = prediction(20, 4)
    assert p.tasks is not None
    bad = [dict(t) for t in p.tasks]
    bad[0]["spans"] = [dict(s) for s in bad[0]["spans"]]
    bad[0]["spans"][-1]["end_s"] = bad[0]["end_s"] + 1e-6
    events = [e for e in trace_events(bad) if e["ph"] == "X"]
    first = next(e for e in events if e["name"] == bad[0]["name"])
    own = [e for e in events if (e["pid"], e["tid"]) == (first["pid"], first["tid"])]
    assert not nested(own)


def test_prediction_without_tasks_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="without its tasks"):
        write_trace(replace(prediction(20, 4), tasks=None), tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- document


def test_every_key_of_the_document_has_a_description() -> None:
    values = prediction_text.document(prediction(20, 4))
    document = json.loads(json.dumps(values, allow_nan=False))
    assert document["schema"] == PREDICTION.schema
    described = [k.path.replace("?", "") for k in PREDICTION.keys]
    assert {d.split(".")[0].removesuffix("[]") for d in described} == set(document)
    for part in ("interval", "stages", "stations", "hosts", "applies"):
        value = document[part][0] if isinstance(document[part], list) else document[part]
        names = {
            d.split(".")[1].removesuffix("[]")
            for d in described
            if re.match(rf"{part}(\[\])?\.", d)
        }
        assert names == set(value), part


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (4.6, 5.1, "4.6 and 5.1 s"),
        (517.38, 518.61, "517.4 and 518.6 s"),
        (0.0021, 0.0034, "2.1 and 3.4 ms"),
        (3600.0, 7400.0, "1 and 2.06 h"),
        (1.0, float("inf"), "1 s and unbounded"),
        (2.0, 2.0, "2 and 2 s"),
    ],
)
def test_range_of_two_times(low: float, high: float, text: str) -> None:
    assert quantities.seconds_range(low, high) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1234.5, "1,230"),
        (999.6, "1,000"),
        (-2.5, "−2.5"),
        (1e-12, "1.00e−12"),
    ],
)
def test_digits(value: float, text: str) -> None:
    assert quantities.digits(value) == text
