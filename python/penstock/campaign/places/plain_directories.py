"""Disks that are plain host directories: their data are in a directory of ours inside them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import BadInput
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.study.resolve import ResolvedDisk


class PlainDirectories:
    """One directory of ours in each plain directory that a study measures, until `remove`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._directories: dict[Path, Entry] = {}

    def place(self, directory: Path) -> Path:
        """Our directory in `directory`, created at first use."""
        if directory not in self._directories:
            target = directory / f".penstock-study-{new_token()}"
            self._directories[directory] = make_directory(target, self._journal, mode=0o755)
        return Path(self._directories[directory].target)

    def remove(self) -> None:
        """Remove them with all data in them."""
        with contextlib.ExitStack() as stack:
            while self._directories:
                _, entry = self._directories.popitem()
                stack.callback(remove_directory, entry, self._journal)


def refuse_unusable(disks: Iterable[ResolvedDisk]) -> None:
    """Raises BadInput if a disk's plain directory is missing or not writable."""
    for disk in disks:
        if disk.directory is None:
            continue
        if not disk.directory.is_dir():
            raise BadInput(
                f"{disk.directory}: found no directory; expected one for the disk {disk.disk_id}"
            )
        if not os.access(disk.directory, os.W_OK | os.X_OK):
            raise BadInput(
                f"{disk.directory}: found a directory that cannot be written to; expected one for the "
                f"data of the disk {disk.disk_id}"
            )
