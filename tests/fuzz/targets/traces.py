"""Traces of other programs."""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.observe.trace.capture.events import EVENT, SpoolReader
from penstock.observe.trace.recordings.importers import import_trace
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target
from tests.unit.test_trace_import import DXT, blktrace

_native: Any = importlib.import_module("penstock._native")


def _foreign_reader(kind: str) -> Callable[[Path], contextlib.AbstractContextManager[Feed]]:
    @contextlib.contextmanager
    def context(directory: Path) -> Iterator[Feed]:
        file, spool, requests = directory / "given", directory / "spool", directory / "requests"

        def feed(data: bytes) -> None:
            file.write_bytes(data)
            receipt = json.loads(_native.read_foreign_trace(kind, [file], spool, requests))
            judge = _native.Judge([])
            SpoolReader(spool, {}, judge).judge_only()
            assert receipt["kept"] * EVENT.itemsize == spool.stat().st_size
            json.loads(judge.verdicts())

        yield feed

    return context


@contextlib.contextmanager
def _import_inputs(directory: Path) -> Iterator[Feed]:
    """The complete `penstock import`."""
    file = directory / "given"

    def feed(data: bytes) -> None:
        file.write_bytes(data)
        output = directory / "bundle"
        shutil.rmtree(output, ignore_errors=True)
        try:
            import_trace([file], output)
        except BadInput:
            assert not output.exists()
            raise

    yield feed


def _blktrace_files() -> list[bytes]:
    import tempfile

    files = []
    for order in "<>":
        with tempfile.TemporaryDirectory() as folder:
            blktrace(Path(folder), 12, order)
            files += [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    return files


_IOLOG = (
    b"fio version 3 iolog\n0 /x add\n1 /x open\n2 /x read 0 4096\n9 /x write 8192 512\n"
    b"9 /x sync 0 0\n10 /y datasync 0 0\n11 /x trim 0 512\n12 /x close\n",
    b"fio version 2 iolog\n/x add\n/x open\n/x read 0 4096\n/x wait 2500 0\n/x write 8192 512\n/x close\n",
)


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        Target(
            "blktrace", of.of_bytes(*_blktrace_files()), _foreign_reader("blktrace"), (ValueError,)
        ),
        Target("darshan-dxt", of.of_text(DXT.encode()), _foreign_reader("dxt"), (ValueError,)),
        Target("fio-iolog", of.of_text(*_IOLOG), _foreign_reader("iolog"), (ValueError,)),
        Target(
            "imported-trace",
            of.of_bytes(*_blktrace_files(), DXT.encode(), *_IOLOG),
            _import_inputs,
            (BadInput,),
            cost=30,
        ),
    ]
