"""Scope of a trace: options of the user, and settings of the kernel programs.

Kinds combine by AND, several of one kind by OR. Files and directories become an anchor (an existing
directory, by device and inode) and the names below it, so that files created later match too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import Hierarchies, hierarchies
from penstock.host.processes.processes import start_ticks
from penstock.host.storage.mounts import mounts

_TAIL_BYTES = 256
_ENDING_BYTES = 24
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
#: v1 controllers for finding a process's group, those of containers first
_BY_PREFERENCE = ("memory", "pids", "blkio", "devices", "freezer", "cpu", "cpuacct", "cpuset")

Place = dict[str, int]


@dataclass(frozen=True)
class Group:
    """An existing control group: its number, directory, and v1 controller (None: unified).

    `level` is its depth in a v1 hierarchy, None in the unified one.
    """

    number: int
    directory: Path
    controller: str | None = None
    level: int | None = None


@dataclass(frozen=True)
class Scope:
    """Filters of a trace; the default is all files of the command."""

    processes: tuple[int, ...] = ()
    group: Group | None = None
    paths: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()
    endings: tuple[str, ...] = ()
    only: str | None = None
    options: dict[str, Any] = field(default_factory=dict, compare=False)
    #: start of each of the processes [clock ticks since boot]; None for one that is ending
    starts: dict[int, int | None] = field(default_factory=dict, compare=False)

    def check_processes(self) -> None:
        """Raise PenstockError if a process has ended and its number was reused."""
        for process, start in self.starts.items():
            now = start_ticks(process)
            if start is not None and now not in (None, start):
                raise PenstockError(
                    f"-p: process {process} ended before tracing began; its number belongs to another "
                    "process now"
                )

    def for_programs(self, observers: Sequence[int] = ()) -> dict[str, Any]:
        """The `scope` of the tracer daemon's configuration. Raises BadInput for a path that cannot match."""
        return {
            "by_process": bool(self.processes),
            "controller": self.group.controller if self.group else None,
            "observers": list(observers),
            "numbers": [_place(*number) for number in self.numbers],
            "paths": [_anchored("--file", path) for path in self.paths],
            "directories": [_anchored("--dir", path) for path in self.directories],
            "endings": [os.fsencode(ending).hex() for ending in self.endings],
            "only": self.only,
        }


def read_scope(
    *,
    processes: Iterable[int] = (),
    group: str | None = None,
    files: Iterable[Path] = (),
    inodes: Iterable[str] = (),
    directories: Iterable[Path] = (),
    endings: Iterable[str] = (),
    only: str | None = None,
) -> Scope:
    """A scope from the options of the command line. Raises BadInput with the option."""
    processes, files, inodes = tuple(processes), tuple(files), tuple(inodes)
    directories, endings = tuple(directories), tuple(endings)
    options = {
        "processes": list(processes),
        "cgroup": group,
        "files": [str(path) for path in files],
        "inodes": list(inodes),
        "directories": [str(path) for path in directories],
        "endings": list(endings),
        "only": only,
    }
    if only not in (None, "read", "write"):
        raise BadInput(f"--only: found {only!r}; expected read or write")
    for process in processes:
        _process_is_there(process)
    for path in files:
        if path.is_dir():
            raise BadInput(f"--file: {path} is a directory; expected a file (or use --dir)")
    for path in directories:
        if path.exists() and not path.is_dir():
            raise BadInput(f"--dir: {path} is a file; expected a directory (or use --file)")
    for ending in endings:
        if not 0 < len(os.fsencode(ending)) <= _ENDING_BYTES or "/" in ending:
            raise BadInput(f"--ext: found {ending!r}; expected 1 to {_ENDING_BYTES} bytes, no /")
    return Scope(
        processes=processes,
        group=find_group(group) if group is not None else None,
        paths=files,
        directories=directories,
        numbers=tuple(_number(text) for text in inodes),
        endings=endings,
        only=only,
        options={key: value for key, value in options.items() if value},
        starts={process: start_ticks(process) for process in processes},
    )


def _process_is_there(process: int) -> None:
    if os.readlink("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:
        raise BadInput(
            "-p: process numbers here are those of a PID namespace, which the kernel side does not "
            "know; run penstock outside of it, or use --cgroup"
        )
    if not Path(f"/proc/{process}").exists():
        raise BadInput(f"-p: found {process}; expected a process that is running")
    try:
        status = Path(f"/proc/{process}/status").read_text()
        threads = len(os.listdir(f"/proc/{process}/task"))
    except OSError as error:
        raise BadInput(f"-p: found {process}; expected a process that is running") from error
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    group = int(facts["Tgid"])
    if facts["State"].split()[0] in ("Z", "X") and threads == 1:
        raise BadInput(
            f"-p: process {process} has ended and waits for its parent; expected one that is running"
        )
    if group != process:
        raise BadInput(f"-p: {process} is a thread of process {group}; expected a process")


def _number(text: str) -> tuple[int, int]:
    """(device, inode) from MAJOR:MINOR:INODE, or DEVICE:INODE with stat(1)'s one number."""
    parts = text.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) not in (2, 3):
        raise BadInput(f"--inode: found {text!r}; expected MAJOR:MINOR:INODE or DEVICE:INODE")
    *device, inode = map(int, parts)
    major, minor = device if len(device) == 2 else (os.major(device[0]), os.minor(device[0]))
    if major >= 1 << 12 or minor >= 1 << 20 or inode >= 1 << 64:
        raise BadInput(
            f"--inode: found {text!r}; expected numbers that a device and an inode can have"
        )
    return major << 20 | minor, inode


