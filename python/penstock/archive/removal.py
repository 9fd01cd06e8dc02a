"""Removal of studies and runs: only files of penstock, identified by a manifest, are deleted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.catalogue import campaign_of
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput, PenstockError

#: the file that marks a work directory outside OUT; its content is the path of OUT
WORK_MARK = ".penstock-work"
#: files of a study at the top of OUT, in addition to its tables
_FILES = (
    *("study.yaml", "plan.json", "campaign.json", "profile.json", "report.html", ".work"),
    *(f"catalogue.sqlite{suffix}" for suffix in ("", "-wal", "-shm", "-journal")),
)


@dataclass(frozen=True)
class Removal:
    """Files of one study to be removed, and their size [bytes]; `entire`: the complete study."""

    out: Path
    paths: list[Path]
    size_bytes: int
    entire: bool


def study_removal(out: Path) -> Removal:
    """All files of penstock under a study's directory. Raises BadInput for another directory."""
    if campaign_of(out) is None:
        raise BadInput(f"{out}: found no campaign.json; expected the directory of a study (its -o)")
    paths = list(_bundles(out))
    paths += [p for p in (out / "work", _elsewhere(out)) if p is not None and _directory(p)]
    tables = [f"{t}.parquet" for t in TABLES]
    names = [*_FILES, *tables]
    paths += [p for n in names if (p := out / n).is_file() and not p.is_symlink()]
    if _directory(out / "figures"):
        figures = (out / "figures").iterdir()
        paths += [f for f in figures if f.suffix in (".svg", ".pdf", ".png", ".pgf")]
    return Removal(out, paths, sum(_size(p) for p in paths), True)


def runs_removal(out: Path, run_ids: list[str]) -> Removal:
    """Bundles of some runs, all attempts. Raises BadInput for an unknown run."""
    if campaign_of(out) is None:
        raise BadInput(f"{out}: found no campaign.json; expected the directory of a study (its -o)")
    paths: list[Path] = []
    for run_id in run_ids:
        own_paths = [p for p in _bundles(out) if p.name.lstrip(".").split(".")[0] == run_id]
        if not own_paths:
            raise BadInput(f"{out}: found no run {run_id}")
        paths += own_paths
    return Removal(out, paths, sum(_size(p) for p in paths), False)


def remove(removal: Removal) -> list[Path]:
    """Remove the files; returns other files that remain in the study's directory.

    Symbolic links below that directory are not followed. Raises PenstockError if the study is running.
    """
    with _not_running(removal.out):
        for path in removal.paths:
            _take(removal.out, path)
    if not removal.entire:
        return []
    (removal.out / ".lock").unlink(missing_ok=True)
    for folder in (removal.out / "figures", removal.out / "runs", removal.out):
        if _directory(folder) and not any(folder.iterdir()):
            folder.rmdir()
    return sorted(removal.out.iterdir()) if removal.out.is_dir() else []


def _take(out: Path, path: Path) -> None:
    """Remove one file or directory through its parent directory; a link on the way is an OSError."""
    top = out if path.is_relative_to(out) else path.parent
    fd = os.open(top, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to(top).parent.parts:
            below = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(path.name, dir_fd=fd, follow_symlinks=False).st_mode):
                shutil.rmtree(path.name, dir_fd=fd)
            else:
                os.unlink(path.name, dir_fd=fd)
    finally:
        os.close(fd)


def _directory(path: Path) -> bool:
    """True for a directory, False for a link to one."""
    return path.is_dir() and not path.is_symlink()


class _not_running:  # noqa: N801 - reads as what it says
    """Locks the study, so that no campaign runs in it."""

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
    """Directories under `runs/` that are bundles, complete or not."""
    if not _directory(out / "runs"):
        return []
    paths = []
    for path in sorted((out / "runs").iterdir()):
        if not _directory(path):
            continue
        if path.name.startswith("."):
            if path.name.endswith(".partial"):
                paths.append(path)
            continue
        try:
            Bundle.open(path)
        except PenstockError:
            continue
        paths.append(path)
    return paths


def _elsewhere(out: Path) -> Path | None:
    """Directory of the study's prepared data outside OUT/work; None unless its mark names this study."""
    try:
        place = Path(_read(out / ".work"))
        mark = _read(place / WORK_MARK)
    except OSError:
        return None
    return place if mark == str(out.resolve()) else None


def _read(path: Path) -> str:
    """Content of a short file; an OSError for a link, or for a file that another user could have written."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, encoding="utf-8", errors="surrogateescape") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(path)
        return file.read(1 << 16).removesuffix("\n")


def _size(path: Path) -> int:
    return directory_bytes(path) if path.is_dir() else path.lstat().st_blocks * 512
