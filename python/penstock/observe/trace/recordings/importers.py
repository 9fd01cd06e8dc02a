"""Bundles from traces of other tools, read by the rows of `penstock.plugins.TRACE_IMPORTERS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from penstock.errors import BadInput
from penstock.observe.trace.recordings.bundle import ImportedTrace, new_bundle, write_recording
from penstock.observe.trace.recordings.recording import Recording
from penstock.plugins import TRACE_IMPORTERS
from penstock.scratch import Scratch

#: bytes at the start of a file that identify its format
_HEAD_BYTES = 1 << 16


class Importer(Protocol):
    """Reader of the traces of one format; `what` describes it where no importer accepts a file."""

    what: str

    def matches(self, head: bytes) -> bool:
        """True if a file of this format begins with `head`, its first 64 KiB."""

    def parts(self, path: Path) -> list[Path]:
        """Files of a recording by a common name that is no file; empty if none."""

    def read(self, paths: Sequence[Path], folder: Path) -> Recording:
        """The recording, with its spool in `folder`; BadInput with file and line of a mistake."""


def import_trace(paths: Sequence[Path], output: Path, form: str | None = None) -> ImportedTrace:
    """Create a bundle at `output` from another tool's trace; `form`: its format, default: detected.

    Raises BadInput if a file is unreadable or malformed, and leaves nothing behind.
    """
    if form is not None and form not in TRACE_IMPORTERS:
        raise BadInput(f"--format: found {form!r}; expected {TRACE_IMPORTERS.choices()}")
    files = [file for path in paths for file in _files_of(path)]
    again = [path for path, times in Counter(p.resolve() for p in files).items() if times > 1]
    if again:
        raise BadInput(f"{again[0]}: found it several times; expected each file once")
    # one file per processor: a processor without records leaves an empty one
    empty = [path for path in files if path.stat().st_size == 0]
    files = [path for path in files if path not in empty] or files
    kinds = {form or _format_of(path) for path in files}
    if len(kinds) != 1:
        raise BadInput(f"found files of several kinds ({', '.join(sorted(kinds))}); expected one")
    importer: Importer = TRACE_IMPORTERS.load(kinds.pop())
    with Scratch("import") as folder:
        try:
            recording = importer.read(files, folder)
        except OSError as error:
            raise BadInput(f"cannot be read: {error}") from error
        if empty and empty != files:
            skipped = [f"{path.name}: empty, skipped" for path in empty]
            recording.source["about"] = [*recording.source.get("about", []), *skipped]
        if recording.counts["kept"] == 0:
            raise BadInput(f"{files[0]}: has no reads or writes")
        with new_bundle(output, {"command": [], "run_id": "r001"}) as bundle:
            judged = write_recording(bundle, recording)
    return replace(judged, bundle=output)


def _importers() -> dict[str, Importer]:
    return {name: TRACE_IMPORTERS.load(name) for name in TRACE_IMPORTERS}


def _files_of(path: Path) -> list[Path]:
    """The file itself, or the files with that common name in the first format that has one."""
    if path.is_file():
        return [path]
    for importer in _importers().values():
        if parts := importer.parts(path):
            return parts
    raise BadInput(f"{path}: found no such file, and no {path.name}.blktrace.0")


def _format_of(path: Path) -> str:
    """Format of a file, detected from its start."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    importers = _importers()
    for name, importer in importers.items():
        if importer.matches(head):
            return name
    shown = "an empty file" if not head else repr(head[:24].decode("latin-1"))
    formats = "; or ".join(importer.what for importer in importers.values())
    expected = formats or TRACE_IMPORTERS.choices()
    raise BadInput(f"{path}: found {shown} at its beginning; expected {expected}")
