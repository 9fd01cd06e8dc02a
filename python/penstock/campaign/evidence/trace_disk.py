"""Tracing without privileges: the requests of a command, as logged by an emulated disk.

The log is in device order, below the page cache (misses, readahead, write-back). With `exact`, opened files
bypass the page cache, so that the disk receives every read and write of the program (split if larger than the
mount's maximum request).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.archive.bundle import Bundle
from penstock.emulate.disks import persistent
from penstock.emulate.disks.request_log import DISK_REQUEST_DTYPE, read_disk_log
from penstock.errors import PenstockError
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal, new_token
from penstock.host.processes.interrupts import Interrupts
from penstock.host.processes.launch import launch
from penstock.observe.observer import Seen, Watched
from penstock.observe.recorder import OWN_CLOCK, Recorder, finish_bundle, new_bundle
from penstock.observe.trace.capture.events import EVENT, NUMBERS
from penstock.observe.trace.recordings.bundle import ImportedTrace, write_recording
from penstock.observe.trace.recordings.recording import Recording

_CACHED = [
    "calls that the page cache served, and which call caused a request",
    "who wrote: write-back is the kernel's (thread 0)",
    "files outside the disk",
]
_EXACT = [
    "what the page cache would have served: the command ran without it",
    "files outside the disk, and files that were open already",
]


def trace_on_disk(
    argv: list[str], mount: Path, output: Path | None, *, exact: bool, quiet: bool
) -> tuple[int, ImportedTrace]:
    """Run the command while the disk logs its requests; returns its exit status and the trace.

    Raises BadInput if no disk of `penstock disk up` is at `mount`.
    """
    journal = Journal()
    with _folder(journal) as folder:
        observer = DiskLog(journal, folder, {"mount": mount.absolute(), "exact": exact})
        with (
            Interrupts() as interrupts,
            Recorder({"disk": observer}) as recorder,
        ):
            recorder.start(Watched(None, None), None)
            if interrupts.name is not None:
                raise PenstockError(f"ended by {interrupts.name} before the command began")
            stdout = sys.stderr.fileno() if quiet else None
            finished = launch(argv, stdout=stdout, stdin=None, started=interrupts.begun)
            run = finished.start_ns, finished.end_ns
            seen = recorder.finish(None, run)
        recording = observer.recording
        # pages that the command left dirty are part of its load on the disk
        spans = [("workload", *run), ("write-back", run[1], observer.synced_ns)]
        phases = [
            dict(zip(("phase_id", "start_ns", "end_ns"), span, strict=True)) for span in spans
        ]
        with new_bundle(journal, output, argv) as bundle:
            judged = write_recording(bundle, recording, run[1] - run[0])
            if bundle is None:
                return finished.exit_status, judged
            observation = replace(
                seen,
                losses=bundle.manifest["losses"],
                receipts=bundle.manifest["receipts"],
                clocks=[row | OWN_CLOCK for row in seen.clocks],
            )
            facts = {"interrupted": interrupts.name}
            finish_bundle(bundle, observation, phases, finished.exit_status, run, facts)
        return finished.exit_status, replace(judged, bundle=output)


class DiskLog:
    """Observer that records the request log of a disk of `penstock disk up`.

    Settings: `mount` (of the disk), `exact` (bypass the page cache). Temporary files are in `home`.
    """

    def __init__(self, journal: Journal, home: Path, settings: Mapping[str, Any]) -> None:
        self._journal = journal
        self._home = home
        self._mount = Path(settings["mount"])
        self._exact = bool(settings["exact"])
        self._logging = contextlib.ExitStack()
        self._recorded: persistent.Recording | None = None
        self._recording: Recording | None = None
        #: end of the write-back of all dirty pages
        self.synced_ns = 0

    @property
    def recording(self) -> Recording:
        """The log, to be evaluated; its spool is in `home`."""
        assert self._recording is not None
        return self._recording

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Start the log. Raises BadInput if there is no disk, or another command records it."""
        log = self._home / "log"
        self._recorded = self._logging.enter_context(
            persistent.recording(self._mount, log, exact=self._exact, journal=self._journal)
        )

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """Write back dirty pages, then end the log; returns the table `device_requests`."""
        assert self._recorded is not None
        subprocess.run(["sync", "-f", str(self._mount)], check=False)
        self.synced_ns = time.monotonic_ns()
        self._logging.close()
        before, after = self._recorded.before, self._recorded.after
        disk_id = str(before["disk_id"])
        log, spool = self._home / "log", self._home / "spool"
        lost = int(after["stats"]["lost_records"]) - int(before["stats"]["lost_records"])
        counts = _spool(log, spool) | {"lost": max(lost, 0)}
        counts["seen"] += counts["lost"]
        source = {
            "format": "disk log",
            "disk_id": disk_id,
            "mount": str(self._mount),
            "profile": str(before.get("profile", "")),
            "exact": self._exact,
            "not_known": _EXACT if self._exact else _CACHED,
        }
        files = _files(Path(f"{log}.files"), spool, self._mount, before, disk_id)
        self._recording = Recording(spool, files, _threads(spool), counts, "device", source)
        requests = read_disk_log(log, disk_id=disk_id)
        return Seen({"device_requests": requests}, source, counts["lost"])

    def stop(self) -> None:
        """End the log if it is active."""
        self._logging.close()


