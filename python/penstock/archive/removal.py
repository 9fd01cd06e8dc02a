"""Removing studies and runs: only what penstock wrote, known by its manifest, is ever deleted."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.catalogue import campaign_of
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput, PenstockError

#: files that a study writes at the top of OUT, besides its tables
_FILES = (
    *("study.yaml", "plan.json", "campaign.json", "profile.json", "report.html", ".work"),
    *(f"catalogue.sqlite{suffix}" for suffix in ("", "-wal", "-shm", "-journal")),
)


@dataclass(frozen=True)
class Removal:
    """What would be removed of one study, and how much that is [bytes]; `whole`: the study itself."""

    out: Path
    paths: list[Path]
    size_bytes: int
    whole: bool


def study_removal(out: Path) -> Removal:
    """All that penstock wrote under a study's directory. Raises BadInput if it is none."""
    if campaign_of(out) is None:
        raise BadInput(f"{out}: found no campaign.json; expected the directory of a study (its -o)")
    paths = list(_bundles(out))
    paths += [p for p in (out / "work", _elsewhere(out)) if p is not None and p.is_dir()]
    tables = [f"{t}.parquet" for t in TABLES]
    names = [*_FILES, *tables]
    paths += [p for n in names if (p := out / n).is_file() and not p.is_symlink()]
    if (out / "figures").is_dir():
        figures = (out / "figures").iterdir()
        paths += [f for f in figures if f.suffix in (".svg", ".pdf", ".png", ".pgf")]
    return Removal(out, paths, sum(_size(p) for p in paths), True)


def runs_removal(out: Path, run_ids: list[str]) -> Removal:
    """The bundles of some runs, all attempts. Raises BadInput if a run is not there."""
    if campaign_of(out) is None:
        raise BadInput(f"{out}: found no campaign.json; expected the directory of a study (its -o)")
    paths: list[Path] = []
    for run_id in run_ids:
        mine = [p for p in _bundles(out) if p.name.lstrip(".").split(".")[0] == run_id]
        if not mine:
            raise BadInput(f"{out}: found no run {run_id}")
        paths += mine
    return Removal(out, paths, sum(_size(p) for p in paths), False)


def remove(removal: Removal) -> list[Path]:
    """Removes it; gives what is left in the study's directory that is not penstock's.

    Raises PenstockError if the study is running.
    """
    with _not_running(removal.out):
        for path in removal.paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    if not removal.whole:
        return []
    (removal.out / ".lock").unlink(missing_ok=True)
    for folder in (removal.out / "figures", removal.out / "runs", removal.out):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return sorted(removal.out.iterdir()) if removal.out.is_dir() else []


class _not_running:  # noqa: N801 - reads as what it says
    """Holds the study's lock, so that no campaign runs in it."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def __enter__(self) -> None:
        self._fd = os.open(self._out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise PenstockError(f"{self._out}: the study is running; nothing was removed") from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _bundles(out: Path) -> list[Path]:
    """Directories under `runs/` that are bundles, or that were being written when we were stopped."""
    found = []
    for path in sorted((out / "runs").glob("*")) + sorted((out / "runs").glob(".*.partial")):
        if not path.is_dir() or path.is_symlink() or path in found:
            continue
        if path.name.startswith("."):
            if path.name.endswith(".partial"):
                found.append(path)
            continue
        try:
            Bundle.open(path)
        except PenstockError:
            continue
        found.append(path)
    return found


def _elsewhere(out: Path) -> Path | None:
    """Where the study's prepared data lies if not in OUT/work."""
    note = out / ".work"
    if not note.is_file():
        return None
    place = Path(note.read_text().strip())
    return place if (place / ".penstock-work").is_file() else None


def _size(path: Path) -> int:
    return directory_bytes(path) if path.is_dir() else path.lstat().st_blocks * 512
