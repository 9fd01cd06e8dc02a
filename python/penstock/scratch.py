"""Temporary directories that do not outlive their process.

    with Scratch("serve") as path:
        (path / "index").write_bytes(index)

A directory is private to its user and locked while it is in use. The kernel releases the lock when the
process ends, also when it is killed. The first `Scratch` of a later process of the same user in the same
place removes directories that nobody has locked. Unlike pids, locks are valid across PID namespaces.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from types import TracebackType

_PREFIX = "penstock-scratch-"
#: errors of file systems without locks of directories, where nobody can remove them as abandoned
_NO_LOCKS = {errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP}

#: places from which this process has removed abandoned directories
_cleared: set[Path] = set()


class Scratch:
    """A temporary directory `path`, removed by `close`, with this object, or at exit.

    `kind` is part of its name; `place` is the directory to create it in [default: that of temporary
    files]. Raises OSError.
    """

    def __init__(self, kind: str, place: Path | None = None) -> None:
        place = Path(tempfile.gettempdir()) if place is None else place.absolute()
        if place not in _cleared:
            _cleared.add(place)
            remove_abandoned(place)
        self.path, lock = _create(kind, place)
        self._remove = weakref.finalize(self, _release, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the directory; idempotent."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def remove_abandoned(place: Path) -> None:
    """Remove directories of this user's ended processes from `place`; errors are ignored."""
    with contextlib.suppress(OSError):
        for path in place.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                lock = _lock(path)
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


def _create(kind: str, place: Path) -> tuple[Path, int | None]:
    """Create and lock a directory; repeat if another process removed it before the lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=place))
        try:
            lock = _lock(path)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return path, None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return path, lock
        os.close(lock)


def _lock(path: Path) -> int:
    """A descriptor that locks a directory of this user. Raises OSError, BlockingIOError if it is locked."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(lock)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(f"{path}: a directory of another user, or open to others")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _release(path: Path, lock: int | None, owner: int) -> None:
    if os.getpid() != owner:  # in a fork
        return
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)