@contextlib.contextmanager
def _folder(journal: Journal) -> Iterator[Path]:
    """Private directory for the log during the recording."""
    entry = make_directory(Path(tempfile.gettempdir(), f"penstock-disk-log-{new_token()}"), journal)
    folder = Path(entry.target)
    folder.chmod(0o700)
    try:
        yield folder
    finally:
        remove_directory(entry, journal)


def _spool(log: Path, spool: Path) -> dict[str, int]:
    """Convert the log's records to the tracer's, in order of arrival; returns the counts."""
    count = log.stat().st_size // DISK_REQUEST_DTYPE.itemsize
    if count == 0:
        spool.write_bytes(b"")
        return {"seen": 0, "kept": 0, "filtered": 0}
    records = np.memmap(log, DISK_REQUEST_DTYPE, "r", shape=(count,))
    order = np.argsort(records["t_ns"], kind="stable")
    numbers = np.array([NUMBERS[f"device_{op}"] for op in ("read", "write", "flush")], np.uint8)
    with spool.open("wb") as out:
        for at in range(0, count, 1 << 18):
            part = records[order[at : at + (1 << 18)]]
            events = np.zeros(len(part), EVENT)
            for name in ("t_ns", "offset_bytes", "size_bytes"):
                events[name] = part[name]
            events["latency_ns"] = part["done_ns"] - part["t_ns"]
            events["done_bytes"] = part["size_bytes"]
            events["file_id"] = part["file_id"] + 1
            events["tid"] = events["pid"] = part["pid"]
            events["op"] = numbers[np.minimum(part["op"], 2)]
            out.write(events.tobytes())
    return {"seen": count, "kept": count, "filtered": 0}


def _files(
    names: Path, spool: Path, mount: Path, disk: Mapping[str, Any], disk_id: str
) -> list[dict[str, Any]]:
    """Rows of `files`: the files in the log, with the disk's device and the current size."""
    device = disk.get("dev") or disk.get("device") or (None, None)
    rows = []
    unnamed = set(np.unique(np.fromfile(spool, EVENT)["file_id"]).tolist())
    for line in names.read_text("utf-8", "replace").splitlines() if names.exists() else []:
        with contextlib.suppress(ValueError, KeyError):
            row = json.loads(line)
            number = int(row["file_id"]) + 1
            path = mount / str(row["path"]).lstrip("/")
            entry = {"file_id": number, "path": str(path), "disk_id": disk_id}
            entry |= {"dev_major": device[0], "dev_minor": device[1]}
            with contextlib.suppress(OSError):
                status = os.stat(path)
                entry |= {"size_bytes": status.st_size, "inode": status.st_ino}
            rows.append(entry)
            unnamed.discard(number)
    rows += [{"file_id": number, "path": None, "disk_id": disk_id} for number in sorted(unnamed)]
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
