"""`penstock check` with tables and studies: verdicts on the terminal, as JSON and as JUnit XML."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from penstock import cli
from penstock.archive.documents import CHECK
from penstock.cli import main
from tests.unit.planted_study import Doings, Planted
from tests.unit.test_oracle import sample

EXPECTED = """penstock_expected: 1
name: suite
rows:
  - {module: client, operation: write, metric: client_time, predicted: 10, unit: ms}
  - {module: client, operation: read, metric: client_time, predicted: 10, unit: ms}
"""


@dataclass
class Result:
    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


Run = Callable[..., Result]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["penstock", "check", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return Result(int(caught.value.code or 0), out, err)

    return run


def table(path: Path, **operations: Iterable[float]) -> Path:
    """A CSV of client times [s], one trial for each value."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["module", "operation", "trial", "value"])
        for operation, values in operations.items():
            writer.writerows(
                ["client", operation, trial, value] for trial, value in enumerate(values)
            )
    return path


@pytest.fixture
def expected(tmp_path: Path) -> Path:
    path = tmp_path / "expected.yaml"
    path.write_text(EXPECTED)
    return path


GOOD = [v / 1000 for v in sample(10.2, 0.2)]
SLOW = [v / 1000 for v in sample(12.5, 0.6)]


def test_all_ok_is_status_0(check: Run, expected: Path, tmp_path: Path) -> None:
    # without a unit in the table, the unit of the rows applies
    run = table(tmp_path / "run.csv", write=sample(10.2, 0.2), read=sample(9.9, 0.1))
    result = check(expected, run)
    assert result.status == 0
    assert "2 rows: 2 OK." in result.stdout
    assert check(expected, run, "--json").document["ok"]


def test_one_row_off_is_status_3_and_fits_a_terminal(
    check: Run, expected: Path, tmp_path: Path
) -> None:
    run = table(tmp_path / "run.csv", write=sample(12.5, 0.6), read=sample(9.9, 0.1))
    result = check(expected, run, "--blame")
    assert result.status == 3
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "client_time of client/write is SLOW: 12.5 ms instead of 10.0 ms." in result.stdout
    assert "2 rows: 1 SLOW, 1 OK." in result.stdout
    steps = [
        line.split(":")[0].strip() for line in result.stdout.splitlines() if "evidence:" in line
    ]
    assert steps[:2] == ["homogeneity", "launch skew"]
    assert steps[-1] == "locks"


def test_the_document_has_the_documented_keys(check: Run, expected: Path, tmp_path: Path) -> None:
    run = table(tmp_path / "run.csv", write=sample(12.5, 0.6), read=sample(9.9, 0.1))
    document = check(expected, run, "--json").document
    keys = {k.path.rstrip("?") for k in CHECK.keys}
    assert set(document) == {k.partition("[]")[0] for k in keys}
    for part in ("rows", "blame"):
        documented = {k.partition("[].")[2] for k in keys if k.startswith(f"{part}[]")}
        assert {key for item in document[part] for key in item} == documented
    assert [row["verdict"] for row in document["rows"]] == ["SLOW", "OK"]
    assert document["counts"] == {"SLOW": 1, "TOO_FAST": 0, "NOISY": 0, "UNSTABLE": 0, "OK": 1}


def test_junit_has_a_failure_of_the_verdict(check: Run, expected: Path, tmp_path: Path) -> None:
    run = table(tmp_path / "run.csv", write=sample(10.9, 2.5), read=sample(9.9, 0.1))
    file = tmp_path / "junit.xml"
    assert check(expected, run, "--junit", file).status == 3
    suite = ElementTree.parse(file).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    bad, good = suite
    assert (bad.get("classname"), bad.get("name")) == ("client.write", "client_time")
    assert bad[0].tag == "failure"
    assert bad[0].get("type") == "NOISY"
    assert good[0].tag == "system-out"


def test_units_of_a_table_are_converted(check: Run, expected: Path, tmp_path: Path) -> None:
    rows = [
        {
            "module": "client",
            "operation": operation,
            "trial": str(trial),
            "metric": "client_time",
            "value": value,
            "unit": "s",
        }
        for operation, values in (("write", GOOD), ("read", SLOW))
        for trial, value in enumerate(values)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "run.parquet")
    document = check(expected, tmp_path / "run.parquet", "--json").document
    assert [row["verdict"] for row in document["rows"]] == ["OK", "SLOW"]
    assert document["rows"][0]["mean"] == pytest.approx(10.2)
    rows[0]["unit"] = "MiB"
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "run.parquet")
    result = check(expected, tmp_path / "run.parquet")
    assert result.status == 2
    assert "MiB is a size, ms is a time" in result.stderr


