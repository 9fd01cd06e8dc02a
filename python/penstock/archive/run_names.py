"""Names of recorded runs: directories, runs of studies, and those that parts add (experiments)."""

from __future__ import annotations

from pathlib import Path

from penstock.archive.selection import Selection, names_runs, select
from penstock.errors import BadInput
from penstock.plugins import RUN_NAMES


def select_named(name: str) -> Selection:
    """The runs that `name` means. BadInput if it means none, or one that still goes on."""
    if names_runs(name):
        return select(name)
    return _of_parts(name) or select(name)  # the latter reports what is expected


def names_recorded(name: str) -> bool:
    """True if `name` means runs; the name of a file does not."""
    return names_runs(name) or (not Path(name).exists() and is_name_of_part(name))


def is_name_of_part(name: str) -> bool:
    """True if `name` is no path, but a name that a part adds."""
    if names_runs(name):
        return False
    try:
        return _of_parts(name) is not None
    except BadInput:
        return True  # one that still goes on


def _of_parts(name: str) -> Selection | None:
    for row in RUN_NAMES:
        selection: Selection | None = RUN_NAMES.load(row)(name)
        if selection is not None:
            return selection
    return None
