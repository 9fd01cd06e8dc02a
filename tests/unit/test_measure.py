"""The series of studies and benchmarks: completeness, failures, continuation and time limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tools import measure
from tools.measure import ALL_STUDIES, Entry, Series

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
print("it: 3 claims: 2 met, 1 not measured", file=sys.stderr)
sys.exit({status})
"""


def entry(folder: Path, name: str, status: int, text: str = PROGRAM) -> Entry:
    file = folder / f"{name}.py"
    file.write_text(text.format(status=status))
    return Entry(name, str(file), out=False, quick=False, record=False)


def test_series_has_every_study_and_program_once() -> None:
    files = [file for study in ALL_STUDIES for file in study.files]
    assert sorted(files) == sorted(p.name for p in (ROOT / "studies").glob("*.study.yaml"))
    programs = {study.program for study in ALL_STUDIES if study.program.startswith("studies/")}
    modules = {f"studies/{p.name}" for p in (ROOT / "studies").glob("*.py")}
    assert programs == modules - {"studies/claims.py"}  # shared by the programs
    assert len({study.name for study in ALL_STUDIES}) == len(ALL_STUDIES)


def test_series_has_every_benchmark() -> None:
    names = {benchmark.name for benchmark in measure.all_benchmarks()}
    assert names == {p.stem for p in (ROOT / "bench").glob("*.py")} - {"record", "measurements"}
    assert {"conductor", "transports"} <= names


@pytest.mark.parametrize("study", ALL_STUDIES, ids=lambda e: e.name)
def test_programs_accept_their_options(study: Entry) -> None:
    if study.program.endswith(".study.yaml"):
        assert study.command(True, True)[1:4] == ["-m", "penstock", "run"]
        assert "--record" not in study.command(True, True)
        return
    source = (ROOT / study.program).read_text()
    # module name: file with further options
    shared = {
        "running": "studies/heterogeneous/running.py",
        "lines": "studies/monitored/lines.py",
        "common.options": "studies/common/options.py",
    }
    for word, file in shared.items():
        if word in source:
            source += (ROOT / file).read_text()
    for word in (*study.command(True, True)[2:], *study.full):
        if word.startswith("-") and word != "--record":
            assert f'"{word}"' in source
    assert "record.option(" in source


def test_failure_does_not_end_the_series(tmp_path: Path) -> None:
    statuses = {"first": 0, "second": 3, "third": 1, "fourth": 0}
    series = Series([entry(tmp_path, name, status) for name, status in statuses.items()])
    outcomes = measure.run(series, tmp_path / "out", "abc")
    assert [outcome.result for outcome in outcomes] == ["met", "not met", "failed", "met"]
    assert {outcome.claims for outcome in outcomes} == {"3 claims: 2 met, 1 not measured"}
    assert measure.exit_status(outcomes) == 1
    assert measure.exit_status(outcomes[:2]) == 3
    assert measure.exit_status(outcomes[:1]) == 0


def test_series_is_continued(tmp_path: Path) -> None:
    entries = [entry(tmp_path, name, status) for name, status in (("a", 0), ("b", 1), ("c", 3))]
    series, out = Series(entries), tmp_path / "out"
    started: list[str] = []

    def execute(line: Sequence[str], log: Path, limit_s: float | None) -> int | None:
        started.append(Path(line[1]).stem)
        return measure.execute(line, log, limit_s)

    def names(series: Series, commit: str) -> list[str]:
        started.clear()
        measure.run(series, out, commit, execute)
        return list(started)

    assert names(series, "abc") == ["a", "b", "c"]
    assert names(series, "abc") == ["b"]  # b failed
    assert names(replace(series, record=True), "abc") == ["a", "b", "c"]
    assert names(series, "def") == ["a", "b", "c"]  # another commit
    assert names(replace(series, again=True), "def") == ["a", "b", "c"]
    state = json.loads((out / "state.json").read_text())
    assert {row["name"]: row["result"] for row in state} == {
        "a": "met", "b": "failed", "c": "not met",
    }  # fmt: skip


def test_results_of_another_commit_are_moved(tmp_path: Path) -> None:
    results = tmp_path / "out" / "study"
    measure.set_aside(results, "abc")
    assert not results.exists()
    for commit, expected in (("abc", {"study"}), ("def", {"study.abc"})):
        results.mkdir(exist_ok=True)
        (results / "campaign.json").touch()
        measure.set_aside(results, commit)
        assert {p.name for p in results.parent.iterdir() if p.is_dir()} == expected
    (results.parent / "study.commit").unlink()
    results.mkdir()
    measure.set_aside(results, "def")
    assert (results.parent / "study.unknown").is_dir()


def test_study_without_claims_is_measured(tmp_path: Path) -> None:
    study = replace(entry(tmp_path, "plain", 0), claims=False)
    outcomes = measure.run(Series([study]), tmp_path / "out", "abc")
    assert [o.result for o in outcomes] == ["measured"]
    assert outcomes[0].complete
    assert measure.exit_status(outcomes) == 0
    assert [e.name for e in ALL_STUDIES if not e.claims] == [
        "store-copies", "store-blast", "swift-objects",
    ]  # fmt: skip


def test_quick_results_are_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        measure.main(["studies", "published", "--quick", "--record"])
    assert exited.value.code == 2
    assert "found --quick with --record" in capsys.readouterr().err


def test_time_limit_interrupts_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    endless = f"""
import pathlib, time
try:
    pathlib.Path({str(begun)!r}).touch()
    while True:
        time.sleep(1)
except KeyboardInterrupt:
    pathlib.Path({str(ended)!r}).touch()
"""
    file = tmp_path / "endless.py"
    file.write_text(endless)
    slow = Entry("endless", str(file), out=False, quick=False, record=False)
    series = Series([slow, entry(tmp_path, "next", 0)], each_s=60.0)

    class Started(subprocess.Popen[bytes]):
        """A program whose time is over a tenth of a second after it has begun, if it is endless."""

        def wait(self, timeout: float | None = None) -> int:
            while timeout == series.each_s and not begun.exists():
                assert self.poll() is None
                time.sleep(0.01)
            return super().wait(0.1 if timeout == series.each_s and not ended.exists() else timeout)

    monkeypatch.setattr(measure.subprocess, "Popen", Started)
    outcomes = measure.run(series, tmp_path / "out", "abc")
    assert [outcome.result for outcome in outcomes] == ["interrupted", "met"]
    assert ended.exists()  # it could clean up
    assert measure.exit_status(outcomes) == 1
    without_time = replace(series, total_s=0.0, again=True)
    outcomes = measure.run(without_time, tmp_path / "out", "abc")
    assert {outcome.result for outcome in outcomes} == {"not run"}


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        measure.main(["studies", "no-such-study"])
    assert exited.value.code == 2
    assert "found no-such-study; expected published" in capsys.readouterr().err
    assert sys.executable in ALL_STUDIES[0].command(False, False)
