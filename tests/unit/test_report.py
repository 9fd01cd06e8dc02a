"""The report page: complete, self-contained, with notes about missing tables."""

from __future__ import annotations

import contextlib
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.analyse.outcome import Outcome
from penstock.cli.analyse import command as analyse_command
from penstock.cli.report import command as report_command
from penstock.report import all_figures, figures, html, style
from penstock.report.all_figures import plates
from penstock.report.figures import tables
from penstock.report.figures.series import busiest
from penstock.report.html import write_report
from tests.examples.report import write_example, write_page

SECTIONS = (
    "answer validity effects responses prediction fraction patterns utilisation fidelity observers "
    "cautions repeat tables"
).split()
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collect the resources that a browser would load, and check that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.tips: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            value = value or ""
            if name == "id":
                self.ids.append(value)
            if name == "data-tip":
                self.tips.append(value)
            loaded = name in ("src", "srcset", "xlink:href", "data", "poster", "action")
            if loaded or (name == "href" and tag != "a" and not value.startswith("#")):
                self.loads.append(value)
            if "http:" in value or "https:" in value or value.startswith("//"):
                self.loads.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(path: Path) -> tuple[str, Page]:
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    return text, page


def reported(out: Path) -> Result:
    """Result of `penstock report OUT`."""
    app = typer.Typer()
    app.command()(report_command)
    return CliRunner().invoke(app, [str(out), "--open", "no"])


