"""Where a campaign works: the place of prepared data, which a workload's other user must reach."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

from penstock.archive.removal import WORK_MARK
from penstock.state import passable_state_dir


def work_directory(out: Path) -> Path:
    """The campaign's work directory, made if absent: OUT/work, or beside the state directory.

    The second where other users may not pass through to OUT: programs that drop to a user of their own
    (databases) could not be prepared there.
    """
    if os.geteuid() != 0 or passable(out):
        place = out / "work"
        place.mkdir(parents=True, exist_ok=True)
        return place
    name = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    place = passable_state_dir() / "work" / name
    place.mkdir(parents=True, exist_ok=True)
    (place / WORK_MARK).write_text(f"{out.resolve()}\n")
    (out / ".work").write_text(f"{place}\n")
    return place


def passable(path: Path) -> bool:
    """Whether every user may pass through `path` and all directories above it."""
    real = path.resolve()
    wanted = stat.S_IXOTH
    return all(p.stat().st_mode & wanted for p in (real, *real.parents))


def clear(out: Path, place: Path) -> None:
    """Removes the work directory of a campaign that needs it no more."""
    shutil.rmtree(place, ignore_errors=True)
    (out / ".work").unlink(missing_ok=True)
