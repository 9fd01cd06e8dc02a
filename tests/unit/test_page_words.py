"""Texts of a report's page: commands as code, numbers of causes, units and cautions."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from penstock.analyse.findings.findings import findings
from penstock.analyse.findings.study_findings import _causes
from penstock.analyse.outcome import Outcome
from penstock.campaign.analysis import analyse
from penstock.report import sections
from penstock.report.html import write_report
from penstock.report.page import coded, template
from penstock.text import first_of, first_reason, listed, times
from tests.examples.report import write_example
from tests.unit.answered_studies import CASES
from tests.unit.planted_study import Planted


def test_text_between_backticks_is_code() -> None:
    assert coded("run `penstock run <a> --resume` & wait") == (
        "run <code>penstock run &lt;a&gt; --resume</code> &amp; wait"
    )
    assert "coded" in template("report.html.j2").environment.filters


def test_ranges_and_units_have_no_line_break_outside_code() -> None:
    assert coded("17 % (14–20 %), 46.7 ms in 3 runs, `sleep 1 s`, 5.1 MiB/s") == (
        "17\u00a0% (14\u2060–\u206020\u00a0%), 46.7\u00a0ms in 3 runs, <code>sleep 1 s</code>, "
        "5.1\u00a0MiB/s"
    )


@pytest.mark.parametrize(
    ("reason", "causes"),
    [
        (
            "node1.data: the host's processors were 97 % busy, 88 % by processes outside the run",
            ["the host's processors were busy"],
        ),
        (
            "node1.data: time is +4.3 % off (limit 3 %); 5 % of the replies were late (limit 5 %; mean "
            "lateness 313 us); replies were overdue for 0.00537 s, of which the host explains 0.00537 s",
            ["time is off", "the replies were late", "replies were overdue"],
        ),
        ("the workload ended with status 7: no such table, really", None),
    ],
)
def test_causes_without_their_numbers(reason: str, causes: list[str] | None) -> None:
    result = _causes(reason)
    if causes is None:
        assert result[0].endswith("no such table, really")
    else:
        assert result == causes


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0057, "0.0057×"), (0.039, "0.039×"), (0.33, "0.33×"), (12.4, "12×")]
)
def test_small_ratios_keep_two_digits(ratio: float, text: str) -> None:
    assert times(ratio) == text


def test_first_reason() -> None:
    assert first_reason("a 1 ms; b; a 1 ms; c") == "a 1 ms (and 2 more)"
    assert first_reason("a 1 ms") == "a 1 ms"


def test_long_lists_end_with_the_number_of_the_others() -> None:
    assert listed(first_of(["a", "b", "c"], 3)) == "a, b and c"
    assert listed(first_of(["a", "b", "c", "d"], 2), "or") == "a, b or 2 more"


def test_a_column_of_effects_has_one_unit(tmp_path: Path) -> None:
    """Two effects differ by a factor of 1,000."""
    study = Planted(
        "Which factors matter?",
        {name: ["off", "on"] for name in "abc"},
        lambda v: {"rate": 100.0 + 50 * (v["a"] == "on") + 0.05 * (v["b"] == "on")},
        {"rate": ("MiB/s", "higher")},
        noise=1e-5,
    )
    analyse(study.write(tmp_path / "out"), report=False)
    (table,) = sections.fractions(Outcome.read(tmp_path / "out"))
    heads = [column["name"] for column in table["columns"]]
    assert heads[1:5] == ["full (MiB/s)", "interval", "half (MiB/s)", "interval"]
    assert not any("iB/s" in cell for row in table["rows"] for cell in row["cells"][1:5])
    assert sum(row["cells"][1].startswith("0.0") for row in table["rows"]) > 1


def test_causes_of_invalid_runs_have_their_numbers(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=10, invalid=())
    runs = pd.read_parquet(out / "runs.parquet")
    runs["valid"] = [False, False, *[True] * (len(runs) - 2)]
    reasons = ["reads took 4.1 ms, 5.2 ms by the log", "reads took 4.3 ms, 5 ms by the log"]
    runs["reason"] = [*reasons, *[""] * (len(runs) - 2)]
    runs.to_parquet(out / "runs.parquet")
    (finding,) = (f for f in findings(out) if f.code == "run-invalid")
    assert finding.statement.endswith(": reads took 4.1 ms, 5.2 ms by the log (2 runs alike).")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Analysed results without a page."""
    case = CASES["two-by-three-with-interaction"]
    outcome = analyse(
        case.study.write(tmp_path_factory.mktemp("planted") / "out"), report=False
    ).outcome
    assert outcome is not None
    return outcome


def test_cautions_have_the_variation_of_the_runs(analysed: Outcome) -> None:
    assert any("5.0 %, assumed)" in text for text in analysed.plan["cautions"])
    text = " ".join(sections.cautions(analysed, findings(analysed.path)))
    assert "assumed" not in text
    assert re.search(r"\([\d.]+ % of the mean of load: repeated runs vary by [12]\.\d %\)", text)


def test_effects_on_ratios_are_ratios(analysed: Outcome) -> None:
    (table,) = (t for t in sections.anova(analysed) if t["response"] == "load")
    heads = [column["name"] for column in table["columns"]]
    assert "effect (ratio)" in heads
    assert "q" not in heads
    (journal,) = (row["cells"] for row in table["rows"] if row["cells"][0] == "journal")
    assert journal[heads.index("effect (ratio)")].endswith("×")


def test_run_counts_are_cards_only_with_invalid_runs(analysed: Outcome, tmp_path: Path) -> None:
    page = write_report(analysed).read_text()
    assert '<ul class="tiles">' not in page
    assert "18 of 18 runs valid · 6 treatments" in page
    assert "natural logarithms" not in page[: page.index('id="validity"')]
    assert "natural logarithms" in page[page.index('id="cautions"') :]
    assert '<span class="code">' not in re.sub(r'<details class="sure">.*?</details>', "", page)
    few = write_example(tmp_path / "out", events=10, invalid=("r005",))
    assert next(t["label"] for t in sections.tiles(Outcome.read(few)) if t["mark"]) == "runs valid"


def test_single_runs_are_compared_without_a_test(tmp_path: Path) -> None:
    single = analyse(CASES["one-run-of-each"].study.write(tmp_path / "out"), report=False).outcome
    assert single is not None
    table = sections.ranked(single)
    assert table is not None
    assert table["note"].startswith("Single runs: ratios to the best without a test.")
