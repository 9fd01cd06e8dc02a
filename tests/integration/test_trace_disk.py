"""Without privilege: a command's requests as the emulated disk logged them. Needs FUSE and fio."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.bundle import Bundle
from penstock.host.journal.journal import Journal
from tests.integration.ground import clean, prepared
from tests.support import commands
from tests.support.memory import kept_in_memory

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]
SIZE = 1 << 20
KINDS_OF_A_TRACE = {"recording", "directory"}


class Ground:
    def __init__(self, folder: Path):
        self.backing, self.environment = prepared(folder)
        self.mount = folder / "mount"
        self.mount.mkdir()

    def penstock(self, *words: str | Path, status: int = 0) -> str:
        done = commands.run(
            [Path(sys.executable).with_name("penstock"), *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    def trace(self, *words: str | Path, options: tuple[str | Path, ...] = ()) -> Any:
        said = self.penstock("trace", "--disk", self.mount, "--json", *options, "--", *words)
        return json.loads(said)

    def fio(self, rw: str, *more: str) -> list[str]:
        return [
            *("fio", "--name=a", f"--filename={self.mount / 'f'}", f"--size={SIZE}", "--bs=8k"),
            *(f"--rw={rw}", "--output=/dev/null", *more),
        ]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("disk"))
    (made.backing / "f").write_bytes(os.urandom(SIZE))
    made.penstock("disk", "up", "none", "--backing", made.backing, "--mount", made.mount)
    yield made
    made.penstock("disk", "down", made.mount)
    (made.backing / "f").unlink()
    assert clean(made.backing)


def test_exact_shows_every_call(ground: Ground, tmp_path: Path) -> None:
    options = ("--exact", "-o", tmp_path / "t")
    found = ground.trace(*ground.fio("randread", "--number_ios=101"), options=options)
    (row,) = found["verdicts"]
    assert (row["requests"], row["bytes"], row["class"]) == (101, 101 * 8192, "random")
    assert row["basis"] == "device"
    assert (found["seen"], found["lost"]) == (101, 0)
    assert "Past the page cache" in found["closing"]
    bundle = Bundle.open(tmp_path / "t")
    assert bundle.table("io_events").num_rows == bundle.table("device_requests").num_rows == 101
    assert bundle.manifest["source"]["exact"] is True
    files = bundle.table("files").to_pylist()
    assert [row["path"] for row in files] == [str(ground.mount / "f")]
    ground.penstock("export", tmp_path / "t", "perfetto", "-o", tmp_path / "o.pftrace")
    again = ground.trace(*ground.fio("read", "--invalidate=0"))
    assert again["events"] > 0
    # afterwards the cache is back: reading what is in memory does not reach the disk
    with kept_in_memory(ground.mount / "f"):
        cached = ground.trace(*ground.fio("read", "--invalidate=0"))
    assert cached["verdicts"] == []
    assert cached["closing"] == "No read or write reached the device."


def test_what_is_left_dirty_is_written_back_and_marked(ground: Ground, tmp_path: Path) -> None:
    found = ground.trace(*ground.fio("write"), options=("-o", tmp_path / "t"))
    written = sum(row["bytes"] for row in found["verdicts"] if row["direction"] == "write")
    assert written == SIZE
    bundle = Bundle.open(tmp_path / "t")
    phases = {row["phase_id"]: row for row in bundle.table("phases").to_pylist()}
    assert set(phases) == {"workload", "write-back"}
    assert phases["workload"]["end_ns"] == phases["write-back"]["start_ns"]
    assert "page cache let through" in found["closing"]


class Begun:
    """A trace past the page cache of a command that waits, under way."""

    def __init__(self, ground: Ground, folder: Path):
        self.ground = ground
        begun = folder / "begun"
        script = 'cat "$1" >/dev/null; echo $$ >"$0"; exec sleep 60'
        options = ("--disk", ground.mount, "--exact", "--json")
        program = Path(sys.executable).with_name("penstock")
        self.process = subprocess.Popen(
            [program, "trace", *options, "--", "sh", "-c", script, begun, ground.mount / "f"],
            stdout=subprocess.PIPE,
            text=True,
            env=ground.environment,
        )
        until = time.monotonic() + 30
        while not (begun.exists() and begun.read_text().endswith("\n")):
            assert time.monotonic() < until
            time.sleep(0.05)
        self.command = int(begun.read_text())

    def open(self) -> dict[str, str]:
        """Kind and target of what the trace has to take back."""
        journal = Journal(Path(self.ground.environment["PENSTOCK_STATE"]) / "journal.jsonl")
        return {e.kind: e.target for e in journal.open_entries() if e.kind in KINDS_OF_A_TRACE}


def cached(ground: Ground) -> bool:
    """True if a file that is read again comes from the page cache.

    Tests beside this one drop the caches of the host: one of five times is enough.
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
    begun = Begun(ground, tmp_path)
    try:
        found = begun.open()
        assert set(found) == KINDS_OF_A_TRACE
        refused = ground.penstock("trace", "--disk", ground.mount, "--", "true", status=2)
        assert "is being traced already" in refused
        begun.process.kill()
        begun.process.wait(30)
        assert not cached(ground)
        done = json.loads(ground.penstock("undo", "--json"))["undone"]
        assert {row["kind"]: row["outcome"] for row in done} == dict.fromkeys(found, "undone")
    finally:
        os.kill(begun.command, signal.SIGKILL)
    assert cached(ground)
    assert not Path(found["directory"]).exists()
    assert begun.open() == {}


def test_after_a_kill_the_next_trace_takes_over(ground: Ground, tmp_path: Path) -> None:
    begun = Begun(ground, tmp_path)
    begun.process.kill()
    begun.process.wait(30)
    os.kill(begun.command, signal.SIGKILL)
    ground.trace("true")
    assert set(begun.open()) == {"directory"}
    assert cached(ground)
    ground.penstock("undo")
    assert begun.open() == {}


def test_an_interrupt_reaches_the_command_and_leaves_a_report(
    ground: Ground, tmp_path: Path
) -> None:
    begun = Begun(ground, tmp_path)
    folder = begun.open()["directory"]
    begun.process.terminate()
    said = json.loads(begun.process.communicate(timeout=30)[0])
    assert begun.process.returncode == said["exit_status"] == 128 + signal.SIGTERM
    assert said["seen"] > 0
    assert begun.open() == {}
    assert not Path(folder).exists()
    assert cached(ground)


def test_bad_input(ground: Ground, tmp_path: Path) -> None:
    told = ground.penstock("trace", "--disk", tmp_path, "--", "true", status=2)
    assert "no disk of `penstock disk up`" in told
    assert "--disk MOUNT" in ground.penstock("trace", "--exact", "--", "true", status=2)
    assert "no command" in ground.penstock("trace", "--disk", ground.mount, status=2)
    ground.penstock("trace", "--disk", ground.mount, "--", "false", status=1)
    ground.penstock("trace", "--disk", ground.mount, "--", "no-such-program", status=127)


def test_refusal_names_the_way_without_privilege(
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
