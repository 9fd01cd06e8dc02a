"""Findings appear exactly for the effects that the generated tables contain."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.analyse.findings.answer import answer
from penstock.analyse.findings.finding import SEVERITIES, Finding
from penstock.analyse.findings.findings import CODES, findings, write_findings
from penstock.analyse.findings.study_findings import agreement
from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.fraction import half_against_full
from penstock.analyse.treatments.costs import factor_cost, focal_factor
from penstock.analyse.treatments.means import ranking
from penstock.campaign.analysis import analyse
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.text import concise, difference, estimate, percents, quantity, span, times, up_to
from tests.examples.report import BANDWIDTH, write_example
from tests.unit.answered_studies import CASES
from tests.unit.planted_study import Planted
from tests.unit.recorded_study import record, study_text


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("study") / "out", events=300)


def by_code(result: list[Finding], code: str) -> list[Finding]:
    return [f for f in result if f.code == code]


def test_codes_and_severities_are_published(out: Path) -> None:
    results = findings(out)
    assert results
    for finding in results:
        assert finding.code in CODES
        assert finding.severity in SEVERITIES


def test_focal_factor_is_named_in_the_question(out: Path) -> None:
    assert focal_factor(Outcome.read(out), "bandwidth") == "pattern"


def test_cost_is_the_ratio_of_the_true_means(out: Path) -> None:
    outcome = Outcome.read(out)
    cost = factor_cost(outcome, outcome.responses[0], "pattern")
    assert cost is not None
    assert (cost.level, cost.other, cost.missing) == ("random", "sequential", 0)
    for cell in cost.cells:
        disk, size, jobs = (cell.where[k] for k in ("disk", "block_size", "jobs"))
        expected = (
            BANDWIDTH[(disk, "sequential", size, jobs)] / BANDWIDTH[(disk, "random", size, jobs)]
        )
        assert cell.ratio == pytest.approx(expected, rel=0.06)
        assert cell.low < cell.ratio < cell.high
    assert cost.worst.where == {"disk": "hdd-7200", "block_size": "4KiB", "jobs": "1"}


def test_cost_of_two_of_three_levels_equals_the_ranking(tmp_path: Path) -> None:
    """The interval of best against worst of three levels is adjusted as in the ranking."""
    study = CASES["nothing-significant"].study
    outcome = Outcome.read(analyse(study.write(tmp_path / "out"), report=False).out)
    response = outcome.responses[0]
    cost = factor_cost(outcome, response, "scheduler")
    assert cost is not None
    (cell,) = cost.cells
    worst = ranking(outcome, response).treatments[-1]
    assert cell.high / cell.low == pytest.approx(worst.behind_high / worst.behind_low)
    assert cell.n == 6


def test_answer_has_cost_remedy_and_main_factor(out: Path) -> None:
    conclusion = answer(Outcome.read(out))
    assert conclusion is not None
    sentences = conclusion.sentences
    assert sentences[0].startswith(
        "Yes: random instead of sequential divides bandwidth by up to 320 with hdd-7200, 4KiB block size, "
    )
    assert "their geometric mean is 11×" in conclusion.first.detail
    assert "sata-ssd + 128KiB block size + 8 jobs" in sentences[1]
    assert sentences[2].startswith("Best: sata-ssd + sequential + 128KiB block size + 8 jobs: ")
    assert re.search(r"Main factor: disk: 5[5-8] % of the variation ", " ".join(sentences))


def test_remedy_does_not_worsen_the_better_level(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=40, invalid=())
    runs = pd.read_parquet(out / "runs.parquet")
    hdd = runs["disk"] == "hdd-7200"
    many = runs["jobs"] == "8"
    sequential = runs["pattern"] == "sequential"
    runs["bandwidth"] = 100.0 + 0.001 * runs["run_order"]
    runs.loc[hdd, "bandwidth"] = 1.0 + 0.001 * runs.loc[hdd, "run_order"]
    runs.loc[hdd & sequential & ~many, "bandwidth"] = 20.0
    runs.loc[~hdd & ~sequential & ~many, "bandwidth"] = 30.0
    runs.to_parquet(out / "runs.parquet")
    (remedy,) = by_code(findings(out), "remedy")
    assert remedy.statement == (
        "sata-ssd + 8 jobs reduces it to 1.1× or less; sata-ssd reduces it from 4.4× "
        "to 1.8× on average."
    )


def test_missing_combinations_leave_the_question_open(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=40)
    runs = pd.read_parquet(out / "runs.parquet")
    runs.loc[(runs["disk"] == "hdd-7200") & (runs["pattern"] == "random"), "valid"] = False
    runs.to_parquet(out / "runs.parquet")
    result = findings(out)
    (cost,) = by_code(result, "cost")
    assert cost.severity == "warning"
    assert cost.statement.startswith("Open: 4 of 8 combinations have no valid run; ")
    assert not by_code(result, "fraction-misleads") + by_code(result, "fraction-agrees")


def test_unplanned_combinations_are_not_missing(tmp_path: Path) -> None:
    study = Planted(
        "How much do many threads cost?",
        {"cache": [100, 300, 500], "threads": [4, 16, 28], "batch": [10, 50, 90]},
        lambda v: {"latency": 20 + int(v["threads"]) / 2},
        {"latency": ("ms", "lower")},
        kind="{central-composite: {centre: 3}}",
    )
    (cost,) = by_code(findings(analyse(study.write(tmp_path / "out"), report=False).out), "cost")
    assert re.match(
        r"28 threads instead of 4 threads multiplies latency by 1\.[56] \(.*\), much the same in all 5 "
        r"combinations that were run\.",
        cost.statement,
    )
    assert (cost.confidence, cost.what_to_do) == ("clear", "")


def test_nonsignificant_is_not_no_effect(tmp_path: Path) -> None:
    result = findings(write_example(tmp_path / "out", events=40, flat=True, invalid=()))
    sentences = " ".join(f.statement for f in result)
    assert by_code(result, "cost")[0].statement.startswith("No: ")
    assert by_code(result, "effect-none") or by_code(result, "effect-bound")
    assert "not “no effect”" in sentences + " ".join(f.what_to_do for f in result)


def test_invalid_failed_and_missing_runs_are_distinguished(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=40, invalid=("r003",), failed=("r005", "r006"))
    runs = pd.read_parquet(out / "runs.parquet")
    runs[runs["run_id"] != "r020"].to_parquet(out / "runs.parquet")
    result = findings(out)
    assert by_code(result, "run-invalid")[0].evidence["run_id"] == ["r003"]
    assert by_code(result, "run-failed")[0].evidence["run_id"] == ["r005", "r006"]
    assert by_code(result, "run-failed")[0].severity == "error"
    assert by_code(result, "run-missing")[0].evidence["run_id"] == ["r020"]


def test_saturated_hosts_and_honoured_disks(tmp_path: Path) -> None:
    bad = findings(write_example(tmp_path / "bad", events=40, invalid=("r003",)))
    assert by_code(bad, "fidelity-host-saturated")[0].evidence["run_id"] == ["r003"]
    assert not by_code(bad, "fidelity-honoured")
    good = findings(write_example(tmp_path / "good", events=40, invalid=()))
    assert by_code(good, "fidelity-honoured")
    assert not by_code(good, "fidelity-host-saturated")


def test_lost_events_are_reported(tmp_path: Path) -> None:
    result = findings(write_example(tmp_path / "out", events=40, lost=1))
    (lost,) = by_code(result, "observer-lost")
    assert "32 events were lost in 32 runs" in lost.statement
    assert not by_code(findings(write_example(tmp_path / "none", events=40)), "observer-lost")


def test_unresolved_page_faults_are_separate(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=40)
    manifest = next((out / "runs").glob("*/manifest.json"))
    values = json.loads(manifest.read_text())
    values["receipts"]["trace"] |= {"lost": 3, "per_probe": {"faults": {"lost_unresolved": 3}}}
    manifest.write_text(json.dumps(values))
    (finding,) = by_code(findings(out), "observer-lost")
    assert finding.severity == "info"
    assert "3 page faults in 1 run (r0" in finding.statement


def test_prediction_agreement_excludes_the_basis(out: Path, tmp_path: Path) -> None:
    table = pd.read_parquet(out / "predictions.parquet")
    assert agreement(table)[:2] == (14, 15)
    assert by_code(findings(out), "prediction-agrees")
    bad = write_example(tmp_path / "out", events=40, prediction_error=0.6)
    assert by_code(findings(bad), "prediction-departs")[0].severity == "warning"


def test_half_fraction_is_wrong_for_the_true_interaction(out: Path) -> None:
    compared = half_against_full(Outcome.read(out), "bandwidth")
    assert compared is not None
    wrong = {r["term"] for r in compared["rows"] if r["wrong"]}
    assert "disk:pattern" in wrong
    for row in compared["rows"]:
        if not row["wrong"]:
            assert abs(row["half"] - row["full"]) <= max(
                row["half_high"] - row["half"], 0.1 * abs(row["full"]) + 1e-9
            )


def test_findings_of_single_runs_are_valid_json(tmp_path: Path) -> None:
    """A cost without an interval was NaN as JSON of "analyse" and "report", and in the table."""
    text = study_text(
        dict.fromkeys("AB", "{levels: [low, high]}"), "{kind: full, replicates: 1}"
    ).replace("question: Which?", "question: Does A cost anything?")
    out = record(tmp_path, text, lambda r: {"y": 10 + 5 * (r.coded["A"] > 0) + r.run_order / 10})
    (cost,) = by_code(analyse(out, report=False).findings, "cost")
    assert math.isnan(cost.evidence["cells"][0]["low"])
    no_nan = lambda name: pytest.fail(name)  # noqa: E731
    for verb in ("analyse", "report"):
        result = CliRunner().invoke(_build(), [verb, str(out), "--json"])
        (row,) = (
            f
            for f in json.loads(result.stdout, parse_constant=no_nan)["findings"]
            if f["code"] == "cost"
        )
        assert row["evidence"]["cells"][0]["low"] is None
    for evidence in pq.read_table(out / "findings.parquet")["evidence"].to_pylist():
        json.loads(evidence, parse_constant=no_nan)


def test_findings_are_written_as_a_table(out: Path) -> None:
    written = write_findings(out)
    table = pq.read_table(out / "findings.parquet").to_pylist()
    assert [r["code"] for r in table] == [f.code for f in written]
    assert all(isinstance(json.loads(r["evidence"]), dict) for r in table)


def test_numbers_as_text() -> None:
    assert [times(x) for x in (1.0, 1.04, 1.14, 9.94, 12.3, 317.2)] == [
        "1.00×",
        "1.04×",
        "1.1×",
        "9.9×",
        "12×",
        "320×",
    ]
    assert [difference(x) for x in (1.12, 0.67, 1.004, 1.0)] == ["12 %", "33 %", "0.4 %", "0 %"]
    assert percents(-0.012, 0.09) == "−1 to 9 %"
    assert percents(0.003, 0.011) == "0.3–1.1 %"
    assert up_to(1.42) == "up to 42 %"
    assert up_to(2.3) == "up to a factor of 2.3"
    assert estimate(889.4, 873.2, 905.1, "1/s") == "889/s (873–905)"
    assert estimate(0.0412, 0.04, 0.0423, "s") == "41.2 ms (40.0–42.3)"
    assert estimate(2.5, math.nan, math.nan, "s") == "2.50 s"
    assert span("−3", "2") == "−3 to 2"
    assert concise("one two three", "one", most=2) == "one"
    assert quantity(0.04123, "MiB/s") == "42.2 KiB/s"
    assert quantity(-1234.5, "ms") == "−1,230 ms"


def test_not_a_directory_of_results(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither"):
        findings(tmp_path)
    with pytest.raises(BadInput, match="no such directory"):
        findings(tmp_path / "nowhere")


def test_factor_of_three_levels_can_be_the_main_factor(out: Path) -> None:
    outcome = Outcome.read(out)
    assert outcome.effects is not None
    plain = by_code(findings(outcome), "effect-dominant")
    table = outcome.effects.copy()
    row = table[table["term"] == "jobs"].iloc[0].copy()
    row[["term", "variation_share", "p_value"]] = ["jobs", 99.0, 1e-6]
    row[["coefficient", "effect", "ci_low", "ci_high", "effect_ci_low", "effect_ci_high"]] = np.nan
    altered = replace(
        outcome, effects=pd.concat([table[table["term"] != "jobs"], row.to_frame().T])
    )
    finding = by_code(findings(altered), "effect-dominant")[0]
    assert finding.statement.startswith("jobs: 99 % of the variation in bandwidth")
    assert "F test, p = 3.7e-06 of all terms together" in finding.detail
    assert plain[0].statement != finding.statement
