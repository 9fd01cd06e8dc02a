"""Planted failures: the certificate must detect a slow disk and a busy host."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from cells import MB, Cell

from penstock.analyse.fidelity.fidelity import certificate, is_valid
from penstock.emulate.disks.request_log import read_disk_log
from penstock.emulate.disks.server import DiskServer
from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal

PROFILE = Path(__file__).parent / "lognormal-2ms.json"
CELL = Cell("psync", "randread", True, 16 * MB, 8 * MB)


Outcome = tuple[str, str, bool | None]


def slow_disk() -> Outcome:
    """A disk 5 % slower than its profile: the requirement of the check, its result, and whether it is
    detected. None: the host is so busy that a correct disk would not be accepted either.
    """
    wording = "planted: a disk 5 % slow is found out"
    sound, reason_of_sound = is_valid(_certified())
    if not sound:
        return wording, f"undecided: a correct disk is not accepted either: {reason_of_sound}", None
    valid, reason = is_valid(_certified(slow_by=0.05))
    seen = "rate is −" in reason or "time is +" in reason
    return wording, reason or "no deviation was reported", seen and not valid


def busy_host() -> Outcome:
    """Two busy loops per core next to the disk."""
    with _busy(2 * (os.cpu_count() or 1)):
        certificate = _certified()
    valid, reason = is_valid(certificate)
    verdicts = ", ".join(sorted(set(certificate["verdict"].to_pylist())))
    evidence = f"{verdicts}: {reason}" if reason else verdicts
    return "planted: an overloaded host is found out", evidence, not valid


def _certified(slow_by: float = 0.0) -> pa.Table:
    profile = PROFILE.read_text()
    with tempfile.TemporaryDirectory(prefix="penstock-planted-") as place:
        base = Path(place)
        for name in ("mount", "backing"):
            (base / name).mkdir()
        (base / "backing" / "f").write_bytes(os.urandom(CELL.file_bytes))
        journal = Journal(base / "journal.jsonl")
        with DiskServer(journal, base / "state") as server:
            plant = {"slow_by": slow_by}
            server.add("d", base / "mount", base / "backing", json.loads(profile), plant=plant)
            server.reset("d")
            server.log("d", base / "log")
            argv = [*CELL.fio(str(base / "mount" / "f")), "--bs=4k", "--time_based", "--runtime=3"]
            result = subprocess.run(argv, capture_output=True, text=True)
            server.log("d", None)
            if result.returncode != 0:
                raise PenstockError(f"fio: {result.stderr.strip()[-300:]}")
            requests = read_disk_log(base / "log", disk_id="d")
            return certificate(requests, server.stats("d"), profile, run_cpu_ns=0).overall


def _spin(ready: object) -> None:
    while True:
        pass


@contextlib.contextmanager
def _busy(loops: int) -> Iterator[None]:
    context = multiprocessing.get_context("fork")
    spinning = [context.Process(target=_spin, args=(None,), daemon=True) for _ in range(loops)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()
