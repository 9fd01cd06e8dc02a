"""Directories of ours: created with a marker, removed only with it, never through a mount."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.storage.mounts import mounts_below


def marker(token: str) -> str:
    """Name of the empty file that marks a directory as ours."""
    return f".penstock-{token}"


def draft_path(target: str, token: str) -> Path:
    """Temporary path of a new directory, so that it never exists without its marker."""
    return Path(f"{target}{marker(token)}")


def make_directory(
    path: str | os.PathLike[str], journal: Journal, run: str | None = None, mode: int = 0o700
) -> Entry:
    """Create a directory that `undo` may remove with its contents; returns its journal entry.

    Other users have no access unless `mode` permits it. Raises PenstockError if the path exists.
    """
    target, token = os.path.abspath(path), new_token()
    if os.path.lexists(target):
        raise PenstockError(f"{target} exists already; expected a path that does not")
    entry = journal.plan("directory", target, run=run, token=token)
    draft = draft_path(target, token)
    try:
        draft.mkdir(mode=0o700)
        draft.chmod(mode)
        (draft / marker(token)).touch(mode=0o600)
        draft.rename(target)
        journal.done(entry)
    except BaseException:
        remove_directory(entry, journal)
        raise
    return entry


def remove_directory(entry: Entry, journal: Journal) -> None:
    """Remove a directory of `make_directory` and close its entry."""
    take_directory(entry)
    journal.undone(entry)


def take_directory(entry: Entry) -> bool:
    """Remove the directory of an entry if it has its marker; False if there is none of ours.

    Raises PenstockError if something is mounted in it, so that mounted files are never deleted.
    """
    target = Path(entry.target)
    removed = False
    for path in (draft_path(entry.target, entry.token), target):
        if path.is_symlink() or not path.is_dir():
            continue
        ours = path != target or (path / marker(entry.token)).exists()
        below = mounts_below(path)
        if below:
            raise PenstockError(f"{below[-1].point} is still mounted, so {path} is left")
        if ours:
            # under a name that identifies the owner: the marker may be deleted first
            doomed = draft_path(entry.target, entry.token)
            if path != doomed:
                path.rename(doomed)
            shutil.rmtree(doomed)
            removed = True
    return removed
