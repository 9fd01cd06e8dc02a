"""Directories of penstock: persistent state, and runtime files that do not survive a reboot.

Both are closed to other users. Data for another user's programs (the disks of a run, prepared data) are in a
directory next to them that can be traversed but not listed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from penstock.errors import PenstockError


def state_dir() -> Path:
    """State directory, created if absent: $PENSTOCK_STATE, /var/lib/penstock as root, else ~/.local.

    Raises PenstockError if it belongs to another user.
    """
    return _private(_state_path())


def runtime_dir() -> Path:
    """Directory of sockets and statistics pages: $PENSTOCK_RUNTIME, /run/penstock as root, else XDG.

    Raises PenstockError if it belongs to another user.
    """
    return _private(_runtime_path())


def passable_state_dir() -> Path:
    """Directory next to the state directory, for data of another user's programs."""
    return _passable(_state_path())


def passable_runtime_dir() -> Path:
    """Directory next to the runtime directory, for mount points of another user's programs."""
    return _passable(_runtime_path())


def closed(path: str, flags: int) -> int:
    """An opener for `open` that makes new files private and refuses symbolic links."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _state_path() -> Path:
    if chosen := os.environ.get("PENSTOCK_STATE"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/penstock")
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(home) / "penstock"


def _runtime_path() -> Path:
    if chosen := os.environ.get("PENSTOCK_RUNTIME"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/run/penstock")
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base) / "penstock"
    return Path(f"/tmp/penstock-run-{os.geteuid()}")


def _private(path: Path) -> Path:
    return _owned(path, 0o700)


def _passable(path: Path) -> Path:
    return _owned(path.with_name(f"{path.name}-passable"), 0o711)


def _owned(path: Path, mode: int) -> Path:
    """Create the directory if it is missing; check that it is ours, and set its mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
    except OSError as error:
        raise PenstockError(f"{error.filename or path}: {error.strerror}") from error
    info = path.lstat()
    directory = stat.S_ISDIR(info.st_mode)
    if not directory or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        kind = "directory" if directory else "link or file"
        raise PenstockError(
            f"{path}: found a {kind} of user {info.st_uid} with mode {stat.S_IMODE(info.st_mode):04o}; "
            f"expected a directory of user {os.geteuid()} that no other user may write to"
        )
    if stat.S_IMODE(info.st_mode) != mode:
        path.chmod(mode)
    return path
