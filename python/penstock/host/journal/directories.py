"""Directories of ours: made with a marker inside, removed only with it, never through a mount."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.storage.mounts import mounts_below


def marker(token: str) -> str:
    """Name of the empty file by which a directory says that it is ours."""
    return f".penstock-{token}"


def draft_path(target: str, token: str) -> Path:
    """Path at which a directory is prepared before it gets its name, so that it never lacks its marker."""
    return Path(f"{target}{marker(token)}")


def make_directory(
    path: str | os.PathLike[str], journal: Journal, run: str | None = None, mode: int = 0o700
) -> Entry:
    """Makes a directory that `undo` may remove with all that is in it; gives its journal entry.

    Others are kept out unless `mode` says otherwise.
    Raises PenstockError if something is there already.
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
    """Removes a directory made by `make_directory` and closes its entry."""
    take_directory(entry)
    journal.undone(entry)


def take_directory(entry: Entry) -> bool:
    """Removes the directory of an entry if it bears its marker; False if there is nothing of ours.

    Raises PenstockError if something is mounted in it: what is mounted is not to be deleted.
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
            # under a name that says whose it is: its marker may be the first thing to go
            doomed = draft_path(entry.target, entry.token)
            if path != doomed:
                path.rename(doomed)
            shutil.rmtree(doomed)
            removed = True
    return removed
