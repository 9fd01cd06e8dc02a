"""`penstock analyse` of a trace: verdicts with their basis, findings, and status 3 for a severe one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import cli
from penstock.archive.bundle import Bundle
from penstock.observe.trace.recordings.importers import import_trace
from tests.examples.trace import START_NS, Row, event, write_bundle
from tests.unit.test_trace_import import blktrace


class CommandLine:
    """Run `penstock analyse`; return its status, stdout and stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["penstock", "analyse", *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output = self._capsys.readouterr()
        return int(end.value.code or 0), output.out, output.err


@pytest.fixture
def analyse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def scattered(path: Path, lost: int = 0) -> Path:
    """A run that waits for random reads."""
    rng = np.random.default_rng(5)
    rows: list[Row] = [
        event(100_000 * n, offset_bytes=int(rng.integers(0, 1 << 20)) * 4096, latency_ns=90_000)
        for n in range(500)
    ]
    verdict: dict[str, Any] = {"file_id": 1, "path": "/data/x", "direction": "read", "tid": None}
    verdict |= {"class": "random", "requests": 500, "bytes": 500 * 4096, "basis": "calls"}
    verdict |= {"median_size_bytes": 4096.0, "phase_id": None, "sentence": "random"}
    verdict["evidence"] = json.dumps({"calls": 500, "time_ns": 500 * 90_000})
    write_bundle(path, rows, patterns=[verdict])
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["times"] = {"start_ns": START_NS, "end_ns": START_NS + 50_000_000}
    manifest["receipts"] = {"trace": {"seen": 500, "kept": 500, "lost": lost}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_findings_are_reported_and_can_fail_a_check(tmp_path: Path, analyse: CommandLine) -> None:
    bundle = scattered(tmp_path / "t")
    status, stdout, _ = analyse(bundle)
    assert status == 0
    assert "/data/x read (calls):" in stdout
    assert "trace-random-reads: " in stdout
    assert analyse(bundle, "--fail-on", "warning")[0] == 3
    assert analyse(bundle, "--fail-on", "error")[0] == 0
    document = json.loads(analyse(bundle, "--json")[1])
    assert {row["code"] for row in document["findings"]} >= {"trace-random-reads"}
    assert [row["class"] for row in document["verdicts"]] == ["random"]


def test_the_conclusion_comes_first_and_small_groups_are_counted(
    tmp_path: Path, analyse: CommandLine
) -> None:
    bundle = scattered(tmp_path / "t")
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps(manifest | {"closing": "It waits."}))
    lines = analyse(bundle)[1].splitlines()
    assert lines[0] == "It waits."
    assert lines[1].startswith("trace-random-reads: ")
    assert "too few" not in lines[-1]
    short = tmp_path / "short"
    write_bundle(short, [event(n, offset_bytes=4096 * n, latency_ns=900) for n in range(5)])
    assert analyse(short)[1].splitlines()[-1].startswith("and 1 with too few requests to evaluate")


def test_without_events_the_recorded_verdicts_are_used(
    tmp_path: Path, analyse: CommandLine
) -> None:
    bundle = scattered(tmp_path / "t")
    (bundle / "io_events.parquet").unlink()
    status, stdout, stderr = analyse(bundle, "--fail-on", "warning")
    assert status == 3
    assert "\n/data/x read (calls): random\n" in stdout
    assert "--mode trace" in stderr


def test_an_imported_device_trace_keeps_its_basis(tmp_path: Path, analyse: CommandLine) -> None:
    blktrace(tmp_path, 211, "<")
    import_trace([tmp_path / "sda"], tmp_path / "b")
    rows = json.loads(analyse(tmp_path / "b", "--json")[1])["verdicts"]
    assert {row["direction"]: row["basis"] for row in rows} == {"read": "device", "write": "device"}
    # the log of an emulated disk names files in its requests: they are not classified a second time
    requests = Bundle.open(tmp_path / "b").table("device_requests")
    requests = requests.append_column("offset_bytes", requests["device_offset_bytes"])
    names = pa.array(["device 8:0"] * requests.num_rows)
    Bundle.open(tmp_path / "b").write_table(
        "device_requests", requests.append_column("file", names)
    )
    assert len(json.loads(analyse(tmp_path / "b", "--json")[1])["verdicts"]) == len(rows)


@pytest.mark.parametrize("name", ["files", "io_events", "patterns"])
def test_a_damaged_table_is_an_error_of_one_line(
    tmp_path: Path, analyse: CommandLine, name: str
) -> None:
    bundle = scattered(tmp_path / "t")
    (bundle / f"{name}.parquet").write_bytes(b"PAR1 nothing PAR1")
    status, _, stderr = analyse(bundle)
    assert (status, stderr.count("\n"), "traceback" in stderr.lower()) == (2, 1, False)
