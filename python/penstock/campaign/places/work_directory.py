"""Work directory of a campaign: location of prepared data, accessible to the workload's user."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from penstock.archive.removal import WORK_MARK
from penstock.host.journal.journal import new_token
from penstock.state import passable_state_dir


def work_directory(out: Path) -> Path:
    """Work directory of the campaign, created if absent: OUT/work, or next to the state directory.

    The latter if other users cannot traverse OUT, as programs that switch users (databases) could not be
    prepared there.
    """
    if os.geteuid() != 0 or passable(out):
        place = out / "work"
        place.mkdir(parents=True, exist_ok=True)
        return place
    above = passable_state_dir() / "work"
    if (recorded := _recorded(out, above)) is not None:
        return recorded
    # the path contains a random token, so only users who get it from us can traverse it
    place = above / new_token()
    for directory in (above, place):
        directory.mkdir(mode=0o711, exist_ok=True)
        directory.chmod(0o711)
    (place / WORK_MARK).write_text(f"{out.resolve()}\n")
    (out / ".work").write_text(f"{place}\n")
    return place


def _recorded(out: Path, above: Path) -> Path | None:
    """Existing work directory of OUT."""
    try:
        place = Path((out / ".work").read_text().strip())
        mark = (place / WORK_MARK).read_text().strip()
    except OSError:
        return None
    return place if place.parent == above and mark == str(out.resolve()) else None


def passable(path: Path) -> bool:
    """True if every user may traverse `path` and all its parent directories."""
    real = path.resolve()
    search_bit = stat.S_IXOTH
    return all(p.stat().st_mode & search_bit for p in (real, *real.parents))


def clear(out: Path, place: Path) -> None:
    """Remove the work directory of a completed campaign."""
    shutil.rmtree(place, ignore_errors=True)
    (out / ".work").unlink(missing_ok=True)
