"""Protocol of the back ends of emulated disks, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from penstock.errors import BadInput
from penstock.host.journal.journal import Entry, Journal, Values
from penstock.spec.cluster import DiskSpec, Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.analyse.fidelity.fidelity import Certificate
    from penstock.emulate.disks.recorded import Recorded
    from penstock.emulate.disks.server import DiskServer

#: limits of a disk; a patch has those it changes, `None` or "max" removes one
LIMIT_KEYS = ("read_bps", "write_bps", "read_iops", "write_iops")


class Group(Protocol):
    """Control group of a node, as back ends use it (`host.cgroup.RunCgroup` implements it)."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """Directory by controller ('blkio', 'memory', 'unified', …)."""

    def enter_args(self) -> list[str]:
        """The `cgroup.procs` files by which a process enters."""


@dataclass(frozen=True)
class Place:
    """Place of a disk: its name among the owner's disks, an empty mount point, a directory for its files,
    the control group of the node that uses it (None: no limits by group).
    """

    disk_id: str
    mount: Path
    directory: Path
    group: Group | None = None
    memory_bytes: int | None = None
    #: most dirty pages of the disk; None: according to `memory_bytes`
    most_dirty_bytes: int | None = None
    run: str | None = None
    #: request log, from the start; only of disks of the model
    log: Path | None = None


@dataclass(frozen=True)
class Cause:
    """Cause of a change. `kind`: initial state, request, time, mark of a phase, counter of a disk, line of a
    log. `text`: the phase, the counter with its value, or the line."""

    kind: Literal["begin", "request", "time", "phase", "metric", "log"] = "request"
    text: str = ""


@dataclass(frozen=True)
class Applied:
    """One applied change: times when it was due, applied and read back [CLOCK_MONOTONIC ns], the requested
    values, the values read back, the cause. `error` is empty unless it failed."""

    planned_ns: int
    applied_ns: int
    verified_ns: int
    asked: dict[str, Any]
    found: dict[str, Any]
    error: str = ""
    cause: Cause = field(default_factory=Cause)


class UpDisk(Protocol):
    """A disk that is up.

    Optional members: `page` (a Path), the page of its counters that the sampler reads; `in_force()`, the
    values in force with the keys of a patch, where these are more than limits; `cuts_power` = True if it
    accepts the patch `power_cut`.
    """

    disk_id: str
    #: name of the back end
    backend: str
    #: mount point on the host
    mount: Path
    #: device number of its files
    device: tuple[int, int]

    def altering(self, patch: Mapping[str, Any]) -> list[tuple[Entry, Values]]:
        """Values on the host before and after a patch, for `Journal.alter`."""

    def patch(
        self, patch: Mapping[str, Any], *, announced: bool = False, cause: Cause | None = None
    ) -> Applied:
        """Apply a patch, leave all other values, and read back. Record it in the journal first unless
        `announced`: a caller that changes many disks records all changes at once.

        Raises BadInput, before any change, for features that this back end lacks, with the nearest
        alternative.
        """

    def set_limits(self, limits: Mapping[str, float | str | None]) -> Applied:
        """Set the given limits (LIMIT_KEYS) independently; None or "max" clears one."""

    def read_back(self) -> Limits:
        """Limits currently set in the kernel or the server."""

    def schedule(self, events: Sequence[Mapping[str, Any]], *, announced: bool = False) -> None:
        """Schedule events `{"at_ns": CLOCK_MONOTONIC, "patch": {…}}`, optionally with a `cause`
        {"kind", "text"}; the process that serves the disk applies them."""

    def events(self) -> list[dict[str, Any]]:
        """Results of scheduled events, with the fields of `Applied`."""

    def stats(self, *, closing: bool = False) -> dict[str, Any]:
        """Counters since `up` or `begin`: at least read_bytes, written_bytes, reads, writes.

        `closing`: the run is over; adds the measurements that the certificate needs after a run.
        """

    def facts(self) -> dict[str, Any]:
        """File system, options, scheduler, readahead, write cache, queue depth; JSON values."""

    def begin(self, spool_dir: Path) -> None:
        """Start of a run: reset the counters, start the records for the certificate."""

    def end(self) -> dict[str, pa.Table]:
        """End of a run: the recorded tables by name."""

    def down(self) -> dict[str, Any]:
        """Stop the disk; returns its last counters. Synced data stay in its files."""


#: keys of a patch that a throttled device supports; all others need the model
_OF_A_THROTTLE = {"limits", "readahead"}


def shape_of(disk: DiskSpec) -> list[str]:
    """Requested features of a disk that only the model can emulate, as text; empty for plain limits."""
    features = []
    if disk.profile is not None:
        features.append(f"the latency of profile {disk.profile_name or 'given'}")
    features += sorted(set(disk.patch) - _OF_A_THROTTLE)
    return features


@dataclass(frozen=True)
class Owner:
    """Owner of disks (a cluster, a study): its journal, a private directory, its disk server if it has one.
    With `outlive` the disks survive this process.
    """

    journal: Journal
    home: Path
    server: DiskServer | None = None
    outlive: bool = False
    run: str | None = None


class Backend(Protocol):
    """Implementation of disks: a row of `penstock.plugins.DISK_BACKENDS`, one instance per owner.

    `up` undoes its changes if it fails; `stop` stops the remaining disks.
    """

    name: str
    #: reason for its choice for a disk with plain limits
    why: str

    def __init__(self, owner: Owner) -> None: ...

    @classmethod
    def missing(cls) -> str:
        """Requirement that this host lacks; empty if none. Changes nothing."""

    @classmethod
    def refusal(cls, disk: DiskSpec) -> str:
        """Requested features of a disk that it does not support, as text; empty if none."""

    @classmethod
    def certificate(
        cls, recorded: Recorded, utilisation: pa.Table | None, run_cpu_ns: int | None
    ) -> Certificate | None:
        """Fidelity of a disk in a run (both kinds: `certificate.py`); None without a certificate of this back
        end or without records. `recorded` may come from another process or an old bundle.
        """

    def up(self, disk: DiskSpec, place: Place) -> UpDisk:
        """Start a disk. Raises BadInput for unsupported requests, PenstockError if the host refuses."""

    def stop(self) -> None:
        """Stop the remaining disks and their servers."""


@dataclass
class LimitPatch:
    """Limits of a patch: numbers (B/s, 1/s) to set and names to clear."""

    set: dict[str, float] = field(default_factory=dict)
    clear: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, limits: Mapping[str, Any], where: str = "limits") -> LimitPatch:
        """Check a mapping of limits. Raises BadInput for an unknown name or a number not above 0."""
        out = cls()
        for name, value in limits.items():
            if name not in LIMIT_KEYS:
                raise BadInput(f"{where}: found {name!r}; expected one of {', '.join(LIMIT_KEYS)}")
            if value is None or value == "max":
                out.clear.append(name)
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadInput(f"{where}.{name}: found {value!r}; expected a number or max")
            if not 0 < float(value) < float("inf"):
                raise BadInput(f"{where}.{name}: found {value!r}; expected a number above 0 or max")
            out.set[name] = float(value)
        return out


def limits_dict(limits: Limits) -> dict[str, float]:
    """Limits that are set, by name."""
    return {k: float(v) for k in LIMIT_KEYS if (v := getattr(limits, k)) is not None}
