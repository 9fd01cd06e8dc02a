"""`penstock workload`: make, show, convert; output and exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.parts.prediction.workloads.read import read_workload

GOLDEN = Path(__file__).parent.parent / "golden" / "wfformat"


@dataclass
class Result:
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture
def workload(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `penstock workload …` in this process."""

    def run(*argv: str | Path, status: int = 0) -> Result:
        monkeypatch.setattr(sys, "argv", ["penstock", "workload", *map(str, argv)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert (caught.value.code or 0) == status, err
        return Result(out, err)

    return run


def test_make_show_and_convert(tmp_path: Path, workload: Run) -> None:
    source = tmp_path / "reduce.json"
    workload("make", "reduce", "--width", "4", "--size", "small", "--optimised", "-o", source)
    shown = workload("show", source).stdout
    assert "reduce: 5 tasks in 2 stages, 9 files" in shown
    assert "4 MiB in existing files, 8 MiB read, 8 MiB written, 4 MiB of it results" in shown
    histogram = shown[shown.rindex("level  tasks") :].splitlines()
    assert histogram[1].split() == ["0", "4", "█" * 30, "4", "produce"]
    assert histogram[2].split() == ["1", "1", "█" * 8, "1", "reduce"]
    assert max(len(line) for line in shown.splitlines()) <= 100
    converted = tmp_path / "reduce.wf.json"
    workload("convert", source, "-o", converted, "--to", "wfformat")
    assert json.loads(converted.read_text())["schemaVersion"] == "1.6"
    assert read_workload(converted) == read_workload(source)


def test_show_as_json_has_every_number(tmp_path: Path, workload: Run) -> None:
    result = workload("show", GOLDEN / "diamond-1.5.json", "--json", "--aggregate")
    summary = json.loads(result.stdout)
    assert summary["tasks"] == 4
    assert summary["dependencies"] == 4
    assert summary["bytes"] == {"preloaded": 1000, "read": 3000, "written": 3000, "results": 1000}
    assert summary["compute_s"] == 9.0
    assert [(level["tasks"], level["stages"]) for level in summary["levels"]] == [
        (1, {"split": 1}),
        (2, {"sort": 2}),
        (1, {"merge": 1}),
    ]
    assert summary["aggregate"] == {"operations": 10, "merged": 10}
    share = json.loads(
        workload("show", GOLDEN / "diamond-1.5.json", "--json", "--io-share", "0.5").stdout
    )
    assert share["compute_s"] == 5.0


def test_aggregation_merges_consecutive_operations(tmp_path: Path, workload: Run) -> None:
    writes = ",".join(
        f'{{"op": "write", "file": "f", "offset_bytes": {i * 262144}, "size_bytes": 262144}}'
        for i in range(10)
    )
    path = tmp_path / "w.json"
    path.write_text(
        '{"schema": "penstock/workload/1", "tasks": [{"name": "t", "operations": ['
        + writes
        + "]}]}"
    )
    summary = json.loads(workload("show", path, "--json", "--aggregate").stdout)
    assert summary["aggregate"] == {"operations": 10, "merged": 1}


def test_to_stdout(tmp_path: Path, workload: Run) -> None:
    result = workload("make", "pipeline", "--width", "1", "-o", "-")
    path = tmp_path / "w.json"
    path.write_text(result.stdout)
    assert len(read_workload(path).tasks) == 3


def test_a_size_model_by_command(tmp_path: Path, workload: Run) -> None:
    out = tmp_path / "w.json"
    source = GOLDEN / "diamond-1.5.json"
    workload("convert", source, "-o", out, "--sizes", "lognormal:1", "--seed", "3")
    sizes = read_workload(out).file_sizes
    workload("convert", source, "-o", out, "--sizes", "lognormal:1", "--seed", "4")
    assert sum(sizes.values()) == sum(read_workload(out).file_sizes.values()) == 4000
    assert sizes != read_workload(out).file_sizes


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("show", "nowhere.json"), "nowhere.json: No such file or directory"),
        (("make", "circus", "-o", "w.json"), "expected pipeline, reduce"),
        (("make", "reduce", "--size", "huge", "-o", "w.json"), "expected small, medium, large"),
        (("make", "reduce", "--compute", "-1", "-o", "w.json"), "compute_s is -1"),
        (
            ("make", "montage", "--compute", "5", "-o", "w.json"),
            "montage: found --compute, without",
        ),
        (("make", "checkpoint", "--compute", "5", "-o", "w.json"), "found --compute, without"),
        (("make", "pipeline", "--rounds", "3", "-o", "w.json"), "expected --width, --file-bytes"),
        (("convert", "ok.json", "-o", "w.json", "--to", "yaml"), "expected penstock or wfformat"),
        (
            ("convert", "ok.json", "-o", "w.json", "--sizes", "lognormal:1"),
            "is for WfFormat instances",
        ),
        (("show", "ok.json", "--io-share", "2"), "a number from 0 to 1"),
        (("trace", "nowhere", "-o", "w.json"), "nowhere: found nothing; expected a bundle"),
        (("trace", "nowhere", "-o", "w.json", "--into", "ok.json"), "--stage NAME for each"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing(
    argv: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workload: Run,
) -> None:
    monkeypatch.chdir(tmp_path)
    workload("make", "pipeline", "--width", "1", "-o", "ok.json")
    result = workload(*argv, status=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert [p.name for p in tmp_path.iterdir()] == ["ok.json"]


def test_every_mistake_of_a_file_is_reported_with_its_line(tmp_path: Path, workload: Run) -> None:
    path = tmp_path / "w.json"
    path.write_text(
        '{"schema": "penstock/workload/1",\n "tasks": [{"name": "a", "operations": []},\n'
        ' {"name": "a", "after": ["x"], "operations": [{"op": "compute", "seconds": 1}]}]}'
    )
    result = workload("show", path, "--json", status=2)
    lines = [m["line"] for m in json.loads(result.stdout)["mistakes"]]
    assert lines == [2, 3, 3]


PAGE = Path(__file__).parents[2] / "docs" / "workload-file.md"


def test_the_examples_of_the_page_are_correct(tmp_path: Path, workload: Run) -> None:
    page = PAGE.read_text()
    described = tmp_path / "w.yaml"
    described.write_text(page.split("```yaml\n")[1].split("```")[0])
    assert json.loads(workload("show", described, "--json").stdout)["compute_s"] == 3.5
    workload_file = tmp_path / "reduce.json"
    workload("make", "reduce", "--size", "medium", "-o", workload_file)
    shown = workload("show", workload_file).stdout.splitlines()
    block = page.split("$ penstock workload show reduce.json\n")[1].split("\n\n")[0]
    assert [line[4:].rstrip() for line in block.splitlines()] == [line.rstrip() for line in shown]


def test_trace_and_a_stage_traced_again(tmp_path: Path, workload: Run) -> None:
    from tests.unit.test_workload_traced import stages

    old, new = tmp_path / "old.json", tmp_path / "new.json"
    workload(
        *("trace", *stages(tmp_path, "a", 100, 5), "--stage", "make", "--stage", "use", "-o", old)
    )
    assert read_workload(old).stages == ("make", "use")
    again, larger = stages(tmp_path, "b", 100, 2)[0], stages(tmp_path, "c", 101, 2)[0]
    workload("trace", again, "--stage", "make", "--into", old, "-o", new)
    assert read_workload(new).stages == ("make", "use")
    assert read_workload(new) != read_workload(old)
    refused = tmp_path / "refused.json"
    result = workload("trace", larger, "--stage", "make", "--into", old, "-o", refused, status=2)
    assert "was 100 bytes and is 101 bytes now" in result.stderr
    assert not refused.exists()
