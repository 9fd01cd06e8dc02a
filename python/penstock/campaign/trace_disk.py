"""Without privilege: the requests of a command as an emulated disk logged them.

The log is in device order: what the page cache let through (misses, readahead, write-back). With `exact`
files are opened past the page cache, so that the disk sees every read and write as the program made it
(split where larger than one request of the mount).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.emulate.disks import persistent
from penstock.emulate.disks.request_log import DISK_REQUEST_DTYPE, read_disk_log
from penstock.errors import BadInput, PenstockError
from penstock.host.clocks import clock_row
from penstock.host.directories import make_directory, remove_directory
from penstock.host.journal import Journal, new_token
from penstock.host.launch import launch
from penstock.observe.trace.capture.events import EVENT, NUMBERS
from penstock.observe.trace.capture.interrupts import Interrupts, in_sessions_of_children
from penstock.observe.trace.foreign.bundle import ImportedTrace, write_recording
from penstock.observe.trace.foreign.recording import Recording
from penstock.observe.trace.foreign.summary import as_document, show

_FAILED = 125

_CACHED = [
    "calls that the page cache served, and which call caused a request",
    "who wrote: write-back is the kernel's (thread 0)",
    "files outside the disk",
]
_EXACT = [
    "what the page cache would have served: the command ran without it",
    "files outside the disk, and files that were open already",
]


def run(
    words: list[str], mount: Path | None, output: Path | None, *, exact: bool, as_json: bool
) -> int:
    """Traces a command by the log of the disk at `mount`, prints the result; gives the exit status."""
    if mount is None:
        raise BadInput("--exact: only with --disk MOUNT")
    if not words:
        raise BadInput("--disk: found no command; expected -- COMMAND")
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    try:
        status, judged = trace_on_disk(words, mount, output, exact=exact, quiet=as_json)
    except BadInput:
        raise
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": str(error)}))
        return _FAILED
    if as_json:
        print(json.dumps({"command": words, "exit_status": status, **as_document(judged)}))
    else:
        show(judged)
    return status


def trace_on_disk(
    words: list[str], mount: Path, output: Path | None, *, exact: bool, quiet: bool
) -> tuple[int, ImportedTrace]:
    """Runs the command while the disk logs its requests; gives its exit status and what was found.

    Raises BadInput where no disk of `penstock disk up` is at `mount`.
    """
    mount = mount.absolute()
    journal = Journal()
    with _folder(journal) as folder:
        log = folder / "log"
        clocks = [clock_row("start")]
        with (
            Interrupts(in_sessions_of_children) as interrupts,
            persistent.recording(mount, log, exact=exact, journal=journal) as recorded,
        ):
            if interrupts.name is not None:
                raise PenstockError(f"ended by {interrupts.name} before the command began")
            finished = launch(words, stdout=sys.stderr.fileno() if quiet else None, stdin=None)
            clocks.append(clock_row("end"))
            # what the command left dirty is part of what it did to the disk
            subprocess.run(["sync", "-f", str(mount)], check=False)
            synced_ns = time.monotonic_ns()
        before, after = recorded.before, recorded.after
        disk_id = str(before["disk_id"])
        lost = int(after["stats"]["lost_records"]) - int(before["stats"]["lost_records"])
        spool = folder / "spool"
        counts = _spool(log, spool) | {"lost": max(lost, 0)}
        counts["seen"] += counts["lost"]
        recording = Recording(
            spool,
            _files(Path(f"{log}.files"), spool, mount, before, disk_id),
            _threads(spool),
            counts,
            "device",
            {
                "format": "disk log",
                "disk_id": disk_id,
                "mount": str(mount),
                "profile": str(before.get("profile", "")),
                "exact": exact,
                "not_known": _EXACT if exact else _CACHED,
            },
        )
        recording.tables["device_requests"] = read_disk_log(log, disk_id=disk_id)
        recording.tables["clocks"] = pa.Table.from_pylist(
            [row | {"offset_ns": 0, "offset_bound_ns": 0} for row in clocks]
        )
        phases = [("workload", finished.start_ns, finished.end_ns)]
        phases.append(("write-back", finished.end_ns, synced_ns))
        recording.tables["phases"] = pa.Table.from_pylist(
            [dict(zip(("phase_id", "start_ns", "end_ns"), row, strict=True)) for row in phases]
        )
        wall_ns = finished.end_ns - finished.start_ns
        if output is None:
            return finished.exit_status, write_recording(None, recording, wall_ns)
        with Bundle.create(output, {"command": words, "run_id": "r001"}) as bundle:
            judged = replace(write_recording(bundle, recording, wall_ns), bundle=output)
            bundle.manifest.update(
                {
                    "state": "finished" if finished.exit_status == 0 else "failed",
                    "exit_status": finished.exit_status,
                    "interrupted": interrupts.name,
                    "responses": {"wall_s": {"value": wall_ns / 1e9, "unit": "s"}},
                    "times": {"start_ns": finished.start_ns, "end_ns": finished.end_ns},
                }
            )
        return finished.exit_status, judged


@contextlib.contextmanager
def _folder(journal: Journal) -> Iterator[Path]:
    """For the log while it is being written, for nobody else to read."""
    entry = make_directory(Path(tempfile.gettempdir(), f"penstock-disk-log-{new_token()}"), journal)
    folder = Path(entry.target)
    folder.chmod(0o700)
    try:
        yield folder
    finally:
        remove_directory(entry, journal)


def _spool(log: Path, spool: Path) -> dict[str, int]:
    """The log's records as those of the tracer, in order of arrival; gives the counts."""
    whole = log.stat().st_size // DISK_REQUEST_DTYPE.itemsize
    if whole == 0:
        spool.write_bytes(b"")
        return {"seen": 0, "kept": 0, "filtered": 0}
    records = np.memmap(log, DISK_REQUEST_DTYPE, "r", shape=(whole,))
    order = np.argsort(records["t_ns"], kind="stable")
    numbers = np.array([NUMBERS[f"device_{op}"] for op in ("read", "write", "flush")], np.uint8)
    with spool.open("wb") as out:
        for at in range(0, whole, 1 << 18):
            part = records[order[at : at + (1 << 18)]]
            made = np.zeros(len(part), EVENT)
            for name in ("t_ns", "offset_bytes", "size_bytes"):
                made[name] = part[name]
            made["latency_ns"] = part["done_ns"] - part["t_ns"]
            made["done_bytes"] = part["size_bytes"]
            made["file_id"] = part["file_id"] + 1
            made["tid"] = made["pid"] = part["pid"]
            made["op"] = numbers[np.minimum(part["op"], 2)]
            out.write(made.tobytes())
    return {"seen": whole, "kept": whole, "filtered": 0}


