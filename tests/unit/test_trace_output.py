"""The output of a traced command arrives completely, with a failed log and with a slow reader."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from penstock.host.processes.processes import start_ticks
from penstock.observe.trace.capture.output import copied

MANY = 300_000


class Reader(threading.Thread):
    """Read a pipe to its end, `after_s` after the start."""

    def __init__(self, source: int, after_s: float):
        super().__init__(daemon=True)
        self.source, self.after_s, self.read = source, after_s, b""
        self.start()

    def run(self) -> None:
        time.sleep(self.after_s)
        while chunk := os.read(self.source, 4096):
            self.read += chunk


def output_of(
    log: Path, command: str, *, after_s: float = 0.0, blocking: bool = True, behind: bool = False
) -> tuple[int, bytes, str | None]:
    """Status of a shell command, its output that arrived, and the reason for a given-up log."""
    source, sink = os.pipe()
    os.set_blocking(sink, blocking)
    reader = Reader(source, after_s)
    with copied(log, sink, lambda: behind) as output:
        status = subprocess.run(["sh", "-c", command], stdout=output.sink, check=False).returncode
    os.close(sink)
    reader.join(60)
    return status, reader.read, output.unwritten


@pytest.mark.parametrize("blocking", [True, False])
def test_the_output_arrives_and_is_logged(tmp_path: Path, blocking: bool) -> None:
    command = f"head -c {MANY} /dev/zero | tr '\\0' x"
    status, read, unwritten = output_of(tmp_path / "log", command, after_s=0.3, blocking=blocking)
    assert (status, unwritten) == (0, None)
    assert read == (tmp_path / "log").read_bytes() == b"x" * MANY


def test_a_full_disk_ends_the_log_but_not_the_command() -> None:
    status, read, unwritten = output_of(Path("/dev/full"), f"head -c {MANY} /dev/zero && exit 7")
    assert (status, len(read)) == (7, MANY)
    assert unwritten == "full: No space left on device"


def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    _, read, _ = output_of(tmp_path / "log", f"head -c {MANY} /dev/zero", after_s=2.5)
    assert len(read) == MANY


def test_remaining_children_are_not_awaited(tmp_path: Path) -> None:
    source, sink = os.pipe()
    before = time.monotonic()
    command = "echo said; sleep 600 & echo $! > pid"
    with copied(tmp_path / "log", sink, lambda: True) as output:
        subprocess.run(["sh", "-c", command], stdout=output.sink, cwd=tmp_path)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert time.monotonic() - before > 1.5
        assert start_ticks(pid) is not None
        assert os.read(source, 100) == b"said\n"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(source)
        os.close(sink)


def test_a_closed_reader_does_not_block_the_log(tmp_path: Path) -> None:
    source, sink = os.pipe()
    os.close(source)
    with copied(tmp_path / "log", sink, lambda: False) as output:
        subprocess.run(["head", "-c", str(MANY), "/dev/zero"], stdout=output.sink, check=True)
    assert (tmp_path / "log").stat().st_size == MANY
