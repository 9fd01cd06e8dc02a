"""Options of `penstock trace` about its result: findings, hashed names, pairs of runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from tests.integration.tracing import NEEDS_TRACER, known_cost, penstock

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER
PENSTOCK = Path(sys.executable).with_name("penstock")
#: flush after every write: a finding that does not depend on the page cache
FLUSHES = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(int(sys.argv[2])):
    os.write(fd, bytes(4096)); os.fdatasync(fd)
os._exit(0)
"""


def trace(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    return penstock("trace", *arguments, status=status)


def test_a_finding_is_reported_and_can_fail_a_check(tmp_path: Path) -> None:
    command = ("--", sys.executable, "-c", FLUSHES, tmp_path / "log", "400")
    document = json.loads(trace("--json", "--fail-on", "error", *command).stdout)
    assert "trace-fsync-storm" in {finding["code"] for finding in document["findings"]}
    failed = trace("--fail-on", "warning", *command, status=3)
    assert "trace-fsync-storm" in failed.stdout


def test_the_status_of_the_command_takes_precedence_over_findings() -> None:
    trace("--fail-on", "info", "--", "sh", "-c", "exit 7", status=7)


def test_names_are_hashed(tmp_path: Path) -> None:
    secret = tmp_path / "patients" / "Müller \n.db"
    secret.parent.mkdir()
    secret.write_bytes(os.urandom(1 << 20))
    key, bundle = tmp_path / "key", tmp_path / "T"
    key.write_text("0123456789abcdef0123456789abcdef")
    trace("-m", "trace", "-o", bundle, "--anonymize", key, "--", "cksum", secret)
    for path in bundle.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert b"patients" not in content, path
        assert "Müller".encode() not in content, path
    for path in bundle.glob("*.parquet"):
        table = pq.read_table(path)
        for name in {"path", "file", "path_hex", "program"} & set(table.column_names):
            for value in filter(None, table.column(name).to_pylist()):
                text = bytes.fromhex(value).decode() if name == "path_hex" else value
                assert re.fullmatch("(/?[0-9a-f]{12})+", text), (path.stem, name, text)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["command"] == []
    assert not (bundle / "stdout.txt").exists()


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    result = trace("--anonymize", key, "--", "true", status=2)
    assert "found a key of 5 bytes" in result.stderr


def test_the_command_is_omitted_if_names_are_hashed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    result = trace("--json", "--anonymize", key, "--", "cat", "/etc/hostname")
    assert json.loads(result.stdout)["command"] == []
    assert "hostname" not in result.stdout


def test_a_missing_key_is_reported_before_the_trace(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = ("--file", tmp_path / "file", "--seconds", "60", "-o", tmp_path / "T")
    result = trace("--anonymize", tmp_path / "key", *options, status=2)
    assert "expected a file" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_pairs_of_runs_are_undecided(tmp_path: Path) -> None:
    command = ("--", sys.executable, "-c", FLUSHES, tmp_path / "log", "20")
    document = json.loads(trace("--json", "--calibrate", "2", *command).stdout)
    paired = document["overhead"]["paired"]
    assert paired["pairs"] == 2
    assert paired["verdict"] == "undecided"  # two pairs have no interval
    assert Path("/proc/sys/kernel/bpf_stats_enabled").read_text().strip() == "0"


def test_a_command_that_fails_cannot_be_calibrated() -> None:
    result = trace("--calibrate", "2", "--", "false", status=125)
    assert "again and again" in result.stderr


def test_the_cost_of_tracing_is_measured_after_the_command(tmp_path: Path) -> None:
    """In a new state the measurement follows the command; Ctrl-C skips it and keeps the result."""
    environment = os.environ | {"PENSTOCK_STATE": str(tmp_path / "state")}
    command = [PENSTOCK, "trace", "--json", "--", "sh", "-c", "echo begun >&2"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first_line, second_line = process.stderr.readline(), process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.stdout.read(), process.stderr.read()
    assert first_line == "begun\n"
    assert "measuring the cost of tracing" in second_line
    assert "interrupted" in errors
    assert process.returncode == 0
    assert "of another machine" in json.loads(output)["overhead"]["added_ns_basis"]
    assert not (tmp_path / "state" / "trace-cost.json").exists()
