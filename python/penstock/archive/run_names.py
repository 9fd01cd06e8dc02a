"""Names of recorded runs: directories, runs of studies, and names from parts (experiments)."""

from __future__ import annotations

from pathlib import Path

from penstock.archive.selection import Selection, names_runs, select
from penstock.errors import BadInput
from penstock.plugins import RUN_NAMES


def select_named(name: str) -> Selection:
    """Runs of `name`. BadInput for an unknown name, or a run in progress."""
    if names_runs(name):
        return select(name)
    return _of_parts(name) or select(name)  # `select` reports the expected names


def names_recorded(name: str) -> bool:
    """True for a name of runs; False for a file name."""
    return names_runs(name) or (not Path(name).exists() and is_name_of_part(name))


def is_name_of_part(name: str) -> bool:
    """True for a name that a part defines instead of a path."""
    if names_runs(name):
        return False
    try:
        return _of_parts(name) is not None
    except BadInput:
        return True  # a run in progress


def _of_parts(name: str) -> Selection | None:
    for row in RUN_NAMES:
        selection: Selection | None = RUN_NAMES.load(row)(name)
        if selection is not None:
            return selection
    return None
