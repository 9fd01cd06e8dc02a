"""Answers to studies: recommendation, cause and confidence agree with the planted truth."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from penstock.analyse.findings.answer import LABELS, MOST_POINTS, NEXT_STEP, answer
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.lost_runs import lost
from penstock.analyse.findings.question import direction, kind, subject
from penstock.analyse.findings.why import Account, reasons, together
from penstock.analyse.outcome import FactorLevels, Outcome
from penstock.analyse.treatments.means import ranking
from penstock.campaign.analysis import Analysis, analyse
from penstock.cli.analyse import command
from penstock.report import figures, sections, style
from penstock.text import HEADLINE
from tests.examples.report import write_page
from tests.unit.answered_studies import CASES, GOLDEN, Case, answered
from tests.unit.answered_studies import golden_text as golden
from tests.unit.planted_study import Doings, Planted

DISKS = {"hdd-7200": 130.0, "network-volume": 900.0, "sata-ssd": 5200.0}


def three_disks(**more: object) -> Planted:
    return Planted(
        "Which of the three disks is the fastest for this program?",
        {"disk": list(DISKS)},
        lambda levels: {"throughput": DISKS[levels["disk"]]},
        **more,  # type: ignore[arg-type]
    )


def test_a_run_without_a_record_does_not_lower_a_sampled_share() -> None:
    """Fails if a run without a record of the links counts as one without traffic: a third too small."""
    runs = [Account({"network": 0.9, "flushes": 0.3}), Account({"network": 0.9}), Account({})]
    mean = together(runs)
    assert mean.share("network") == pytest.approx(0.9)
    assert mean.share("flushes") == pytest.approx(0.1)  # a trace without flushes has none


def test_treatments_with_one_run_left_are_counted() -> None:
    """Fails if the first three of five treatments are named as if they were all."""
    rows = [
        {"treatment_id": f"t{t}", "run_id": f"r{t}{n}", "levels": {"disk": f"d{t}"}}
        for t in range(6)
        for n in range(3)
    ]
    plan = {"factors": [{"name": "disk", "levels": [f"d{t}" for t in range(6)]}], "rows": rows}
    runs = pd.DataFrame(rows).drop(columns="levels")
    runs["valid"] = runs["run_id"].str.endswith("0") | runs["treatment_id"].eq("t0")
    runs["reason"] = ""
    outcome = Outcome(Path("lost"), plan, {}, runs, None, None, None)
    (finding,) = lost(outcome)
    assert "; one run is left of d1, d2, d3 and 2 more; " in finding.statement


def test_which_of_three_disks(tmp_path: Path) -> None:
    out = three_disks().write(tmp_path / "out")
    result = analyse(out, report=False)
    first = result.answer[0]
    assert first.startswith("Choose sata-ssd: ")
    assert "5.8× (" in first
    assert "network-volume" in first
    assert "Yes" not in first


@pytest.mark.parametrize(
    ("question", "factors", "lost", "first"),
    [
        (
            "Does the disk matter?",
            {"disk": ["hdd-7200", "sata-ssd"], "cache": ["off", "on"]},
            "hdd-7200",
            "Open: hdd-7200 has no valid run, so that the effect on throughput is not known.",
        ),
        (
            "Is the network volume faster than the SSD?",
            {"disk": list(DISKS)},
            "network-volume",
            "Open: network-volume has no valid run, so that the effect on throughput is not known.",
        ),
    ],
)
def test_a_question_on_a_level_without_a_run_is_open(
    tmp_path: Path, question: str, factors: Mapping[str, list[str]], lost: str, first: str
) -> None:
    """Fails if the first sentence compares other treatments."""
    study = Planted(
        question,
        factors,
        lambda levels: {"throughput": DISKS[levels["disk"]]},
        failed=lambda levels: levels["disk"] == lost,
    )
    result = analyse(study.write(tmp_path / "out"), report=False)
    assert result.answer[0] == first


def test_a_response_after_a_compromise_names_its_treatment(tmp_path: Path) -> None:
    """Fails if the latency of the fastest disk seems to be that of the compromise, which is four times it."""
    study = Planted(
        "Which disk is best?",
        {"disk": ["hdd-7200", "sata-ssd"], "cache": ["off", "on"]},
        lambda v: (
            {"rate": 50.0, "latency": 4.0, "price": 1.0}
            if v["disk"] == "hdd-7200"
            else {"rate": 100.0, "latency": 1.0, "price": 7.0}
        ),
        {"rate": ("1/s", "higher"), "latency": ("ms", "lower"), "price": ("EUR", "lower")},
        noise=0.01,
    )
    answer_text = " ".join(analyse(study.write(tmp_path / "out"), report=False).answer)
    assert re.search(r"Best: hdd-7200 .* if all responses count alike", answer_text)
    assert re.search(
        r"with sata-ssd \+ cache \w+, (also best|nothing is shown to be better) for latency",
        answer_text,
    )


def analysed(out: Path) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(out)])


def test_a_trace_is_not_recommended_in_a_guest(tmp_path: Path) -> None:
    out = three_disks().write(tmp_path / "out")
    analyse(out, report=False)
    statements = " ".join(f.statement for f in reasons(Outcome.read(out)))
    assert "`trace: {mode: trace}` under `observers`" in statements
    with open(out / "study.yaml", "a") as study:
        study.write("guest: {}\n")
    statements = " ".join(f.statement for f in reasons(Outcome.read(out)))
    assert "the cause: calls inside a guest are not traced" in statements
    assert "under `observers`" not in statements


def test_command_prints_answer_and_table(tmp_path: Path) -> None:
    result = analysed(three_disks().write(tmp_path / "out"))
    assert result.exit_code == 0
    assert result.stdout.startswith("Choose sata-ssd")
    assert re.search(r"^3\s+hdd-7200 .* 40×", result.stdout, re.MULTILINE)
    assert "could not" not in result.output


def test_commands_of_an_answer_name_the_study_and_its_directory(tmp_path: Path) -> None:
    result = answered(CASES["nothing-significant"], tmp_path / "case")
    shown = " ".join(" ".join(result.lines(Path("two words/out"), Path("s.study.yaml"))).split())
    assert "`penstock run s.study.yaml -o 'two words/out' --augment replicates:6`" in shown
    failed = answered(CASES["most-runs-failed"], tmp_path / "failed")
    shown_path = " ".join(" ".join(failed.lines(Path("two words/out"))).split())
    assert "read `'two words/out/runs/r001/stderr.txt'` first" in shown_path
    assert "`penstock run STUDY -o OUT --augment" in " ".join(" ".join(result.lines()).split())


def test_repeated_runs_are_counted_on_the_terminal(tmp_path: Path) -> None:
    result = answered(CASES["nothing-significant"], tmp_path / "case")
    count = len(result.runs)
    assert result.lines()[-1] == f"{count} of {count} runs valid"
    result.runs.loc[0, "attempt"] = 2
    assert result.lines()[-1] == f"{count} of {count} runs valid, 1 of them repeated"


def test_the_reason_of_invalid_runs_is_the_most_frequent_then_the_first(tmp_path: Path) -> None:
    out = three_disks(failed=lambda v: v["disk"] == "hdd-7200").write(tmp_path / "out")
    reasons = iter(["rate is −5 % off", "p99 is +24 % off", "p99 is +45 % off"])
    for path in sorted(out.glob("runs/*/manifest.json")):
        manifest = json.loads(path.read_text())
        if not manifest["valid"]:
            path.write_text(json.dumps(manifest | {"reason": next(reasons)}))
    text = " ".join(analyse(out, report=False).answer)
    assert "hdd-7200: no run of it is valid (rate is −5 % off, and 2 other reasons)" in text


@pytest.mark.parametrize(("failures", "confidence"), [(3, "Clear."), (4, "Likely.")])
def test_a_treatment_with_one_valid_run_gives_no_clear_result(
    tmp_path: Path, failures: int, confidence: str
) -> None:
    """20 runs are planned, five for each of four treatments."""
    fails = iter([True] * failures)
    planted = Planted(
        "Which is the fastest?",
        {"disk": ["a", "b", "c", "d"]},
        lambda levels: {"throughput": 100.0 * (1 + "abcd".index(levels["disk"]))},
        failed=lambda levels: levels["disk"] == "a" and next(fails, False),
        replicates=5,
    )
    conclusion = analyse(planted.write(tmp_path / "out"), report=False).conclusion
    assert conclusion is not None
    assert conclusion.headline.endswith(confidence)
    runs = dict(conclusion.points).get("Runs", "")
    assert ("; one run is left of disk a; " in runs) == (confidence == "Likely.")


def test_no_valid_run_is_no_success(tmp_path: Path) -> None:
    result = analysed(three_disks(failed=lambda _: True).write(tmp_path / "out"))
    assert result.exit_code == 1
    assert "no valid run" in result.output


def test_the_legend_of_runs_has_the_marks_that_occur(tmp_path: Path) -> None:
    out = three_disks(failed=lambda levels: levels["disk"] == "hdd-7200").write(tmp_path / "out")
    analyse(out, report=False)
    outcome = Outcome.read(out)
    assert outcome.runs is not None
    table = sections.validity(outcome)
    assert table is not None
    assert table["legend"] == "● valid, × failed"
    outcome.runs.loc[outcome.runs["valid"].idxmax(), "validity"] = "degraded"
    table = sections.validity(outcome)
    assert table is not None
    assert table["legend"] == "● valid, ◐ degraded, used with a bound on its bias, × failed"


def test_means_are_ranked_with_intervals(tmp_path: Path) -> None:
    out = three_disks().write(tmp_path / "out")
    analyse(out, report=False)
    table = pd.read_parquet(out / "means.parquet")
    ranked = table[table["kind"] == "treatment"]
    assert list(ranked["rank"]) == [1, 2, 3]
    disks = [json.loads(levels)["disk"] for levels in ranked["levels"]]
    assert disks == ["sata-ssd", "network-volume", "hdd-7200"]
    assert list(ranked["n"]) == [3, 3, 3]
    for row in ranked.to_dict("records"):
        truth = DISKS[json.loads(row["levels"])["disk"]]
        assert row["ci_low"] < truth < row["ci_high"]
        assert row["times_best"] == pytest.approx(5200 / truth, rel=0.05)
    levels = table[table["kind"] == "level"]
    assert set(levels["factor"]) == {"disk"}
    assert len(levels) == 3


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Case, Analysis]:
    name: str = request.param
    return name, CASES[name], answered(CASES[name], tmp_path_factory.mktemp("case"))


def test_answer_equals_the_golden_file(case: tuple[str, Case, Analysis]) -> None:
    name, planted, result = case
    assert golden(planted, result) == (GOLDEN / f"{name}.txt").read_text()


def test_which(case: tuple[str, Case, Analysis]) -> None:
    _, planted, result = case
    assert result.answer[0].startswith(planted.first)
    table = pd.read_parquet(result.out / "means.parquet")
    main = table[(table["kind"] == "treatment") & (table["response"] == table["response"].iloc[0])]
    top = main[main["verdict"] != "worse"]
    (recommendation,) = (f for f in result.findings if f.code == "recommendation")
    if planted.best is None:
        assert len(top) == len(main)
        return
    (chosen,) = top[top["treatment_id"] == recommendation.evidence["treatment_id"]]["levels"]
    assert planted.best.items() <= json.loads(chosen).items()
    factors = [f for f in Outcome.read(result.out).factors if f.name in planted.best]
    recommended = recommendation.statement.removeprefix("Open: ").split(":")[0]
    assert all(f.phrase(planted.best[f.name]) in recommended for f in factors)


def test_why(case: tuple[str, Case, Analysis]) -> None:
    _, planted, result = case
    why = " ".join(f.statement for f in result.findings if f.code == "why")
    assert all(phrase in why for phrase in planted.why)
    assert not any(phrase in " ".join(result.answer) for phrase in planted.not_why)


def test_confidence(case: tuple[str, Case, Analysis]) -> None:
    """The recommendation is certain where planted so, and intervals contain the planted truth."""
    _, planted, result = case
    (recommendation,) = (f for f in result.findings if f.code == "recommendation")
    assert (recommendation.severity == "info") == planted.sure
    outcome = Outcome.read(result.out)
    for response in outcome.responses:
        ranked = ranking(outcome, response)
        for mean in ranked.treatments if ranked.df else []:
            # twice the interval: some of the many intervals miss by chance
            truth = planted.study.truth(mean.levels)[response.name]
            assert 2 * mean.low - mean.mean <= truth <= 2 * mean.high - mean.mean


def test_form(case: tuple[str, Case, Analysis]) -> None:
    """At most 30 words, then at most four labelled points, in lines of a terminal."""
    _, _, result = case
    answer = result.conclusion
    assert answer is not None
    assert len(answer.first.statement.split()) <= HEADLINE
    assert len(answer.points) <= MOST_POINTS
    assert {label for label, _ in answer.points} <= {*LABELS, NEXT_STEP}
    assert answer.first.confidence in ("clear", "likely", "open")
    assert (answer.first.confidence == "open") == answer.headline.startswith("Open:")
    assert answer.first.confidence != "open" or NEXT_STEP in dict(answer.points)
    assert all(len(line) <= 100 for line in result.lines())
    assert "■" in "".join(result.plot) or len(result.ranked) < 4 or len(result.ranked) > 9
    for phrase in ("told apart", "behind", "by more than chance", "cannot be said"):
        assert phrase not in " ".join(answer.sentences)


def test_words(case: tuple[str, Case, Analysis]) -> None:
    _, planted, result = case
    text = " ".join(result.answer)
    assert all(phrase in text for phrase in planted.says)
    assert not any(phrase in text for phrase in planted.never)
    everything = " ".join(f.statement for f in result.findings)
    for phrase in ("nan", "left with .", "1 of 1", "could not be analysed"):
        assert phrase not in everything
    if planted.study.question.startswith(("Which", "How", "What")):
        assert not re.search(r"\b(Yes|No)[:,]", text)


@pytest.mark.parametrize(("bound", "confidence"), [(1.02, "likely"), (60.0, "open")])
def test_the_bound_of_degraded_runs_decides_the_confidence(
    tmp_path: Path, bound: float, confidence: str
) -> None:
    """Undisturbed rates of hdd-7200 and network-volume up to `bound` times those measured."""
    out = analyse(three_disks().write(tmp_path / "out"), report=False).out
    outcome = Outcome.read(out)
    runs = outcome.runs
    assert runs is not None
    slow = runs["disk"] != "sata-ssd"
    outcome.runs = runs.assign(
        **{
            "validity": slow.map({True: "degraded", False: "valid"}),
            "delay_share": 1 - 1 / bound,
            "others_cpus": 1.9,
            "throughput:low": runs["throughput"],
            "throughput:high": runs["throughput"].where(~slow, runs["throughput"] * bound),
        }
    )
    conclusion = answer(outcome)
    assert conclusion is not None
    assert conclusion.first.confidence == confidence
    assert dict(conclusion.points)["Host"].startswith("6 of 9 runs are degraded")
    assert "--resume --repeat degraded" in dict(conclusion.points)[NEXT_STEP]
    assert conclusion.headline.startswith("Open: " if confidence == "open" else "Choose sata-ssd: ")


@pytest.fixture(scope="module")
def of_three_levels(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    case = CASES["two-by-three-with-interaction"]
    return Outcome.read(answered(case, tmp_path_factory.mktemp("study")).out)


@pytest.mark.parametrize("width", [style.WIDE_INCHES, style.NARROW_INCHES])
def test_figures_show_every_level(of_three_levels: Outcome, width: float) -> None:
    means = figures.draw(of_three_levels, "effects", width)
    in_lines = [[t.get_text() for t in axes.get_xticklabels()] for axes in means.axes]
    ticks = [[text.replace("\n", "") for text in axes] for axes in in_lines]
    assert ticks == [["hdd-7200", "network-volume", "sata-ssd"], ["wal", "delete"]]
    shares = figures.draw(of_three_levels, "pareto", width)
    assert shares.axes[0].get_yticklabels()[0].get_text() == "disk"
    (together,) = figures.draw(of_three_levels, "interactions", width).axes
    assert len(together.get_lines()) == 3
    for fig in (means, shares):
        inside = fig.get_tightbbox()
        assert inside.x0 * fig.dpi >= fig.bbox.x0 - 2
        assert inside.x1 * fig.dpi <= fig.bbox.x1 + 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("width", [style.WIDE_INCHES, style.NARROW_INCHES])
def test_costs_of_wide_intervals_are_drawn_with_their_numbers(tmp_path: Path, width: float) -> None:
    noisy = Planted(
        "How much does the journal cost?",
        {"journal": ["wal", "delete"], "disk": ["hdd-7200", "sata-ssd"]},
        lambda v: {"throughput": 100.0 if v["journal"] == "wal" else 60.0},
        noise=0.5,
        replicates=2,
    )
    outcome = Outcome.read(analyse(noisy.write(tmp_path / "out"), report=False).out)
    fig = figures.draw(outcome, "costs", width)
    (axes,) = fig.axes
    fig.canvas.draw()
    edge = axes.get_window_extent().x1
    assert all(text.get_window_extent().x1 <= edge + 2 for text in axes.texts)


def test_page_answers_and_ranks(of_three_levels: Outcome) -> None:
    linked = write_page(of_three_levels.path).read_text()
    page = re.sub("<a class=.word[^>]*>([^<]*)</a>", r"\1", linked)  # words of the glossary
    page = page.replace("\u2060", "").replace("\u00a0", " ")
    answer = page[page.index('id="answer"') : page.index("<nav")]
    assert '<div class="answer">Choose sata-ssd + wal: load is ' in answer
    assert "load with sata-ssd + wal: 24,400 rows/s (23,800–25,000), 95 % interval" in answer
    assert "<svg" in answer
    ranked = [
        '>{}</td><td class="w">{}</td>'.format(*levels)
        for levels in (("sata-ssd", "wal"), ("hdd-7200", "delete"))
    ]
    assert answer.index(ranked[0]) < answer.index(ranked[1])
    assert "Means at each level" in page


@pytest.mark.parametrize(
    ("question", "asks", "effect"),
    [
        ("Which disk should it be on, and does WAL matter more?", "which", "matters"),
        ("What is the cheapest allocation, and what does twice the speed cost?", "which", "costs"),
        ("How should twenty machines be split?", "which", ""),
        ("How many machines does Montage use?", "which", ""),
        ("How much slower than a stream are random requests?", "how much", "costs"),
        ("What does a client gain that looks at the latency?", "how much", "helps"),
        ("How long does TeraSort take on slower disks?", "how much", "costs"),
        ("How many commits does each fault of the disk cost?", "how much", "costs"),
        ("How many workers are best?", "which", ""),
        ("Does random access cost anything, and what removes it?", "whether", "costs"),
        ("Do replicas of a file that all machines read pay?", "whether", "helps"),
        ("Do real systems run unmodified on emulated disks?", "whether", ""),
        ("", "which", ""),
    ],
)
def test_questions(question: str, asks: str, effect: str) -> None:
    assert kind(question) == asks
    assert direction(question) == effect


@pytest.mark.parametrize(
    ("question", "levels", "level"),
    [
        ("Is the B-tree faster than the LSM tree?", "lsm btree", "btree"),
        ("Is the LSM tree faster than the B-tree?", "lsm btree", "lsm"),
        ("Is lsm faster on sata-ssd than on hdd-7200?", "hdd-7200 sata-ssd", "sata-ssd"),
        ("Is an SSD faster than a hard disk?", "hdd-7200 sata-ssd", "sata-ssd"),
        ("Are 16 threads better than 4?", "4 16", "16"),
        ("Does btree beat lsm?", "lsm btree", "btree"),
        ("Is the new engine faster than lsm?", "lsm btree", ""),
        ("Is one of wal and delete faster than the other?", "wal delete", ""),
        ("Does WAL help?", "delete wal", "wal"),
        ("Does compression help?", "off lz4", "lz4"),
        ("Does the journal help?", "wal delete", ""),
    ],
)
def test_the_subject_of_a_question(question: str, levels: str, level: str) -> None:
    assert subject(levels.split(), question) == level


def test_a_neutral_verb_gets_no_yes(tmp_path: Path) -> None:
    study = Planted(
        "Do programs run on WAL?",
        {"journal": ["delete", "wal"]},
        lambda v: {"throughput": 100.0 if v["journal"] == "wal" else 50.0},
    )
    first = analyse(study.write(tmp_path / "out"), report=False).answer[0]
    assert re.match(r"wal instead of delete multiplies throughput by 2.0 \(.*\): 99.*Clear.", first)


@pytest.mark.parametrize(
    ("factor", "level", "phrase"),
    [
        ("n", "600", "n = 600"),
        ("n", "1", "n = 1"),
        ("jobs", "8", "8 jobs"),
        ("jobs", "1", "1 job"),
        ("depth", "16", "depth 16"),
        ("rows_per_commit", "100", "100 rows per commit"),
        ("block_size", "4KiB", "4KiB block size"),
        ("disk", "sata-ssd", "sata-ssd"),
        ("synchronous", "off", "synchronous off"),
        ("share", "0.5", "share 0.5"),
    ],
)
def test_levels_in_words(factor: str, level: str, phrase: str) -> None:
    assert FactorLevels(factor, [level]).phrase(level) == phrase


def test_concurrent_threads_are_counted(tmp_path: Path) -> None:
    def doings(levels: Mapping[str, str]) -> Doings:
        seconds = 124.0 if levels["disk"] == "hdd-7200" else 1.0
        return Doings(10, 1.0, calls=(("f", "read", "random", 40, 4096, seconds),))

    rate = {"hdd-7200": 10.0, "sata-ssd": 50.0}
    planted = Planted(
        "Which disk is the fastest?",
        {"disk": list(rate)},
        lambda levels: {"throughput": rate[levels["disk"]]},
        doings=doings,
    )
    text = " ".join(analyse(planted.write(tmp_path / "out"), report=False).answer)
    assert "the program has on average 12.4 threads in 40 reads" in text
    assert "1240 %" not in text


@pytest.mark.parametrize(("processor_s", "explains"), [(2.1, False), (8.0, True)])
def test_a_cause_and_an_unknown_cause_are_never_stated_together(
    tmp_path: Path, processor_s: float, explains: bool
) -> None:
    planted = three_disks(doings=lambda _: Doings(10, processor_s, traced=False))
    codes = {f.code for f in analyse(planted.write(tmp_path / "out"), report=False).findings}
    assert ("why" in codes, "not-known" in codes) == (explains, not explains)


def test_an_open_treatment_is_ranked_above_one_that_is_worse(tmp_path: Path) -> None:
    levels = {"f": ["a", "b", "c"]}
    planted = Planted("Which?", levels, lambda _: {"throughput": 1.0}, noise=0.0)
    out = planted.write(tmp_path / "out")
    rates = {"a": [99.0, 100.0, 101.0], "b": [95.5, 96.5, 97.5], "c": [96.3, None, None]}
    for path in sorted(out.glob("runs/*/manifest.json")):
        manifest = json.loads(path.read_text())
        rate = rates[manifest["levels"]["f"]].pop(0)
        manifest["valid"] = rate is not None
        manifest["responses"]["throughput"]["value"] = rate or 1.0
        path.write_text(json.dumps(manifest | {"reason": "" if rate else "the host was busy"}))
    outcome = analyse(out, report=False).outcome
    assert outcome is not None
    treatments = ranking(outcome, outcome.responses[0]).treatments
    verdicts = [(t.levels["f"], t.verdict) for t in treatments]
    assert verdicts == [("a", "best"), ("c", "undecided"), ("b", "worse")]
    assert treatments[1].mean < treatments[2].mean


def test_warnings_are_the_first_findings_of_a_report() -> None:
    findings = [
        Finding("a", "info", "1."),
        Finding("b", "warning", "2."),
        Finding("c", "error", "3."),
    ]
    findings += [Finding(f"d{i}", "info", "4.") for i in range(6)]
    shown, rest = sections.findings_in_two(findings)
    assert [f.code for f in shown] == ["c", "b", "a", "d0", "d1", "d2"]
    assert [f.code for f in rest] == ["d3", "d4", "d5"]


def test_a_question_with_which_gets_no_cost(tmp_path: Path) -> None:
    case = answered(CASES["one-factor-of-three-levels"], tmp_path / "which")
    assert not {"cost", "remedy"} & {f.code for f in case.findings}
    case = answered(CASES["how-much"], tmp_path / "how-much")
    assert {"cost", "remedy"} <= {f.code for f in case.findings}
