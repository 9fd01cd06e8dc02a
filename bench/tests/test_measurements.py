"""docs/measurements.md agrees with the result files, and every command that it names exists."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "bench" / "results").glob("*.json"))
NO_BENCH = {"record.py", "measurements.py", "claims.py"}
SCRIPTS = sorted(
    path
    for folder in ("bench", "studies")
    for path in (ROOT / folder).glob("*.py")
    if path.name not in NO_BENCH
)
#: code of several programs for options and records
PROGRAMS = {
    "running.options(": "studies/heterogeneous/running.py",
    "lines.program(": "studies/monitored/lines.py",
    # after the files that import this one
    "shared_options(": "studies/common/options.py",
}


@pytest.fixture(scope="module", name="measurements")
def _measurements() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "measurements", ROOT / "bench" / "measurements.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_agrees_with_the_result_files(measurements: ModuleType) -> None:
    text = (ROOT / "docs" / "measurements.md").read_text("utf-8")
    assert measurements.without_ages(text) == measurements.page()


def test_a_changed_figure_changes_the_page(measurements: ModuleType, tmp_path: Path) -> None:
    for file in FILES:
        shutil.copy(file, tmp_path)
    assert measurements.page(tmp_path) == measurements.page()
    result = json.loads((tmp_path / "conductor.json").read_text("utf-8"))
    result["rows"][0]["value"] = 0.6
    (tmp_path / "conductor.json").write_text(json.dumps(result), "utf-8")
    assert measurements.page(tmp_path) != measurements.page()


def test_age_of_a_result_counts_commits_to_its_subject(measurements: ModuleType) -> None:
    ages = {"conductor": 0, "designs": 1, "kills": 12, "demo": None}
    text = measurements.page(age=lambda name, one: ages.get(name, 0))
    assert measurements.without_ages(text) == measurements.page()
    assert "0 commits since\n" in text
    assert "1 commit since, *stale*" in text
    assert "12 commits since, *stale*" in text
    assert "age unknown, *stale*" in text
    assert f"Of {len(FILES)} results 3 are *stale*." in text
    assert measurements.without_ages(measurements.page()) == measurements.page()


def test_paths_that_results_measure_exist(measurements: ModuleType) -> None:
    assert set(measurements.MEASURED) == set(measurements.PARTS)
    assert not [
        p for paths in measurements.MEASURED.values() for p in paths if not (ROOT / p).exists()
    ]
    scripts = {name for names in measurements.PARTS.values() for name in names}
    absent = [
        n for n in scripts if not any((ROOT / p).exists() for p in measurements.paths_of(n)[:4])
    ]
    # results of `make` and of `penstock run`
    assert set(absent) <= {"demo", "fuzz", "stores_cephfs"}


def test_every_program_has_a_place_on_the_page(measurements: ModuleType) -> None:
    names = {name for names in measurements.PARTS.values() for name in names}
    assert {script.stem for script in SCRIPTS} <= names
    assert set(measurements.FOLDERS) <= names
    paths = [path for folders in measurements.FOLDERS.values() for path in folders]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_change_of_a_study_file_makes_its_result_older(measurements: ModuleType) -> None:
    assert "studies/nfs-wan*" in measurements.paths_of("nfs_wan")
    assert "studies/heterogeneous" in measurements.paths_of("hadoop")


def test_unrelated_commits_do_not_age_results(
    measurements: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        argv = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for file in ("bench/kills.py", "docs/page.md", "crates/points/a.rs", "bench/kills.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{len(commits)}")
        git("add", "-A")
        git("commit", "-q", "-m", file)
        commits.append(git("rev-parse", "HEAD"))
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    ages = [measurements.age_of("kills", {"commit": f"{commit} and changes"}) for commit in commits]
    assert ages == [2, 2, 1, 0]
    assert measurements.age_of("kills", {"commit": "0" * 40}) is None


def test_a_file_that_no_part_names_is_refused(measurements: ModuleType, tmp_path: Path) -> None:
    shutil.copy(FILES[0], tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match="nowhere"):
        measurements.page(tmp_path)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_results_record_command_commit_and_host(measurements: ModuleType, file: Path) -> None:
    result = json.loads(file.read_text("utf-8"))
    argv = shlex.split(result["command"])
    script = ROOT / argv[0]
    if script.suffix == ".py":
        # shared options are in files that the scripts import
        source = script.read_text("utf-8")
        for shared in map(Path, PROGRAMS.values()):
            if re.search(rf"\bimport .*{shared.stem}", source):
                source += (ROOT / shared).read_text("utf-8")
        assert '"--quick"' in source
        unknown = [w for w in argv[1:] if w.startswith("--") and f'"{w}"' not in source]
        assert unknown == []
    else:
        assert argv[0] in ("make", "penstock")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert result["commit"]
    assert result["recorded"] == "by the command" or result["commit"] in result["recorded"]
    assert result["host"]["cpus_allowed"] > 0
    if result["recorded"] == "by the command":
        assert result["planted"]
        assert False not in [planted["found"] for planted in result["planted"]]
    for row in result["rows"]:
        assert {"case", "metric", "value", "unit"} <= set(row)
        assert bool(row.get("bar")) == bool(row.get("verdict"))
        assert row.get("verdict", "met") in measurements.VERDICTS
        if row.get("low") is not None:
            assert row["low"] <= row["value"] <= row["high"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_every_bench_and_study_has_a_quick_size_and_writes_results(script: Path) -> None:
    source = script.read_text("utf-8")
    for shared, file in PROGRAMS.items():
        if shared in source:
            source += (ROOT / file).read_text("utf-8")
    assert '"--quick"' in source
    assert "record.option(" in source
    assert "record.keep(" in source


class TestRecord:
    """`bench/record.py`."""

    @pytest.fixture(name="record")
    def _record(self) -> Any:
        from bench import record

        return record

    def test_verdicts_of_intervals(self, record: Any) -> None:
        row = {**record.row("a", "", "b", [3.0, 1.0, 2.0], "s"), "spread": record.INTERVAL}
        assert (row["value"], row["low"], row["high"], row["n"]) == (2.0, 1.0, 3.0, 3)
        for limit, verdict in ((3.5, "met"), (2.5, "undecided"), (0.5, "missed")):
            assert record.at_most(row, limit)["verdict"] == verdict
        for limit, verdict in ((0.5, "met"), (1.5, "undecided"), (3.5, "missed")):
            assert record.at_least(row, limit)["verdict"] == verdict

    def test_a_share_of_nothing_is_not_measured(self, record: Any) -> None:
        assert record.share("a", "", "valid", 0, 0)["verdict"] == "not measured"
        assert record.share("a", "", "valid", 0, 1)["verdict"] == "missed"
        assert record.share("a", "", "valid", 1, 1)["verdict"] == "met"

    def test_verdicts_of_ranges_use_the_median(self, record: Any) -> None:
        row = record.row("a", "", "b", [1.0, 2.0, 9.0], "s")
        assert record.at_most(row, 2.0)["verdict"] == "met"
        assert record.at_most(row, 1.9)["verdict"] == "missed"
        assert record.at_most(row, 1.9)["bar"] == "at most 1.9 s"

    def test_a_file_has_command_commit_and_host(
        self, record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record, "RESULTS", tmp_path)
        script = ROOT / "bench" / "conductor.py"
        for arguments in (
            ["--record", "x", "--runs", "4"],
            ["--runs", "4", "--json", "--record=x"],
        ):
            monkeypatch.setattr(sys, "argv", [str(script), *arguments])
            record.keep("x", [record.row("a", "", "b", [1 / 3], "s")], {"a late one": True})
            result = json.loads((tmp_path / "x.json").read_text("utf-8"))
            assert result["command"] == "bench/conductor.py --runs 4"
            assert result["planted"] == [{"what": "a late one", "found": True}]
            assert result["rows"][0]["value"] == 0.333333
            assert result["host"]["cpus_allowed"] > 0
            assert re.match(r"[0-9a-f]{8}", result["commit"])

    def test_nothing_is_written_without_a_name(
        self, record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record, "RESULTS", tmp_path)
        record.keep(None, [], {})
        assert list(tmp_path.iterdir()) == []