def _files(
    names: Path, spool: Path, mount: Path, disk: dict[str, Any], disk_id: str
) -> list[dict[str, Any]]:
    """Rows of `files`: what the log names, with the disk's device and the size now."""
    device = disk.get("dev") or disk.get("device") or (None, None)
    rows = []
    known = set(np.unique(np.fromfile(spool, EVENT)["file_id"]).tolist())
    for line in names.read_text("utf-8", "replace").splitlines() if names.exists() else []:
        with contextlib.suppress(ValueError, KeyError):
            row = json.loads(line)
            number = int(row["file_id"]) + 1
            path = mount / str(row["path"]).lstrip("/")
            made = {"file_id": number, "path": str(path), "disk_id": disk_id}
            made |= {"dev_major": device[0], "dev_minor": device[1]}
            with contextlib.suppress(OSError):
                found = os.stat(path)
                made |= {"size_bytes": found.st_size, "inode": found.st_ino}
            rows.append(made)
            known.discard(number)
    rows += [{"file_id": number, "path": None, "disk_id": disk_id} for number in sorted(known)]
    return rows


def _threads(spool: Path) -> list[dict[str, Any]]:
    events = np.fromfile(spool, EVENT)
    tids, first = np.unique(events["tid"], return_index=True)
    return [
        {
            "pid": int(tid),
            "tid": int(tid),
            "name": "" if tid else "kernel (readahead, write-back)",
            "first_ns": int(events["t_ns"][at]),
        }
        for tid, at in zip(tids.tolist(), first.tolist(), strict=True)
    ]
