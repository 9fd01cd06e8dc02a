"""Root file system of a virtual node: an overlay with the directories and devices that Linux programs expect.

All of it is mounted in the node's own mount namespace, and is removed with the node's last process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.host.nodes.isolation import MASKED, READ_ONLY, Device
from penstock.host.nodes.namespaces import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, bind, mount
from penstock.host.storage.mounts import mounts

_PLAIN = MS_NOSUID | MS_NODEV | MS_NOEXEC
_LINKS = (
    *(("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")),
    *(("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")),
)


@dataclass(frozen=True)
class Bind:
    """A directory (or file) of the host, mounted in the node."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class NodeRoot:
    """Sources and directories of a node's root.

    `lower`: the image, or `/`; `changes`, `work`: private directories of the overlay; `at`: an empty
    directory; `tmp`: its /tmp; `hosts`: its /etc/hosts.
    """

    lower: str
    changes: str
    work: str
    at: str
    tmp: str
    hosts: str
    binds: tuple[Bind, ...] = field(default=())


def assemble(root: NodeRoot, devices: Iterable[Device], token: str) -> None:
    """Mount the root at `root.at`, except /proc and control groups. Raises OSError."""
    _overlay(root, token)
    inside = root.at
    _directory(inside, "/proc")
    mount("sysfs", _directory(inside, "/sys"), "sysfs", _PLAIN | MS_RDONLY)
    _devices(inside, devices)
    mount("tmpfs", _directory(inside, "/run"), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for name, mode in (("lock", 0o1777), ("sshd", 0o755)):
        os.mkdir(f"{inside}/run/{name}")
        os.chmod(f"{inside}/run/{name}", mode)
    bind(root.tmp, _directory(inside, "/tmp"), MS_NOSUID | MS_NODEV)
    bind(root.hosts, _file(inside, "/etc/hosts"), _PLAIN | MS_RDONLY)
    for each in root.binds:
        is_directory = os.path.isdir(each.source)
        target = (_directory if is_directory else _file)(inside, each.target)
        flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if each.read_only else 0)
        bind(each.source, target, flags)


def mount_proc(inside: str) -> None:
    """Mount /proc of this process's pid namespace in a root, without the host's parts. Raises OSError."""
    mount("proc", f"{inside}/proc", "proc", _PLAIN)
    for path in READ_ONLY:
        if os.path.exists(at := f"{inside}{path}"):
            bind(at, at, _PLAIN | MS_RDONLY)
    for path in MASKED:
        if os.path.isdir(at := f"{inside}{path}"):
            mount("tmpfs", at, "tmpfs", _PLAIN | MS_RDONLY, "size=4k,mode=555")
        elif os.path.exists(at):
            bind(f"{inside}/dev/null", at)


def mount_groups(inside: str) -> None:
    """Mount the control groups of this process's namespace in a root, read only. Raises OSError."""
    top = "/sys/fs/cgroup"
    hierarchies = [
        m for m in mounts() if m.fstype in ("cgroup", "cgroup2") and m.point.startswith(top)
    ]
    if hierarchies and all(m.point != top for m in hierarchies):
        mount("tmpfs", f"{inside}{top}", "tmpfs", _PLAIN, "size=64k,mode=755")
    for each in hierarchies:
        os.makedirs(f"{inside}{each.point}", exist_ok=True)
        options = ",".join(o for o in each.super_options if o not in ("rw", "ro"))
        named = options if each.fstype == "cgroup" else ""
        mount(each.fstype, f"{inside}{each.point}", each.fstype, _PLAIN | MS_RDONLY, named)


def _overlay(root: NodeRoot, token: str) -> None:
    """Mount the overlay by descriptors, so that no character of a path is taken for an option separator."""
    descriptors = [os.open(path, os.O_PATH) for path in (root.lower, root.changes, root.work)]
    try:
        lower, upper, work = (f"/proc/self/fd/{fd}" for fd in descriptors)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount(f"penstock:{token}", root.at, "overlay", MS_NODEV, options)
    finally:
        for fd in descriptors:
            os.close(fd)


def _devices(inside: str, devices: Iterable[Device]) -> None:
    dev = _directory(inside, "/dev")
    mount("tmpfs", dev, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k")
    umask = os.umask(0)
    try:
        for device in devices:
            kind = stat.S_IFBLK if device.kind == "b" else stat.S_IFCHR
            at = _within(inside, device.path)
            os.makedirs(os.path.dirname(at), mode=0o755, exist_ok=True)
            os.mknod(at, 0o666 | kind, os.makedev(device.major, device.minor))
    finally:
        os.umask(umask)
    for name, target in _LINKS:
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    os.mkdir(f"{dev}/shm")
    mount("shm", f"{dev}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def _directory(inside: str, path: str) -> str:
    """A directory of the new root, created if the image lacks it; symbolic links stay inside the root."""
    at = _within(inside, path)
    os.makedirs(at, exist_ok=True)
    return at


def _file(inside: str, path: str) -> str:
    at = _within(inside, path)
    if not os.path.lexists(at):
        os.makedirs(os.path.dirname(at), exist_ok=True)
        os.close(os.open(at, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    return at


def _within(inside: str, path: str, depth: int = 0) -> str:
    """Path on the host of `path` in the new root; links are resolved as the node would resolve them."""
    if depth > 40:
        raise OSError(f"{path}: too many symbolic links in the image")
    at = inside
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        if part == "..":
            at = os.path.dirname(at) if at != inside else inside
            continue
        step = f"{at}/{part}"
        if os.path.islink(step):
            goal = os.readlink(step)
            rest = "/".join(parts[number + 1 :])
            start = "" if goal.startswith("/") else at[len(inside) :]
            return _within(inside, f"{start}/{goal}/{rest}", depth + 1)
        at = step
    return at
