"""Traces without privilege: the requests of a command, as logged by the emulated disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.bundle import Bundle
from penstock.host.journal.journal import Journal
from tests.integration.ground import is_clean, prepare_directory
from tests.support import commands
from tests.support.memory import locked_in_memory
from tests.support.waiting import read_pid

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]
SIZE = 1 << 20
KINDS_OF_A_TRACE = {"recording", "directory"}


class Ground:
    def __init__(self, directory: Path):
        self.backing, self.environment = prepare_directory(directory)
        self.mount = directory / "mount"
        self.mount.mkdir()

    def penstock(self, *arguments: str | Path, status: int = 0) -> str:
        result = commands.run(
            [Path(sys.executable).with_name("penstock"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )
        assert result.returncode == status, result.stderr
        return result.stdout if status == 0 else result.stderr

    def trace(self, *arguments: str | Path, options: tuple[str | Path, ...] = ()) -> Any:
        output = self.penstock("trace", "--disk", self.mount, "--json", *options, "--", *arguments)
        return json.loads(output)

    def fio(self, rw: str, *options: str) -> list[str]:
        return [
            *("fio", "--name=a", f"--filename={self.mount / 'f'}", f"--size={SIZE}", "--bs=8k"),
            *(f"--rw={rw}", "--output=/dev/null", *options),
        ]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    created = Ground(tmp_path_factory.mktemp("disk"))
    (created.backing / "f").write_bytes(os.urandom(SIZE))
    created.penstock("disk", "up", "none", "--backing", created.backing, "--mount", created.mount)
    yield created
    created.penstock("disk", "down", created.mount)
    (created.backing / "f").unlink()
    assert is_clean(created.backing)


def test_an_exact_trace_has_every_call(ground: Ground, tmp_path: Path) -> None:
    options = ("--exact", "-o", tmp_path / "t")
    document = ground.trace(*ground.fio("randread", "--number_ios=101"), options=options)
    (row,) = document["verdicts"]
    assert (row["requests"], row["bytes"], row["class"]) == (101, 101 * 8192, "random")
    assert row["basis"] == "device"
    assert (document["seen"], document["lost"]) == (101, 0)
    assert "Past the page cache" in document["closing"]
    bundle = Bundle.open(tmp_path / "t")
    assert bundle.table("io_events").num_rows == bundle.table("device_requests").num_rows == 101
    assert bundle.manifest["source"]["exact"] is True
    files = bundle.table("files").to_pylist()
    assert [row["path"] for row in files] == [str(ground.mount / "f")]
    ground.penstock("export", tmp_path / "t", "perfetto", "-o", tmp_path / "o.pftrace")
    without_exact = ground.trace(*ground.fio("read", "--invalidate=0"))
    assert without_exact["events"] > 0
    # the trace restores the cache: reads from memory do not reach the disk
    with locked_in_memory(ground.mount / "f"):
        cached = ground.trace(*ground.fio("read", "--invalidate=0"))
    assert cached["verdicts"] == []
    assert cached["closing"] == "No read or write reached the device."


def test_dirty_pages_are_written_back_in_a_phase(ground: Ground, tmp_path: Path) -> None:
    document = ground.trace(*ground.fio("write"), options=("-o", tmp_path / "t"))
    written = sum(row["bytes"] for row in document["verdicts"] if row["direction"] == "write")
    assert written == SIZE
    bundle = Bundle.open(tmp_path / "t")
    phases = {row["phase_id"]: row for row in bundle.table("phases").to_pylist()}
    assert set(phases) == {"workload", "write-back"}
    assert phases["workload"]["end_ns"] == phases["write-back"]["start_ns"]
    assert "page cache let through" in document["closing"]


class WaitingTrace:
    """A running trace, past the page cache, of a command that waits."""

    def __init__(self, ground: Ground, directory: Path):
        self.ground = ground
        started = directory / "begun"
        script = 'cat "$1" >/dev/null; echo $$ >"$0"; exec sleep 600'
        options = ("--disk", ground.mount, "--exact", "--json")
        program = Path(sys.executable).with_name("penstock")
        self.process = subprocess.Popen(
            [program, "trace", *options, "--", "sh", "-c", script, started, ground.mount / "f"],
            stdout=subprocess.PIPE,
            text=True,
            env=ground.environment,
        )
        self.command = read_pid(started)

    def open_entries(self) -> dict[str, str]:
        """Target of each change that the trace has to undo, by kind."""
        journal = Journal(Path(self.ground.environment["PENSTOCK_STATE"]) / "journal.jsonl")
        return {e.kind: e.target for e in journal.open_entries() if e.kind in KINDS_OF_A_TRACE}


def cached(ground: Ground) -> bool:
    """True if a file that is read again comes from the page cache.

    Tests in parallel drop the caches of the host: one of five attempts is enough.
    """
    before = -1
    for _ in range(6):
        (ground.mount / "f").read_bytes()
        (status,) = json.loads(ground.penstock("disk", "status", "--json"))["disks"]
        if status["stats"]["reads"] == before:
            return True
        before = status["stats"]["reads"]
    return False


def test_a_kill_leaves_the_disk_to_undo(ground: Ground, tmp_path: Path) -> None:
    trace = WaitingTrace(ground, tmp_path)
    try:
        entries = trace.open_entries()
        assert set(entries) == KINDS_OF_A_TRACE
        refused = ground.penstock("trace", "--disk", ground.mount, "--", "true", status=2)
        assert "is being traced already" in refused
        trace.process.kill()
        trace.process.wait(60)
        assert not cached(ground)
        undone = json.loads(ground.penstock("undo", "--json"))["undone"]
        assert {row["kind"]: row["outcome"] for row in undone} == dict.fromkeys(entries, "undone")
    finally:
        os.kill(trace.command, signal.SIGKILL)
    assert cached(ground)
    assert not Path(entries["directory"]).exists()
    assert trace.open_entries() == {}


def test_after_a_kill_the_next_trace_takes_over(ground: Ground, tmp_path: Path) -> None:
    trace = WaitingTrace(ground, tmp_path)
    trace.process.kill()
    trace.process.wait(60)
    os.kill(trace.command, signal.SIGKILL)
    ground.trace("true")
    assert set(trace.open_entries()) == {"directory"}
    assert cached(ground)
    ground.penstock("undo")
    assert trace.open_entries() == {}


def test_an_interrupt_ends_the_command_and_leaves_a_report(ground: Ground, tmp_path: Path) -> None:
    trace = WaitingTrace(ground, tmp_path)
    directory = trace.open_entries()["directory"]
    trace.process.terminate()
    document = json.loads(trace.process.communicate(timeout=60)[0])
    assert trace.process.returncode == document["exit_status"] == 128 + signal.SIGTERM
    assert document["seen"] > 0
    assert trace.open_entries() == {}
    assert not Path(directory).exists()
    assert cached(ground)


def test_bad_input(ground: Ground, tmp_path: Path) -> None:
    message = ground.penstock("trace", "--disk", tmp_path, "--", "true", status=2)
    assert "no disk of `penstock disk up`" in message
    assert "--disk MOUNT" in ground.penstock("trace", "--exact", "--", "true", status=2)
    assert "no command" in ground.penstock("trace", "--disk", ground.mount, status=2)
    ground.penstock("trace", "--disk", ground.mount, "--", "false", status=1)
    ground.penstock("trace", "--disk", ground.mount, "--", "no-such-program", status=127)


def test_a_refusal_names_the_option_without_privilege(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.errors import PenstockError
    from penstock.observe.trace.capture.session import Session, trace_command

    for variable in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
        (tmp_path / variable).mkdir(mode=0o700)
        os.chown(tmp_path / variable, 1000, 1000)
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PenstockError, match="penstock trace --disk MOUNT"):
        trace_command(["true"], Session("trace", 1 << 20, 0, None, quiet=True))
