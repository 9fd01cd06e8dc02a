"""A private mount namespace for this process, with a mount of another process at the same path.

The namespace ends with the last process in it, and its mounts with it: nothing remains on the host.
"""

from __future__ import annotations

import os

from penstock.errors import BadInput
from penstock.host.nodes.namespaces import (
    CLONE_FS,
    CLONE_NEWNS,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    _check,
    _libc,
    _place,
    _tree,
    in_a_thread,
    mount,
    pivot_into,
    unshare,
)

#: a mount that recursive bind mounts skip (mount_namespaces(7))
_MS_UNBINDABLE = 1 << 17


def share_mount(pid: int, path: str, scratch: str) -> None:
    """Mount what process `pid` has mounted at `path` at the same path for this process alone.

    This thread, and those that it starts later, move into a new mount namespace; threads that exist already
    do not, so call it before any. Mounts of the host remain visible. If the host has no directory `path`, the
    process gets another root with the host's directories and the missing one; `scratch` is an existing
    directory on which it is prepared. Raises OSError, and BadInput for a path that cannot be added.
    """
    add_to_root = not os.path.isdir(path)
    if add_to_root and os.path.lexists(top := "/" + path.split("/")[1]):
        raise BadInput(
            f"store.mount: found {path}, while this host has {top} without it; expected a directory of "
            "this host, or one below a new directory of /"
        )
    tree = in_a_thread(lambda: _copy_of(pid, path))
    try:
        unshare(CLONE_NEWNS)
        mount("", "/", flags=MS_REC | MS_SLAVE)
        if add_to_root:
            _add_to_root(path, scratch)
        _place(tree, path)
    finally:
        os.close(tree)


def _copy_of(pid: int, path: str) -> int:
    """Descriptor of a detached copy of another process's mount; moves this thread."""
    unshare(CLONE_FS)
    with open(f"/proc/{pid}/ns/mnt") as namespace:
        _check(_libc.setns(namespace.fileno(), CLONE_NEWNS), f"mounts of process {pid}")
    return _tree(path)


def _add_to_root(path: str, scratch: str) -> None:
    """Change to a root in memory that has the host's directories, and `path`."""
    cwd = os.getcwd()
    mount("penstock", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    mount("", scratch, flags=_MS_UNBINDABLE)
    for entry in os.scandir("/"):
        target = f"{scratch}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
            continue
        if entry.is_dir():
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        mount(entry.path, target, flags=MS_BIND | MS_REC)
    os.makedirs(f"{scratch}{path}")
    pivot_into(scratch)
    os.chdir(cwd)
