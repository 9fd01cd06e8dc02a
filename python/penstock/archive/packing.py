"""Runs as one file, in the formats of `penstock.plugins.ARCHIVE_FORMATS`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock.archive.selection import Selection
from penstock.plugins import ARCHIVE_FORMATS


@dataclass(frozen=True)
class Packed:
    """The file, the number of files in it, and paths of links and sockets that it lacks."""

    path: Path
    name: str
    size_bytes: int
    files: int
    content_bytes: int
    omitted: list[str] = field(default_factory=list)


class ArchiveFormat(Protocol):
    """A format; its name in the table is the file name extension. `HOW_TO_OPEN` is a hint with `{name}`."""

    HOW_TO_OPEN: str

    def pack(self, selection: Selection, target: Path, *, license: str = "") -> Packed:
        """Write the runs to the file `target`; `license` is the address of a licence."""

    def is_packed(self, path: Path) -> bool:
        """True for a file of this format, by its name or its first bytes."""

    def unpack(self, path: Path, output: Path | None = None) -> Path:
        """Write the contents to `output`, by default a directory with their own name here, and return it."""


def format_for(target: str) -> ArchiveFormat | None:
    """Format of a file name's extension."""
    names = (name for name in ARCHIVE_FORMATS if target.endswith(f".{name}"))
    name = next(names, None)
    return None if name is None else ARCHIVE_FORMATS.load(name)


def format_of(path: Path) -> ArchiveFormat | None:
    """Format of an existing file."""
    formats: list[ArchiveFormat] = [ARCHIVE_FORMATS.load(name) for name in ARCHIVE_FORMATS]
    return next((form for form in formats if form.is_packed(path)), None)
