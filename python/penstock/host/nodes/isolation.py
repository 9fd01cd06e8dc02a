"""Rights and devices of a virtual node on the host, identical for every runtime."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spec.privileges import CAPABILITIES

#: description of a node for docs/emulation.md and `penstock doctor`
ISOLATES = (
    "A node has its own root, processes, network, IPC, host name and control groups. It has only the "
    "capabilities, devices and system calls of lists; `privileges` adds to them by name. Root "
    "inside a node cannot mount, load modules, set clocks or limits, create devices, read the kernel's log "
    "and memory, or write to control groups, /proc/sys and /sys."
)
DOES_NOT_ISOLATE = (
    "A node is no sandbox for hostile programs. Root inside is the host's root without these rights (there "
    "is no user namespace), and uses the host's kernel, clock and page cache. Without an `image` it can read "
    "the host's root file system, and it writes to shared directories as the host's root."
)

#: capabilities that ordinary servers need as root; IPC_LOCK, because data systems lock their memory
_OF_SERVERS = frozenset(
    """CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW IPC_LOCK
    SYS_CHROOT AUDIT_WRITE SETFCAP""".split()
)
#: paths that would expose the host's state, such as the kernel's memory, keys and log
MASKED = tuple(
    """/proc/acpi /proc/asound /proc/kcore /proc/keys /proc/kmsg /proc/latency_stats /proc/sched_debug
    /proc/scsi /proc/timer_list /proc/timer_stats /sys/devices/virtual/powercap /sys/firmware""".split()
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True)
class Device:
    """A device of a node: path, `c` or `b`, numbers."""

    path: str
    kind: str
    major: int
    minor: int

    @property
    def rule(self) -> str:
        """Rule for the control group of devices."""
        return f"{self.kind} {self.major}:{self.minor} rw"


#: devices of every node
DEVICES = (
    Device("/dev/null", "c", 1, 3),
    Device("/dev/zero", "c", 1, 5),
    Device("/dev/full", "c", 1, 7),
    Device("/dev/random", "c", 1, 8),
    Device("/dev/urandom", "c", 1, 9),
    Device("/dev/tty", "c", 5, 0),
)
#: terminals of the node itself
_TERMINALS = ("c 5:2 rw", "c 136:* rw")


@dataclass(frozen=True)
class Isolation:
    """Rights of one node: `capabilities` without CAP_, `devices` in /dev."""

    capabilities: tuple[str, ...]
    devices: tuple[Device, ...]

    @property
    def bits(self) -> int:
        """Bit mask of the capabilities."""
        return sum(1 << CAPABILITIES.index(name) for name in self.capabilities)

    @property
    def device_rules(self) -> tuple[str, ...]:
        """Rules of the control group of devices."""
        return (*(device.rule for device in self.devices), *_TERMINALS)


def isolation_of(privileges: Iterable[str]) -> Isolation:
    """Rights of a node with these privileges. Raises PenstockError for those that this process lacks."""
    requested = [p for p in privileges if not p.startswith("/")]
    own = _own_capabilities()
    lacking = [name for name in requested if not own >> CAPABILITIES.index(name) & 1]
    if lacking:
        raise PenstockError(f"privileges: penstock itself has no CAP_{lacking[0]} here to give")
    capabilities = (
        c
        for bit, c in enumerate(CAPABILITIES)
        if own >> bit & 1 and c in {*_OF_SERVERS, *requested}
    )
    devices = [device_at(p) for p in privileges if p.startswith("/")]
    paths = {device.path for device in DEVICES}
    return Isolation(tuple(capabilities), (*DEVICES, *(d for d in devices if d.path not in paths)))


def device_at(path: str) -> Device:
    """A device of the host. Raises PenstockError if there is none."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise PenstockError(f"privileges: {path}: {error.strerror}") from error
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise PenstockError(f"privileges: {path} is no device")
    return Device(path, kind, os.major(status.st_rdev), os.minor(status.st_rdev))


def _own_capabilities() -> int:
    """Our own capabilities as bits: a node cannot have more."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
