"""Readers of traces of blktrace, Darshan and fio; crates/tracefmt parses the files."""

from __future__ import annotations

import glob
import importlib
import json
import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadInput
from penstock.observe.trace.recordings.recording import Recording

_native: Any = importlib.import_module("penstock._native")


class _Native:
    """Base class of the readers.

    `limitations` lists information that the format lacks; recordings store it as `not_known`.
    """

    name: str
    basis = "calls"
    limitations: tuple[str, ...]

    def parts(self, path: Path) -> list[Path]:
        return []

    def read(self, paths: Sequence[Path], folder: Path) -> Recording:
        spool, requests = folder / "spool", folder / "requests"
        try:
            text = _native.read_foreign_trace(self.name, list(paths), spool, requests)
        except ValueError as error:
            raise BadInput(str(error)) from error
        document: dict[str, Any] = json.loads(text)
        return Recording(
            spool,
            document["files"],
            document["threads"],
            {name: document[name] for name in ("seen", "kept", "filtered", "lost")},
            self.basis,
            {
                "format": self.name,
                "files": [str(path) for path in paths],
                "about": document["about"],
                "not_known": list(self.limitations),
            },
        )


class _Blktrace(_Native):
    """Requests of a block device, as the kernel's blktrace records them."""

    name = "blktrace"
    what = "blktrace's binary files (one per processor), or `blkparse -d`"
    basis = "device"
    limitations = (
        "which file a request belongs to: offsets are the device's",
        "the program's own calls: this is what the page cache and the scheduler let through",
        "CLOCK_MONOTONIC: times are from the start of the trace",
    )

    def matches(self, head: bytes) -> bool:
        return head[1:4] == b"\x74\x61\x65" or head[:3] == b"\x65\x61\x74"

    def parts(self, path: Path) -> list[Path]:
        """Files of the trace `path`, one per processor, in their order."""
        pattern = f"{glob.escape(path.name)}.blktrace.*"
        files = path.parent.glob(pattern) if path.parent.is_dir() else iter(())
        numbered = (p for p in files if p.suffix[1:].isdigit())
        return sorted(numbered, key=lambda p: int(p.suffix[1:]))

    def read(self, paths: Sequence[Path], folder: Path) -> Recording:
        recording = super().read(paths, folder)
        recording.tables["device_requests"] = _requests_table(folder / "requests")
        recording.source["about"] += [
            f"{name}: without the files of {len(lacking)} processors (the first is {lacking[0]}), whose "
            "requests are missing"
            for name, lacking in _lacking(paths).items()
        ]
        return recording


def _lacking(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Processors whose file was not given, by the common name of a trace; blktrace writes empty files too."""
    processors: dict[Path, set[int]] = {}
    for path in paths:
        stem, dot, number = path.name.rpartition(".blktrace.")
        if dot and number.isdecimal() and len(number) < 5:
            processors.setdefault(path.with_name(f"{stem}.blktrace"), set()).add(int(number))
    lacking: dict[str, list[int]] = {}
    for name, numbers in processors.items():
        others = (n for n in range(max(numbers)) if n not in numbers)
        files = ((n, name.with_name(f"{name.name}.{n}")) for n in others)
        missing = [n for n, file in files if not (file.is_file() and not file.stat().st_size)]
        if missing:
            lacking[name.stem] = missing
    return lacking


_DXT_BEGIN = b"# darshan log version"
#: text of `darshan-dxt-parser --show-incomplete`
_DXT_INCOMPLETE = re.compile(
    rb"^# \*WARNING\*: The (\w{1,40}) module contains incomplete data", re.MULTILINE
)


class _Dxt(_Native):
    """Calls of MPI programs, as Darshan's extended tracing records them."""

    name = "dxt"
    what = "the text of darshan-dxt-parser"
    limitations = (
        "times closer than 0.1 ms: such requests keep the order of the text",
        "calls that failed, and open, close and sync",
        "threads: a rank counts as one",
    )

    def matches(self, head: bytes) -> bool:
        return b"# DXT" in head or head.startswith(_DXT_BEGIN)

    def read(self, paths: Sequence[Path], folder: Path) -> Recording:
        """Refuse several logs, in one file or several, whose times begin at 0 each.

        Note modules whose segments Darshan recorded in part.
        """
        incomplete: list[str] = []
        if len(paths) > 1:
            raise BadInput(f"{paths[1]}: found a second log; expected one: each has its own clock")
        for path in paths:
            if not path.is_file() or not path.stat().st_size:
                continue
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
                if text.find(b"\n" + _DXT_BEGIN) >= 0:
                    raise BadInput(f"{path}: found a second log in the file; expected one log")
                if text.find(b"\n#<module>\t") >= 0 and text.find(b"# DXT") < 0:
                    raise BadInput(
                        f"{path}: found the text of darshan-parser; expected {self.what}"
                    )
                incomplete += [m[1].decode() for m in _DXT_INCOMPLETE.finditer(text)]
        recording = super().read(paths, folder)
        recording.source["about"] += [
            f"module {name}: incomplete, since Darshan ran out of memory for it: requests are missing"
            for name in incomplete
        ]
        return recording


class _Iolog(_Native):
    """Requests of a fio job, as `write_iolog` records them."""

    name = "iolog"
    what = "fio's I/O log, version 2 or 3"
    limitations = (
        "latencies: they are 0",
        "threads and processes: a log counts as one thread",
        "errors: every request counts as done",
    )

    def matches(self, head: bytes) -> bool:
        return head.startswith(b"fio version")


blktrace, dxt, iolog = _Blktrace(), _Dxt(), _Iolog()

_REQUEST = np.dtype(
    [(name, "<i8") for name in "queued issued done offset size op tid device".split()]
)
_DEVICE_OPS = {31: "read", 63: "write", 95: "flush"}


def _requests_table(path: Path) -> pa.Table:
    """Table `device_requests` from the file of requests that the reader of blktrace writes."""
    raw = np.fromfile(path, _REQUEST)
    raw = raw[np.argsort(raw["queued"], kind="stable")]
    open_ended = raw["done"] == 0
    service = np.maximum(raw["done"] - raw["issued"], 0)
    ops = np.array([_DEVICE_OPS.get(int(op), "read") for op in range(256)])
    device = [f"{d >> 20}:{d & 0xFFFFF}" for d in raw["device"].tolist()]
    return pa.table(
        {
            "t_ns": raw["queued"],
            "done_ns": pa.array(raw["done"], mask=open_ended),
            "service_ns": pa.array(service, mask=open_ended),
            "wait_ns": raw["issued"] - raw["queued"],
            "op": pa.array(ops[raw["op"]]).dictionary_encode(),
            "device_offset_bytes": raw["offset"],
            "size_bytes": raw["size"],
            "tid": raw["tid"],
            "disk_id": pa.array(device).dictionary_encode(),
        }
    )