@pytest.fixture(scope="module")
def report_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Results with their report, and the result of the command."""
    out = write_example(tmp_path_factory.mktemp("study") / "out", events=3000, failed=("r011",))
    return out, reported(out)


@pytest.fixture(scope="module")
def out(report_run: tuple[Path, Result]) -> Path:
    return report_run[0]


def test_every_section_is_present_and_plotted(out: Path) -> None:
    text, page = read(out / "report.html")
    for section in SECTIONS:
        assert section in page.ids
    assert "Not shown" not in text
    assert "could not be drawn" not in text
    assert text.count('<svg class="plot"') >= 2 * 13


def test_page_loads_no_resources(out: Path) -> None:
    text, page = read(out / "report.html")
    assert page.loads == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#|[\"']?data:)[^)]*\)", text) == []
    assert (
        re.findall(r"\b(?:fetch|XMLHttpRequest|WebSocket|EventSource|importScripts)\b", text) == []
    )
    assert "default-src 'none'" in text


def test_a_planted_request_is_detected(tmp_path: Path) -> None:
    planted = tmp_path / "planted.html"
    planted.write_text('<html><img src="https://example.org/x.png"></html>')
    _, page = read(planted)
    assert page.loads


def test_identifiers_are_unique_and_references_resolve(out: Path) -> None:
    text, page = read(out / "report.html")
    assert len(page.ids) == len(set(page.ids))
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert target in page.ids


def test_every_run_has_a_tooltip(out: Path) -> None:
    _, page = read(out / "report.html")
    for number in (1, 2, 9, 32):
        assert any(f"r{number:03d}" in tip for tip in page.tips)


def test_colours_are_all_themed(out: Path) -> None:
    text, _ = read(out / "report.html")
    body = text[text.index("<body>") :]
    unthemed = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body))
    assert unthemed <= {"#000000"}


def test_figures_for_publication(out: Path) -> None:
    names = {p.name for p in (out / "figures").iterdir()}
    kinds = "effects-bandwidth interactions-p99 offsets utilisation fidelity delivered"
    for kind in kinds.split():
        assert {f"{kind}.svg", f"{kind}.pdf"} <= names


def test_a_second_below_its_limit_has_a_tooltip(out: Path) -> None:
    _, page = read(out / "report.html")
    tips = [tip for tip in page.tips if "of 5.00 MB/s" in tip]
    assert tips
    assert all("4.50 of 5.00 MB/s (not-honoured)" in tip for tip in tips)


@pytest.mark.long
def test_equal_tables_give_equal_pages(out: Path, tmp_path: Path) -> None:
    again = tmp_path / "out"
    shutil.copytree(out, again)
    before = {p.name: p.read_bytes() for p in (out / "figures").iterdir()}
    write_report(again)
    assert (again / "report.html").read_bytes() == (out / "report.html").read_bytes()
    assert {p.name: p.read_bytes() for p in (again / "figures").iterdir()} == before


def test_parallel_plotting_gives_the_same_figures(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kinds, kept_kinds in ((figures.BY_RESPONSE, ["responses", "cube"]), (figures.BY_RUN, [])):
        for kind in set(kinds) - set(kept_kinds):
            monkeypatch.delitem(kinds, kind)
    outcome = Outcome.read(out)
    monkeypatch.setattr(all_figures, "_idle_processors", lambda: 0)
    sequential = plates(outcome, None)
    monkeypatch.setattr(all_figures, "_idle_processors", lambda: 1)
    monkeypatch.setattr(all_figures, "ALONE_S", -1.0)
    jobs: list[object] = []
    submit = ProcessPoolExecutor.submit
    monkeypatch.setattr(
        ProcessPoolExecutor, "submit", lambda *job: jobs.append(job) or submit(*job)
    )
    assert plates(outcome, None) == sequential
    assert len(jobs) == len(sequential)
    assert sequential["responses", "p99"].drawn


@pytest.mark.long
@pytest.mark.parametrize(
    "missing",
    [
        ("effects.parquet", "predictions.parquet"),
        ("fidelity.parquet", "runs"),
        ("study.yaml", "runs.parquet"),
    ],
)
def test_missing_tables_are_noted_in_the_page(
    out: Path, tmp_path: Path, missing: tuple[str, ...]
) -> None:
    part = tmp_path / "out"
    shutil.copytree(out, part)
    for name in missing:
        removed = part / name
        shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
    text, _ = read(write_page(part))
    assert "Not shown" in text


def test_a_page_can_be_written_from_a_plan_only(out: Path, tmp_path: Path) -> None:
    part = tmp_path / "out"
    part.mkdir()
    shutil.copy(out / "plan.json", part)
    text, _ = read(write_page(part))
    assert "Not shown" in text


@pytest.mark.long
def test_text_of_the_study_is_escaped(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=40)
    study = (out / "study.yaml").read_text()
    (out / "study.yaml").write_text(
        study.replace("Does random", "<script>alert(1)</script> random")
    )
    text, _ = read(write_page(out))
    assert "<script>alert" not in text


def test_command_prints_the_page(report_run: tuple[Path, Result]) -> None:
    out, result = report_run
    assert result.exit_code == 0
    assert result.stdout.strip() == str(out / "report.html")


def test_the_report_of_a_killed_campaign_analyses_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Path(__file__).parents[1] / "golden" / "access-patterns-archive"
    out = shutil.copytree(archive, tmp_path / "out")
    assert not (out / "runs.parquet").exists()
    # only the page, without the publication files of each figure
    monkeypatch.setattr(html, "plates", lambda outcome, _: plates(outcome, None))
    result = reported(out)
    assert result.exit_code == 0, result.output
    assert (out / "runs.parquet").exists()
    assert "No response could be analysed" not in (out / "report.html").read_text()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results whose run tables lack the columns that figures need: one column in each run."""
    out = write_example(tmp_path_factory.mktemp("older") / "out", events=40)
    removed = [(table, column) for table, columns in tables.NEEDED.items() for column in columns]
    for (table, column), run in zip(removed, sorted((out / "runs").iterdir()), strict=False):
        path = run / f"{table}.parquet"
        if path.exists():
            pq.write_table(pq.read_table(path).drop_columns([column]), path)
    return out


def test_a_table_without_a_column_counts_as_absent(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "settled", lambda fig: fig)  # the layout reads no table
    outcome = Outcome.read(older)
    for kind in figures.BY_RUN:
        for run_id in outcome.run_ids:
            with contextlib.suppress(style.NotDrawn):
                figures.draw(outcome, kind, style.NARROW_INCHES, run_ids=[run_id])
    without_patterns = [
        r for r in outcome.run_ids if not tables.has_run_table(outcome, r, "patterns")
    ]
    assert len(without_patterns) == len(tables.NEEDED["patterns"])
    assert all(busiest(outcome, run_id) == [] for run_id in without_patterns)


def test_the_answer_is_printed_before_the_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Path(__file__).parents[1] / "golden" / "access-patterns-archive"
    out = shutil.copytree(archive, tmp_path / "out")
    app = typer.Typer()
    app.command()(analyse_command)

    def fails(*_: object) -> Path:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("penstock.report.html.write_report", fails)
    result = CliRunner().invoke(app, [str(out)])
    assert isinstance(result.exception, ZeroDivisionError)
    assert "runs valid" in result.stdout
