"""Atomic writes: files are written completely or not at all, and failures leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadInput, PenstockError

#: length of a draft's suffix from its file's name: a token and an extension
_NAMED_BY = 24


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A draft next to `path` that replaces it at the end of the block; removed if the block fails.

    A link stays, its target is replaced; a device or a pipe is written directly. BadInput for a directory or
    a missing one, PenstockError with the file if it cannot be written. The draft's name ends with that of the
    file: `penstock undo` needs the token in it.
    """
    check_target(path)
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        with _write_errors(path):
            yield path
        return
    with _write_errors(path):
        # names of any length stay within the file system's limit
        prefix = f".penstock-{place.name[-_NAMED_BY:]}-"
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=prefix)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            mask = os.umask(0)
            os.umask(mask)
            # a file in a private directory is private, too
            fresh = 0o666 & ~mask & (0o600 | place.parent.stat().st_mode)
            draft.chmod(place.stat().st_mode & 0o7777 if place.exists() else fresh)
            draft.replace(place)
        finally:
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A draft directory whose files are moved into `path` at the end of the block.

    `path` is created if absent; its other files stay. If the block fails, `path` is unchanged.
    """
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path}: found a file; expected a directory, or nothing yet")
    with _write_errors(path):
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        draft: Path | None = None
        try:
            draft = Path(tempfile.mkdtemp(dir=path, prefix=".penstock-"))
            yield draft
            for file in sorted(p for p in draft.rglob("*") if p.is_file()):
                target = path / file.relative_to(draft)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
        except BaseException:
            _forget(draft, missing)
            raise
        shutil.rmtree(draft, ignore_errors=True)


def write_atomic(path: Path, text: str) -> None:
    """Write `text` in UTF-8, as `atomic_file`."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable (fsync(2))."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_target(path: Path) -> None:
    """Raises BadInput if `path` cannot be a file: a directory, or in a missing directory."""
    if path.is_dir():
        raise BadInput(f"{path}: found a directory; expected a file")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path.parent}: found no directory; expected one for {path.name}")


def _forget(draft: Path | None, created: list[Path]) -> None:
    if draft is not None:
        shutil.rmtree(draft, ignore_errors=True)
    for folder in created:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PenstockError(f"{path} cannot be written: {error.strerror or error}") from error
