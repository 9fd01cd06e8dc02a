"""Mounts of this host: /proc/self/mountinfo, unmounting."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo (proc_pid_mountinfo(5))."""

    mount_id: int
    device: tuple[int, int]
    root: str
    point: str
    fstype: str
    source: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), field)


def parse_mountinfo(text: str) -> list[Mount]:
    """Mounts of a mountinfo text, in order (a later one covers an earlier one at the same point)."""
    mounts = []
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        major, _, minor = fields[2].partition(":")
        mounts.append(
            Mount(
                mount_id=int(fields[0]),
                device=(int(major), int(minor)),
                root=_plain(fields[3]),
                point=_plain(fields[4]),
                fstype=rest[0],
                source=_plain(rest[1]),
                options=tuple(fields[5].split(",")),
                super_options=tuple(rest[2].split(",")),
            )
        )
    return mounts


def has_mount(point: str | os.PathLike[str], token: str) -> bool:
    """True if a mount with this token of the undo journal is at `point`."""
    return any(mount.source == f"penstock:{token}" for mount in mounts_at(point))


def mounts() -> list[Mount]:
    """Mounts that this process sees."""
    raw = Path("/proc/self/mountinfo").read_bytes()
    return parse_mountinfo(raw.decode("utf-8", "surrogateescape"))


def mounts_at(point: str | os.PathLike[str]) -> list[Mount]:
    """Mounts stacked at `point`, the visible one last."""
    at = os.path.abspath(point)
    return [m for m in mounts() if m.point == at]


def mounts_below(directory: str | os.PathLike[str]) -> list[Mount]:
    """Mounts at or under `directory`."""
    top = os.path.abspath(directory)
    return [m for m in mounts() if m.point == top or m.point.startswith(top.rstrip("/") + "/")]


def mount_of(path: str | os.PathLike[str]) -> Mount | None:
    """Mount of `path`, by device number and longest mount point; None if none matches."""
    real = os.path.realpath(path)
    best = None
    for mount in mounts():
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def unmount(point: str | os.PathLike[str]) -> str:
    """Unmount the visible mount at `point`: 'unmounted', or 'detached' if it was busy (lazily).

    Raises OSError if neither the system call nor, without root, fusermount3 succeeds.
    """
    raw = os.fsencode(point)
    if _libc.umount2(raw, 0) == 0:
        return "unmounted"
    error = ctypes.get_errno()
    if _libc.umount2(raw, _MNT_DETACH) == 0:
        return "detached"
    tool = shutil.which("fusermount3") or shutil.which("fusermount")
    if tool and os.geteuid() != 0:
        for options, outcome in ((["-u"], "unmounted"), (["-u", "-z"], "detached")):
            if (
                subprocess.run([tool, *options, "--", str(point)], capture_output=True).returncode
                == 0
            ):
                return outcome
    raise OSError(error, os.strerror(error), os.fspath(point))
