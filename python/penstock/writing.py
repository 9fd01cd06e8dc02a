"""Files that are written whole or not at all; whatever goes wrong, nothing half-made stays behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadInput, PenstockError

#: characters that a draft has of its file's name: a token and an extension
_NAMED_BY = 24


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place once the block has ended; removed if the block fails.

    A link stays a link, what it points at is replaced; a device or a pipe is written as it is. BadInput for a
    directory or one that is not there, PenstockError naming the file if it cannot be written.
    The draft bears the end of the file's name: `penstock undo` goes by the token in it.
    """
    check_target(path)
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        with _told(path):
            yield path
        return
    with _told(path):
        # a name of any length stays within the file system's limit
        prefix = f".penstock-{place.name[-_NAMED_BY:]}-"
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=prefix)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            mask = os.umask(0)
            os.umask(mask)
            # in a directory that is closed to others, the file is, too
            fresh = 0o666 & ~mask & (0o600 | place.parent.stat().st_mode)
            draft.chmod(place.stat().st_mode & 0o7777 if place.exists() else fresh)
            draft.replace(place)
        finally:
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A draft directory whose files take their places in `path` once the block has ended.

    `path` is made if absent; what else is in it stays. If the block fails, what was there before is there.
    """
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path}: found a file; expected a directory, or nothing yet")
    with _told(path):
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        draft: Path | None = None
        try:
            draft = Path(tempfile.mkdtemp(dir=path, prefix=".penstock-"))
            yield draft
            for made in sorted(p for p in draft.rglob("*") if p.is_file()):
                target = path / made.relative_to(draft)
                target.parent.mkdir(parents=True, exist_ok=True)
                made.replace(target)
        except BaseException:
            _forget(draft, missing)
            raise
        shutil.rmtree(draft, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Writes `text` in UTF-8, as `whole_file`."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Makes what is in a file lasting, or the names in a directory (fsync(2))."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_target(path: Path) -> None:
    """BadInput if `path` can be no file: a directory, or in a directory that is not there."""
    if path.is_dir():
        raise BadInput(f"{path}: found a directory; expected a file")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path.parent}: found no directory; expected one for {path.name}")


def _forget(draft: Path | None, made: list[Path]) -> None:
    if draft is not None:
        shutil.rmtree(draft, ignore_errors=True)
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PenstockError(f"{path} cannot be written: {error.strerror or error}") from error
