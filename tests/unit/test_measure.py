"""The series of studies and benchmarks: it is complete, goes on after a failure, and can be continued."""

from __future__ import annotations

import json
import sys
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


def entry(place: Path, name: str, status: int, text: str = PROGRAM) -> Entry:
    file = place / f"{name}.py"
    file.write_text(text.format(status=status))
    return Entry(name, str(file), out=False, quick=False, record=False)


def test_every_study_file_and_every_program_is_in_the_series_once() -> None:
    files = [file for one in ALL_STUDIES for file in one.files]
    assert sorted(files) == sorted(p.name for p in (ROOT / "studies").glob("*.study.yaml"))
    programs = {one.program for one in ALL_STUDIES if one.program.startswith("studies/")}
    modules = {f"studies/{p.name}" for p in (ROOT / "studies").glob("*.py")}
    assert programs == modules - {"studies/claims.py"}  # which is what they share
    assert len({one.name for one in ALL_STUDIES}) == len(ALL_STUDIES)


def test_every_benchmark_is_in_the_series() -> None:
    names = {one.name for one in measure.all_benchmarks()}
    assert names == {p.stem for p in (ROOT / "bench").glob("*.py")} - {"record", "measurements"}
    assert {"conductor", "transports"} <= names


@pytest.mark.parametrize("one", ALL_STUDIES, ids=lambda e: e.name)
def test_programs_have_the_options_that_they_are_given(one: Entry) -> None:
    if one.program.endswith(".study.yaml"):
        assert one.command(True, True)[1:4] == ["-m", "penstock", "run"]
        assert "--record" not in one.command(True, True)
        return
    source = (ROOT / one.program).read_text()
    # a file after the files that import it
    shared = {
        "running": "studies/heterogeneous/running.py",
        "lines": "studies/monitored/lines.py",
        "common.options": "studies/common/options.py",
    }
    for word, file in shared.items():
        if word in source:
            source += (ROOT / file).read_text()
    for word in (*one.command(True, True)[2:], *one.full):
        if word.startswith("-") and word != "--record":
            assert f'"{word}"' in source
    assert "record.option(" in source


def test_a_failure_does_not_end_the_series(tmp_path: Path) -> None:
    statuses = {"first": 0, "second": 3, "third": 1, "fourth": 0}
    series = Series([entry(tmp_path, name, status) for name, status in statuses.items()])
    outcomes = measure.run(series, tmp_path / "out", "abc")
    assert [one.result for one in outcomes] == ["met", "not met", "failed", "met"]
    assert {one.claims for one in outcomes} == {"3 claims: 2 met, 1 not measured"}
    assert measure.exit_status(outcomes) == 1
    assert measure.exit_status(outcomes[:2]) == 3
    assert measure.exit_status(outcomes[:1]) == 0


def test_a_series_goes_on_where_it_was(tmp_path: Path) -> None:
    entries = [entry(tmp_path, name, status) for name, status in (("a", 0), ("b", 1), ("c", 3))]
    series, place = Series(entries), tmp_path / "out"
    begun: list[str] = []

    def execute(line: Sequence[str], log: Path, limit_s: float | None) -> int | None:
        begun.append(Path(line[1]).stem)
        return measure.execute(line, log, limit_s)

    def names(series: Series, commit: str) -> list[str]:
        begun.clear()
        measure.run(series, place, commit, execute)
        return list(begun)

    assert names(series, "abc") == ["a", "b", "c"]
    assert names(series, "abc") == ["b"]  # it failed
    assert names(replace(series, record=True), "abc") == ["a", "b", "c"]
    assert names(series, "def") == ["a", "b", "c"]  # the code is another
    assert names(replace(series, again=True), "def") == ["a", "b", "c"]
    state = json.loads((place / "state.json").read_text())
    assert {row["name"]: row["result"] for row in state} == {
        "a": "met", "b": "failed", "c": "not met",
    }  # fmt: skip


def test_results_of_another_commit_are_set_aside(tmp_path: Path) -> None:
    place = tmp_path / "out" / "study"
    measure.set_aside(place, "abc")
    assert not place.exists()
    for commit, expected in (("abc", {"study"}), ("def", {"study.abc"})):
        place.mkdir(exist_ok=True)
        (place / "campaign.json").touch()
        measure.set_aside(place, commit)
        assert {p.name for p in place.parent.iterdir() if p.is_dir()} == expected
    (place.parent / "study.commit").unlink()
    place.mkdir()
    measure.set_aside(place, "def")
    assert (place.parent / "study.unknown").is_dir()


def test_a_study_without_claims_meets_none(tmp_path: Path) -> None:
    one = replace(entry(tmp_path, "plain", 0), claims=False)
    outcomes = measure.run(Series([one]), tmp_path / "out", "abc")
    assert [o.result for o in outcomes] == ["measured"]
    assert outcomes[0].complete
    assert measure.exit_status(outcomes) == 0
    assert [e.name for e in ALL_STUDIES if not e.claims] == [
        "store-copies", "store-blast", "swift-objects",
    ]  # fmt: skip


def test_quick_results_are_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        measure.main(["studies", "published", "--quick", "--record"])
    assert caught.value.code == 2
    assert "found --quick with --record" in capsys.readouterr().err


def test_a_study_that_takes_too_long_is_interrupted_and_the_rest_runs(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    endless = f"""
import pathlib, time
try:
    while True:
        time.sleep(1)
except KeyboardInterrupt:
    pathlib.Path({str(ended)!r}).touch()
"""
    file = tmp_path / "endless.py"
    file.write_text(endless)
    slow = Entry("endless", str(file), out=False, quick=False, record=False)
    series = Series([slow, entry(tmp_path, "next", 0)], each_s=2.0)
    outcomes = measure.run(series, tmp_path / "out", "abc")
    assert [one.result for one in outcomes] == ["interrupted", "met"]
    assert ended.exists()  # it could undo what it changed
    assert measure.exit_status(outcomes) == 1
    nothing = replace(series, total_s=0.0, again=True)
    outcomes = measure.run(nothing, tmp_path / "out", "abc")
    assert {one.result for one in outcomes} == {"not run"}


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        measure.main(["studies", "no-such-study"])
    assert caught.value.code == 2
    assert "found no-such-study; expected published" in capsys.readouterr().err
    assert sys.executable in ALL_STUDIES[0].command(False, False)