def test_requests_of_one_trial_are_one_value(check: Run, expected: Path, tmp_path: Path) -> None:
    run = table(tmp_path / "run.csv", write=sample(10.2, 0.2), read=sample(9.9, 0.1))
    with run.open("a") as file:
        file.writelines(f"client,write,{trial},10.2\n" for trial in range(15))
    row = check(expected, run, "--json").document["rows"][0]
    assert row["n"] == 15
    assert row["sd"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module,operation,value\nclient,write,1\n", "expected trial among them"),
        ("module,operation,trial,value\n", "found no row"),
        ("module,operation,trial,value\nclient,write,1,nan\n", "row 1: found nan"),
        ("module,operation,trial,value\nclient,write,1,1e300\n", "row 1: found 1e+300"),
        ("module,operation,trial,value\nclient,write,1,x\n", "found no readable table"),
        ("module,operation,trial,value\n,write,1,2\n", "row 1: found no module"),
        ("module,operation,trial,value,value\nclient,write,1,2,3\n", "the column value twice"),
        ("module,operation,trial,value\nclient,write,1,2\n", "client/read: expected by suite"),
        (
            "module,operation,trial,value\nclient,write,1,2\nclient,read,1,2\n",
            "found 1 trial; expected 15 or more",
        ),
        ("\0", "expected a table"),
    ],
)
def test_invalid_tables_are_status_2(
    text: str, message: str, check: Run, expected: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.csv").write_text(text)
    result = check(expected, tmp_path / "run.csv")
    assert result.status == 2, result.stdout
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_other_bad_input(check: Run, expected: Path, tmp_path: Path) -> None:
    run = table(tmp_path / "run.csv", write=sample(10.2, 0.2), read=sample(9.9, 0.1))
    for arguments, message in (
        ((expected, tmp_path / "none.csv"), "found nothing; expected a table"),
        ((expected, tmp_path), "found a directory; expected a table"),
        ((tmp_path / "none.yaml", run), "No such file"),
        ((expected, run, "--tolerance", "20%"), "--tolerance is for the output of"),
        ((expected, run, "--tolerance", "lots"), "--tolerance: found 'lots'"),
        ((expected, run, "--junit", tmp_path / "no" / "j.xml"), "found no directory"),
    ):
        result = check(*arguments)
        assert result.status == 2, arguments
        assert message in result.stderr


def planted(out: Path, slower: float = 1.0) -> Path:
    """A study of one factor with 16 valid runs for each level; with b, its log file is slow."""

    def doings(levels: Any) -> Doings:
        seconds = 2.0 if levels["kind"] == "a" else 2.0 * slower
        return Doings(calls=(("/x/log", "write", "sequential", 100, 4096, seconds),))

    study = Planted(
        "Which?",
        {"kind": ["a", "b"]},
        lambda levels: {"throughput": 100.0 if levels["kind"] == "a" else 100.0 / slower},
        replicates=16,
        noise=0.01,
        doings=doings,
    )
    return study.write(out)


def test_a_study_is_compared_with_its_prediction(check: Run, tmp_path: Path) -> None:
    rows = [
        {"treatment_id": t, "response": "throughput", "unit": "1/s", "predicted": 100.0}
        for t in ("t01", "t02")
    ]
    prediction = tmp_path / "prediction.json"
    prediction.write_text(json.dumps({"predictions": rows, "score": {}}))
    assert check(prediction, planted(tmp_path / "even")).status == 0
    out = planted(tmp_path / "slow", 1.3)
    result = check(prediction, out, "--json")
    assert result.status == 3
    # a rate: less is slow
    assert [row["verdict"] for row in result.document["rows"]] == ["OK", "SLOW"]
    assert check(prediction, out, "--tolerance", "50%").status == 0
    assert check(prediction, f"{out}:t01").status == 0


def test_files_of_a_traced_study_are_operations(check: Run, tmp_path: Path) -> None:
    expected = tmp_path / "expected.yaml"
    out = planted(tmp_path / "out", 1.3)
    bundle = out / "runs" / "r001"
    if not (bundle / "files.parquet").exists():
        for run in (out / "runs").iterdir():
            files = pa.table({"file_id": pa.array([1]), "path": pa.array(["/x/log"])})
            pq.write_table(files, run / "files.parquet")
    row = (
        "  - {{module: {}, operation: write /x/log, metric: mean_time, predicted: 20, unit: ms}}\n"
    )
    head = "penstock_expected: 1\nrows:\n"
    expected.write_text(head + row.format("t01") + row.format("t02"))
    result = check(expected, out, "--json")
    assert result.status == 3, result.stderr
    assert [r["verdict"] for r in result.document["rows"]] == ["OK", "SLOW"]
    assert result.document["rows"][1]["mean"] == pytest.approx(26.0)


def test_a_traced_study_is_compared_with_another(check: Run, tmp_path: Path) -> None:
    """Rows have their metric's unit.

    Files of one run, and flushes, which have no bytes, are left out.
    """
    before, after = (planted(tmp_path / name, slow) for name, slow in (("a", 1.0), ("b", 1.3)))
    for out in (before, after):
        for run in sorted((out / "runs").iterdir()):
            files = pa.table({"file_id": pa.array([1]), "path": pa.array(["/x/log"])})
            if not (run / "files.parquet").exists():
                pq.write_table(files, run / "files.parquet")
    result = check(before, after, "--json", "--trials", "2", "--tolerance", "10%")
    assert result.status == 3, result.stderr
    rows = {(r["module"], r["operation"], r["metric"]): r for r in result.document["rows"]}
    assert rows["t01", "write /x/log", "bytes"]["unit"] == "B"
    assert rows["t02", "write /x/log", "mean_time"]["verdict"] == "SLOW"
    part = check(f"{before}:t01", f"{after}:t01", "--json", "--trials", "2")
    assert {r["module"] for r in part.document["rows"]} == {"t01"}, part.stderr


WORKFLOW = {
    "schema": "penstock/prediction/1",
    "workload": "w",
    "makespan_s": 4.0,
    "stages": [{"name": "map", "start_s": 1.0, "end_s": 3.0}],
    "operations": {"write": {"n": 8, "mean_s": 0.01}, "open": {"n": 8, "mean_s": 0.0}},
    "stations": [
        {"kind": "storage", "requests": 10, "busy_s": 1.0, "wait_mean_s": 0.4},
        {"kind": "storage", "requests": 30, "busy_s": 1.0, "wait_mean_s": 0.0},
        {"kind": "net_in", "requests": 30, "busy_s": 9.0, "wait_mean_s": 0.0},
    ],
}


def test_a_workflows_prediction_is_rows_by_module(check: Run, tmp_path: Path) -> None:
    prediction = tmp_path / "prediction.json"
    prediction.write_text(json.dumps(WORKFLOW))
    run = tmp_path / "run.csv"
    rows = {
        ("workflow", "run", "makespan"): 4.0,
        ("stage", "map", "makespan"): 2.0,
        ("client", "write", "client_time"): 0.01,
        ("storage", "request", "server_time"): 0.15,  # (10 · 0.4 + 1 + 1) s of 40 requests
    }
    lines = ["module,operation,metric,trial,value"]
    lines += [f"{a},{b},{c},{t},{v}" for (a, b, c), v in rows.items() for t in range(15)]
    run.write_text("\n".join(lines))
    document = check(prediction, run, "--json").document
    assert [(r["module"], r["verdict"]) for r in document["rows"]] == [
        (module, "OK") for module, _, _ in rows
    ]
    assert all(row["gap"] == pytest.approx(0, abs=1e-12) for row in document["rows"])


def test_a_damaged_prediction_is_refused(check: Run, tmp_path: Path) -> None:
    run = table(tmp_path / "run.csv", write=GOOD)
    for key, value in (
        ("operations", 3),
        ("stages", [{}]),
        ("stations", [{"kind": "storage", "requests": "many"}]),
        ("makespan_s", "long"),
    ):
        (tmp_path / "p.json").write_text(json.dumps(WORKFLOW | {key: value}))
        result = check(tmp_path / "p.json", run)
        assert result.status == 2, key


EXAMPLES = Path(__file__).parents[2] / "examples" / "check"


def test_the_example_matches_its_page(check: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parents[1])
    result = check("examples/check/expected.yaml", "examples/check/measured.csv")
    assert result.status == 3
    assert "lock-contention: manager waits for a lock" in result.stdout
    page = Path("docs/check.md").read_text()
    shown = page.partition("examples/check/measured.csv\n")[2].partition("\n\nIn `tests")[0]
    assert [line.strip() for line in shown.splitlines() if line.strip()] == [
        line.strip() for line in result.stdout.splitlines() if line.strip()
    ]


def test_the_workflow_for_continuous_integration_uses_valid_options() -> None:
    text = (EXAMPLES / "github-actions.yaml").read_text()
    workflow = yaml.safe_load(text)
    # it is in no package index, where anybody could register the name
    assert not re.search(r"pip install (-\S+ )*penstock\s", text)
    assert {"push", "schedule"} <= set(workflow[True])  # `on` in YAML 1.1
    (line,) = [
        step["run"]
        for step in workflow["jobs"]["check"]["steps"]
        if "penstock check" in step.get("run", "")
    ]
    argv = line.split()[1:]
    command = cli._command("check")
    options = {option for p in command.params for option in p.opts}
    assert argv[0] == "check"
    assert {word for word in argv if word.startswith("--")} <= options
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    assert len(arguments) == 2