def _place(device: int, inode: int) -> Place:
    return {"device": device, "inode": inode}


def place_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(device, inode) in the kernel; stat(2) may report others (btrfs, overlayfs).

    The device is that of the mount, major << 20 | minor. Raises OSError if the path does not exist.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        facts = dict(
            line.split(":", 1)
            for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines()
        )
    finally:
        os.close(handle)
    device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
    for mount in mounts():
        if str(mount.mount_id) == facts.get("mnt_id", "").strip():
            major, minor = mount.device
            device = major << 20 | minor
    return device, int(facts.get("ino", status.st_ino))


def _anchored(option: str, path: Path) -> dict[str, Any]:
    """A path as an existing anchor and the names below it."""
    real = Path(os.path.realpath(path))
    anchor, below = real, b""
    if option == "--file" or not real.is_dir():
        while True:
            below += os.fsencode(anchor.name) + b"\0"
            anchor = anchor.parent
            if anchor.is_dir():
                break
    if len(below) > _TAIL_BYTES:
        raise BadInput(
            f"{option}: {path}: {len(below)} bytes of its path do not exist yet; expected at most "
            f"{_TAIL_BYTES}: create its directory first"
        )
    try:
        entry = {"anchor": _place(*place_of(anchor)), "tail": below.hex()}
        if option == "--file" and real.exists():
            entry["number"] = _place(*place_of(real))
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror}") from error
    return entry


def find_group(text: str, host: Hierarchies | None = None) -> Group:
    """A control group by its directory (unified or v1), by a process in it, or by a container's id.

    Raises BadInput with the alternatives.
    """
    host = host or hierarchies()
    if "/" in text or Path(text).is_dir():
        return _group_at(Path(os.path.realpath(text)), host)
    if text.isdigit() and Path(f"/proc/{text}").exists():
        return _group_of_process(int(text), host)
    if re.fullmatch(r"[A-Za-z0-9_.-]{3,}", text):
        return _group_of_container(text, host)
    raise BadInput(f"--cgroup: found {text!r}; expected a directory, a container or a process")


def _group_at(directory: Path, host: Hierarchies) -> Group:
    try:
        number = directory.stat().st_ino
    except OSError as error:
        raise BadInput(f"--cgroup: {directory}: {error.strerror}") from error
    if host.unified is not None and directory.is_relative_to(host.unified):
        return Group(number, directory)
    for controller, top in host.v1.items():
        if directory.is_relative_to(top.resolve()):
            return Group(
                number, directory, controller, len(directory.relative_to(top.resolve()).parts)
            )
    roots = sorted({*map(str, host.v1.values()), *([str(host.unified)] if host.unified else [])})
    raise BadInput(
        f"--cgroup: {directory} is in no hierarchy with a controller; expected a directory below "
        f"one of {', '.join(roots) or 'a mounted hierarchy'}"
    )


def _group_of_process(process: int, host: Hierarchies) -> Group:
    """Innermost group of a process, preferably in the unified hierarchy."""
    member: dict[str, str] = {}
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        member |= dict.fromkeys(controllers.split(","), path)
    tops = {"": host.unified, **host.v1}
    for controller in ("", *_BY_PREFERENCE):
        top, path = tops.get(controller), member.get(controller, "/")
        if top is not None and path != "/" and (top / path.lstrip("/")).is_dir():
            return _group_at((top / path.lstrip("/")).resolve(), host)
    raise BadInput(
        f"--cgroup: process {process} is in the root group of every hierarchy; use -p {process}"
    )


def _group_of_container(name: str, host: Hierarchies) -> Group:
    """Group that a container runtime named after the container's id or name."""
    for top in dict.fromkeys([host.unified, *(host.v1.get(c) for c in _BY_PREFERENCE)]):
        if top is None:
            continue
        hits = [
            Path(place) / inner
            for place, inners, _ in os.walk(top)
            for inner in inners
            if name in inner
        ]
        outermost = [hit for hit in hits if not any(other in hit.parents for other in hits)]
        if len(outermost) > 1:
            listed = ", ".join(map(str, sorted(outermost)[:4]))
            raise BadInput(f"--cgroup: {name!r} is in the name of several groups: {listed}")
        if outermost:
            return _group_at(outermost[0].resolve(), host)
    raise BadInput(
        f"--cgroup: no control group is named after {name!r}; expected a directory, a container's "
        "id or a process of it"
    )
