"""Ambiguous levels are printed with their factor, and quantities in a suitable unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.findings.answer import answering
from penstock.analyse.findings.findings import findings
from penstock.analyse.outcome import FactorLevels, Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.treatments.means import means_table, ranked_columns, ranked_lines
from penstock.archive.series.series import Recorded, Series
from penstock.design.plan import make_plan
from penstock.parts.prediction.quantities import seconds
from penstock.plugins import FIGURE_KINDS
from penstock.report import sections
from penstock.report.figures.chart import chart_of, draw, gaps_of
from penstock.report.figures.effects import costs as effect_costs
from penstock.study.load import read_study
from penstock.text import duration, fitting, measured, number, quantities, quantity, size
from tests.unit.test_spread import study_of

NAN, INF = float("nan"), float("inf")


def outcome_of(
    factors: dict[str, str], unit: str, mean: Callable[[dict[str, str]], float]
) -> Outcome:
    """A study of four replicates with a noise of 1 %."""
    text = study_of(factors, "{kind: full, replicates: 4}").source_text
    text = text.replace("unit: s", f"unit: {unit}").replace(
        "from: wall_s", "from: {regex: 'y=(.*)'}"
    )
    study = read_study(text.encode(), Path("plain.study.yaml"))
    plan = make_plan(study)
    draws = np.random.default_rng(3)
    rows: list[dict[str, Any]] = [
        {
            "run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate, **r.levels,
            "took": mean(r.levels) * (1 + 0.01 * draws.normal()), "valid": True,
        }
        for r in plan.rows
    ]  # fmt: skip
    runs = pd.DataFrame(rows)
    document = {"question": "Which disk should the log have?", "factors": {}}
    document |= {"responses": {"took": {"unit": unit, "better": "lower"}}}
    table = effects(runs, plan, "took", scale="log")
    return Outcome(Path("."), plan.to_json(), document, runs, table, None, None)


@pytest.fixture(scope="module")
def two_disks() -> Outcome:
    disk = "{levels: [hdd, ssd]}"

    def mean(levels: dict[str, str]) -> float:
        slow = {"hdd": 1.0, "ssd": 0.0}
        data, log = slow[levels["data_disk"]], slow[levels["log_disk"]]
        return 100 + 30 * data + 200 * log + 60 * data * log

    return outcome_of({"data_disk": disk, "log_disk": disk}, "s", mean)


def test_answer_names_the_factor_of_ambiguous_levels(two_disks: Outcome) -> None:
    statements = [f.statement for f in answering(two_disks, findings(two_disks))]
    assert statements[0].startswith("Choose data_disk ssd + log_disk ssd: ")
    for statement in statements:
        for level in ("hdd", "ssd"):
            before = statement.split(level)[:-1]
            assert all(part.endswith(("data_disk ", "log_disk ")) for part in before), statement


def test_tables_and_figures_name_the_factor_of_ambiguous_levels(two_disks: Outcome) -> None:
    lines = "\n".join(ranked_lines(two_disks))
    assert "data_disk ssd, log_disk ssd" in lines
    cost = sections.cost_of_main(two_disks)
    assert cost is not None
    assert "log_disk hdd" in sections.costs_caption(two_disks, cost)
    table = sections.costs_table(two_disks, cost)
    assert table is not None
    assert "log_disk" in table["columns"][1]["name"]
    fig = effect_costs(two_disks, two_disks.responses[0], 7)
    texts = " ".join(t.get_text() for t in fig.findobj(lambda a: hasattr(a, "get_text")))
    assert "cost of log_disk" in texts
    assert json.loads(means_table(two_disks)["levels"][0].as_py()) == {
        "data_disk": "ssd", "log_disk": "ssd",
    }  # fmt: skip


def test_unambiguous_levels_are_unchanged() -> None:
    outcome = outcome_of(
        {"disk": "{levels: [hdd, ssd]}", "cache": "{levels: [small-one, large-one]}"},
        "s", lambda levels: 2.0 if levels["disk"] == "hdd" else 1.0,
    )  # fmt: skip
    assert outcome.phrase({"disk": "ssd", "cache": "large-one"}) == "ssd, large-one"
    assert not any(f.ambiguous for f in outcome.factors)
    assert FactorLevels("jobs", ["1", "8"]).phrase("8") == "8 jobs"


def test_small_times_are_in_nanoseconds() -> None:
    outcome = outcome_of(
        {"lock": "{levels: [mutex, spin]}"},
        "s", lambda levels: 2.1e-7 if levels["lock"] == "mutex" else 4.3e-7,
    )  # fmt: skip
    statements = " ".join(f.statement for f in findings(outcome))
    assert (
        "took is 210 ns" in statements
        or "took is 209 ns" in statements
        or "took is 211 ns" in statements
    )
    assert "0.000000" not in statements
    heads, rows = ranked_columns(outcome)
    assert heads[2] == "#took (ns)"
    assert 200 < float(rows[0][2]) < 220
    runs = sections.all_runs(outcome)
    assert runs is not None
    assert "took (ns)" in str(runs["columns"])
    assert all("0.00" not in str(table) for table in [runs, sections.ranked(outcome)])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.1e-7, "s", "210 ns"),
        (0.0123, "s", "12.3 ms"),
        (0.5, "s", "0.500 s"),
        (12.345, "s", "12.3 s"),
        (3600, "s", "3,600 s"),
        (-3.2e-5, "s", "−32.0 µs"),
        (5.1e6, "ns", "5.10 ms"),
        (210, "us", "210 us"),
        (1.5e6, "us", "1.50 s"),
        (41.23, "MiB/s", "41.2 MiB/s"),
        (0.002, "MiB/s", "2.05 KiB/s"),
        (123456789, "B/s", "118 MiB/s"),
        (18400, "1/s", "18,400/s"),
        (2.1e-7, "1", "2.10e−7"),
        (3e-5, "requests", "3.00e−5 requests"),
        (2.5e18, "requests", "2.50e18 requests"),
        (0, "s", "0 s"),
        (NAN, "s", "–"),
        (INF, "s", "–"),
        (9.9996, "s", "10.0 s"),
        (2e-5, "J", "20.0 µJ"),
    ],
)
def test_quantities_have_three_digits_and_a_suitable_unit(
    value: float, unit: str, text: str
) -> None:
    assert quantity(value, unit) == text


def test_a_range_has_one_unit() -> None:
    assert quantities([2.01e-7, 4.3e-7], "s") == "201 to 430 ns"
    assert quantities([0.0, 2.1e-7], "s") == "0 to 210 ns"
    assert quantities([0.05, 1.2], "s") == "0.0500 to 1.20 s"
    assert quantities([NAN, NAN], "s") == "–"
    assert fitting([], "s") == (1.0, "s")
    assert fitting([NAN], "s") == (1.0, "s")


def test_times_and_sizes_as_text() -> None:
    assert [duration(ns) for ns in (0, 999.7, 1500, 2.5e9, 3.6e12)] == [
        "0 ns", "1 µs", "1.5 µs", "2.5 s", "3,600 s",
    ]  # fmt: skip
    assert [size(n) for n in (0, 999, 1000, 4096, 1 << 60)] == [
        "0 B", "999 B", "0.977 KiB", "4 KiB", "1 EiB",
    ]  # fmt: skip
    assert seconds(2.1e-7) == "210 ns"
    assert measured(123456.7, "1") == "123,500"
    assert [number(v) for v in (0.000123, 1e-9, 999.96, -0.0)] == [
        "0.000123", "1.00e−9", "1,000", "0",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", list(FIGURE_KINDS))
def test_infinite_values_are_gaps_in_figures(kind: str) -> None:
    from tests.unit.test_plot_series import for_kind

    recorded = for_kind(kind)
    series = []
    for original in recorded.series:
        y = np.array(original.y, float)
        y[1], y[2], y[3] = INF, -INF, NAN
        x = np.array(original.x, float)
        x[-1] = INF
        series.append(
            Series(
                original.name,
                x,
                y,
                original.unit,
                original.node,
                original.quantity,
                original.run,
                original.group,
            )
        )
    with_gaps = Recorded(**{**vars(recorded), "series": series})
    draw(chart_of(kind, recorded), with_gaps).canvas.draw()
    assert all("3 of" in message for message in gaps_of(with_gaps))
    assert gaps_of(recorded) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs", "1 job"),
        ("cpus", "1 cpu"),
        ("threads_per_node", "1 thread per node"),
        ("delay_ms", "1 delay ms"),
        ("timeout_s", "1 timeout s"),
        ("status", "1 status"),
        ("iops", "1 iops"),
    ],
)
def test_only_a_plural_loses_its_s(name: str, text: str) -> None:
    """A delay of 1 ms was "1 delay m"."""
    assert FactorLevels(name, ["1", "8"]).phrase("1") == text
