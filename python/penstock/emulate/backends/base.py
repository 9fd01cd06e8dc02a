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

#: the four limits; a patch names those it changes, `None` or "max" takes one away
LIMIT_KEYS = ("read_bps", "write_bps", "read_iops", "write_iops")


class Group(Protocol):
    """The control group of a node, as far as a back end needs it (`host.cgroup.RunCgroup` is one)."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """Directory by controller ('blkio', 'memory', 'unified', …)."""

    def enter_args(self) -> list[str]:
        """The `cgroup.procs` files by which a process enters."""


@dataclass(frozen=True)
class Place:
    """Place of a disk: its name among the owner's disks, an empty directory to mount it on, a directory
    for its files, the control group of the node that uses it (None: no limit by group is possible).
    """

    disk_id: str
    mount: Path
    directory: Path
    group: Group | None = None
    memory_bytes: int | None = None
    run: str | None = None
    #: request log of a disk of the model, from the beginning
    log: Path | None = None


@dataclass(frozen=True)
class Cause:
    """Why a change is made. `kind`: it is what a disk began with, on request, at its time, upon the mark of
    a phase, a counter of a disk or a line of a log; `text`: which phase, which counter with its value, the
    line."""

    kind: Literal["begin", "request", "time", "phase", "metric", "log"] = "request"
    text: str = ""


@dataclass(frozen=True)
class Applied:
    """One applied change: times when it was due, made and read back [CLOCK_MONOTONIC ns], the requested
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

    It may have more: `page` (a Path), the page of its counters as the sampler reads them; `in_force()`, what
    is in force with the keys of a patch, where that is more than limits; `cuts_power` = True, where its patch
    may be a `power_cut`.
    """

    disk_id: str
    #: name of the back end
    backend: str
    #: where it is mounted on the host
    mount: Path
    #: device number that its files carry
    device: tuple[int, int]

    def altering(self, patch: Mapping[str, Any]) -> list[tuple[Entry, Values]]:
        """Values on the host that a patch changes, before and after, for `Journal.alter`."""

    def patch(
        self, patch: Mapping[str, Any], *, announced: bool = False, cause: Cause | None = None
    ) -> Applied:
        """Changes what the patch names and nothing else, and reads it back. The journal is told first, unless
        it was told already (`announced`: who changes many disks tells it of all at once).

        Raises BadInput for what this back end cannot do, with the nearest alternative; nothing was changed.
        """

    def set_limits(self, limits: Mapping[str, float | str | None]) -> Applied:
        """Sets the limits that are named (LIMIT_KEYS), each for itself; None or "max" clears one."""

    def read_back(self) -> Limits:
        """The limits as the kernel or the server has them now."""

    def schedule(self, events: Sequence[Mapping[str, Any]], *, announced: bool = False) -> None:
        """Events `{"at_ns": CLOCK_MONOTONIC, "patch": {…}}`, perhaps with a `cause` {"kind", "text"}, applied
        at their time by whoever serves the disk."""

    def events(self) -> list[dict[str, Any]]:
        """Results of scheduled events: the fields of `Applied` each."""

    def stats(self, *, closing: bool = False) -> dict[str, Any]:
        """Counters since `up` or `begin`: at least read_bytes, written_bytes, reads, writes.

        `closing`: nothing more will come; what the certificate wants measured after a run is added.
        """

    def facts(self) -> dict[str, Any]:
        """File system, options, scheduler, readahead, write cache, queue depth; JSON values."""

    def begin(self, spool_dir: Path) -> None:
        """A run begins: counters to zero, what the certificate needs is recorded from now on."""

    def end(self) -> dict[str, pa.Table]:
        """The run has ended: what was recorded, by name of table."""

    def down(self) -> dict[str, Any]:
        """Takes the disk away and gives its last counters. What was synced to it stays in its files."""


#: what a patch may say to a throttled device; everything else needs the model
_OF_A_THROTTLE = {"limits", "readahead"}


def shape_of(disk: DiskSpec) -> list[str]:
    """Parts of a disk's request that only the model can emulate, as text; empty for plain limits."""
    features = []
    if disk.profile is not None:
        features.append(f"the latency of profile {disk.profile_name or 'given'}")
    features += sorted(set(disk.patch) - _OF_A_THROTTLE)
    return features


@dataclass(frozen=True)
class Owner:
    """Owner of disks (a cluster, a study): its journal, a private directory, the disk server that it has
    already; with `outlive` the disks stay when this process ends.
    """

    journal: Journal
    home: Path
    server: DiskServer | None = None
    outlive: bool = False
    run: str | None = None


class Backend(Protocol):
    """A way to make disks: a row of `penstock.plugins.DISK_BACKENDS`, made once for each owner.

    `up` undoes what it did if it fails; `stop` takes down what is still up.
    """

    name: str
    #: why it is taken for a disk that asks for no more than limits
    why: str

    def __init__(self, owner: Owner) -> None: ...

    @classmethod
    def missing(cls) -> str:
        """The part that this host lacks for it; empty if nothing. Changes nothing."""

    @classmethod
    def refusal(cls, disk: DiskSpec) -> str:
        """The part of a disk's request that it cannot honour, as text; empty if it honours all."""

    @classmethod
    def certificate(
        cls, recorded: Recorded, utilisation: pa.Table | None, run_cpu_ns: int | None
    ) -> Certificate | None:
        """Fidelity of a disk in a run (`certificate.py` has both kinds); None if the back end makes no
        certificate, or nothing was recorded. `recorded` may come from another process or an old bundle.
        """

    def up(self, disk: DiskSpec, place: Place) -> UpDisk:
        """Puts a disk up. Raises BadInput for what it cannot do, PenstockError where the host refuses."""

    def stop(self) -> None:
        """Takes down what is still up, and ends what served it."""


@dataclass
class LimitPatch:
    """The limits a patch names: numbers (B/s, 1/s) to set and names to clear."""

    set: dict[str, float] = field(default_factory=dict)
    clear: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, limits: Mapping[str, Any], where: str = "limits") -> LimitPatch:
        """Checks a mapping of limits. Raises BadInput for an unknown name or a number not above 0."""
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
    """The limits that are set, by name."""
    return {k: float(v) for k in LIMIT_KEYS if (v := getattr(limits, k)) is not None}
