"""Control groups: one per run, in every hierarchy that accounts or limits its resources.

Groups are created only directly under a hierarchy's mount point, as `penstock-<name>-<token>`. Root groups
and foreign groups are never written, except `cgroup.subtree_control` of a v2 root to enable a controller for
its children, which is journalled and restored. On a hybrid host the controllers are v1, and the group also
exists in the unified hierarchy, by whose inode number BPF identifies it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal, Values, new_token
from penstock.host.journal.settings import restore_own, text_of
from penstock.host.processes import processes
from penstock.host.storage.mounts import Mount, mounts

#: controllers of a run's group: v1 name, v2 name. Without `cpu`: the group would compete for processors with
#: the weight of one process; v2 counts CPU time without the controller
_RUN_CONTROLLERS = (("memory", "memory"), ("cpuacct", ""), ("pids", "pids"), ("blkio", "io"))
#: a node is a machine, so its group does compete as one
_NODE_CONTROLLERS = (*_RUN_CONTROLLERS, ("cpu", "cpu"), ("cpuset", "cpuset"), ("devices", ""))
_V2_NAME = dict(_NODE_CONTROLLERS)
_EMPTY_WITHIN_S = 3.0

#: a file of a group and its new content
Write = tuple[Path, str]


@dataclass(frozen=True)
class Hierarchies:
    """Mount points of this host's control-group hierarchies.

    `v1` maps a controller to its mount point, `unified` is the v2 mount point (or None), `v2` the
    controllers available there.
    """

    v1: dict[str, Path] = field(default_factory=dict)
    unified: Path | None = None
    v2: frozenset[str] = frozenset()

    @property
    def layout(self) -> str:
        """'v2', 'hybrid' (v1 controllers and a unified mount), 'v1' or 'none'."""
        if self.unified is not None:
            return "hybrid" if self.v1 else "v2"
        return "v1" if self.v1 else "none"


_V1_CONTROLLERS = frozenset(
    {
        *("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids"),
        *("net_cls", "net_prio", "perf_event", "hugetlb", "rdma"),
    }
)


def hierarchies(table: Iterable[Mount] | None = None) -> Hierarchies:
    """Hierarchies in a mount table (default: this process's)."""
    v1: dict[str, Path] = {}
    unified: Path | None = None
    for mount in mounts() if table is None else table:
        if mount.fstype == "cgroup":
            for option in mount.super_options:
                if option in _V1_CONTROLLERS:
                    v1.setdefault(option, Path(mount.point))
        elif mount.fstype == "cgroup2" and unified is None:
            unified = Path(mount.point)
    available: frozenset[str] = frozenset()
    if unified is not None:
        with contextlib.suppress(OSError):
            available = frozenset((unified / "cgroup.controllers").read_text().split())
    return Hierarchies(v1, unified, available)


@dataclass
class RunCgroup:
    """The control group of one run.

    `paths` maps a controller ('memory', 'cpuacct', 'pids', 'blkio' on v1; 'memory', 'pids', 'blkio' also on
    v2, in one directory; 'unified' for the v2 directory) to the group's directory. `cgroup_id` is the inode
    number of the unified directory, 0 without one. `missing` has messages about features that this host
    lacks.
    """

    name: str
    paths: dict[str, Path]
    memory_bytes: int | None
    missing: list[str]
    token: str = ""
    _entry: Entry | None = None
    _journal: Journal | None = None
    _settings: list[Entry] = field(default_factory=list)

    @property
    def cgroup_id(self) -> int:
        """Value of bpf_get_current_cgroup_id() for the members; 0 without a unified hierarchy."""
        unified = self.paths.get("unified")
        return unified.stat().st_ino if unified is not None else 0

    @property
    def directories(self) -> list[Path]:
        """Distinct directories of the group, the unified one last."""
        return list(dict.fromkeys(self.paths.values()))

    def enter_args(self) -> list[str]:
        """`cgroup.procs` files to which a process writes its pid to enter the group."""
        return [str(d / "cgroup.procs") for d in self.directories]

    def enter(self, pid: int) -> None:
        """Move a process into the group. Raises PenstockError if the kernel refuses."""
        for path in self.enter_args():
            try:
                Path(path).write_text(str(pid))
            except OSError as error:
                raise PenstockError(
                    f"process {pid} cannot enter {path}: {error.strerror}"
                ) from error

    def altering(self, writes: Iterable[Write]) -> list[tuple[Entry, Values]]:
        """Values that these writes change, for `Journal.alter`."""
        return [] if self._entry is None else [(self._entry, altering(writes))]

    def readings_of(self, files: Iterable[Path]) -> list[tuple[Entry, dict[str, list[str]]]]:
        """Values in files after a write, for `Journal.read_back`."""
        if self._entry is None:
            return []
        return [(self._entry, {str(path): self._accepted(path) for path in files})]

    def set_files(self, writes: Sequence[Write]) -> None:
        """Record writes in the journal, then make them. Raises PenstockError if either fails."""
        if self._journal is not None:
            self._journal.alter(self.altering(writes))
        write_files(writes)
        if self._journal is not None:
            self._journal.read_back(self.readings_of(path for path, _ in writes))

    def _accepted(self, path: Path) -> list[str]:
        """Values of a file of the group that may result from our own changes."""
        return [text_of(path)]

    def memory_stat(self) -> dict[str, int]:
        """Memory of the group [bytes]: usage, limit, page cache, anonymous, dirty, write-back; oom_kills.

        Empty without a memory controller.
        """
        group = self.paths.get("memory")
        if group is None:
            return {}
        raw = _pairs(group / "memory.stat")
        if (group / "memory.usage_in_bytes").exists():
            limit = _number(group / "memory.limit_in_bytes")
            return {
                "usage_bytes": _number(group / "memory.usage_in_bytes"),
                "limit_bytes": limit,
                "peak_bytes": _number(group / "memory.max_usage_in_bytes"),
                "page_cache_bytes": raw.get("total_cache", 0),
                "anonymous_bytes": raw.get("total_rss", 0),
                "dirty_bytes": raw.get("total_dirty", 0),
                "writeback_bytes": raw.get("total_writeback", 0),
                "oom_kills": _pairs(group / "memory.oom_control").get("oom_kill", 0),
            }
        return {
            "usage_bytes": _number(group / "memory.current"),
            "limit_bytes": _number(group / "memory.max"),
            "peak_bytes": _number(group / "memory.peak"),
            "page_cache_bytes": raw.get("file", 0),
            "anonymous_bytes": raw.get("anon", 0),
            "dirty_bytes": raw.get("file_dirty", 0),
            "writeback_bytes": raw.get("file_writeback", 0),
            "oom_kills": _pairs(group / "memory.events").get("oom_kill", 0),
        }

    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the group, page cache included; None if unknown."""
        peak = self.memory_stat().get("peak_bytes", -1)
        return peak if peak >= 0 else None

    def oom_kills(self) -> int:
        """Number of processes of the group that the OOM killer killed."""
        return self.memory_stat().get("oom_kills", 0)

    def cpu_ns(self) -> int | None:
        """CPU time of the group since its creation; None if not counted."""
        if "cpuacct" in self.paths:
            return _number(self.paths["cpuacct"] / "cpuacct.usage")
        group = self.paths.get("unified")
        usage = _pairs(group / "cpu.stat").get("usage_usec") if group is not None else None
        return usage * 1000 if usage is not None else None

    def cpu_waited_ns(self) -> int | None:
        """Time in which some task of the group waited for a processor (PSI); None if not counted."""
        group = self.paths.get("unified")
        try:
            lines = (group / "cpu.pressure").read_text().splitlines() if group is not None else []
        except OSError:  # a kernel without PSI, or psi=0
            return None
        totals = [line.rpartition("total=")[2] for line in lines if line.startswith("some ")]
        return int(totals[0]) * 1000 if totals else None

    def environment(self) -> dict[str, str]:
        """Variable with the token, which identifies processes where there is no group."""
        return {} if self.paths else {processes.TOKEN_VARIABLE: self.token}

    def pids(self) -> list[int]:
        """Members, including those of child groups; without a group, processes with the token."""
        return sorted(members(self.directories) if self.paths else processes.with_token(self.token))

    def kill(self) -> None:
        """Kill every member and wait until the group is empty. Raises PenstockError on time-out."""
        if self.paths:
            remaining = kill_members([str(d) for d in self.directories])
        else:
            identities = [i for pid in self.pids() if (i := processes.Identity.of(pid))]
            remaining = [i.pid for i in processes.end(identities, grace_s=0.0)]
        if remaining:
            raise PenstockError(f"control group {self.name} still contains {remaining}")

    def remove(self) -> None:
        """Kill remaining members, remove the group and close its journal entry."""
        self.kill()
        remove_groups([str(d) for d in self.directories])
        if self._journal is not None and self._entry is not None:
            self._journal.undone(self._entry)
            self._entry = None
        self._put_back_settings()

    def _put_back_settings(self) -> None:
        if self._journal is None:
            return
        settings, self._settings = self._settings, []
        if self.paths and self.paths.get("memory") == self.paths.get("unified"):
            # switches of this process that could not be restored while there were other groups
            control = str(self.paths["unified"].parent / "cgroup.subtree_control")
            own = processes.Identity.own()
            ids = {entry.id for entry in settings}
            settings += [
                entry
                for entry in self._journal.open_entries()
                if entry.target == control and entry.owner == own and entry.id not in ids
            ]
        for entry in settings:
            restore_own(entry, self._journal)

    def __enter__(self) -> RunCgroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def create_run_cgroup(
    name_token: str | None,
    memory_bytes: int | None,
    journal: Journal,
    *,
    run: str | None = None,
    pids_max: int | None = None,
    memory_soft_bytes: int | None = None,
) -> RunCgroup:
    """Create a run's control group, with a memory limit (page cache included) of `memory_bytes` if given.

    The kernel kills processes above `memory_bytes`; above `memory_soft_bytes` it only reclaims pages.

    Controllers that the host lacks are listed in `.missing`; without any writable hierarchy the group has no
    directories and limits nothing. Raises PenstockError if the memory controller refuses a requested limit.
    """
    token = new_token()
    label = re.sub(r"[^A-Za-z0-9_.-]", "-", name_token or "")[:64]
    name = "-".join(part for part in ("penstock", label, token) if part)
    host = hierarchies()
    parents, switched, missing = _parents(host)
    settings: list[Entry] = []
    if switched and host.unified is not None:
        settings, refused = _switch_on(host.unified, switched, journal, run)
        for controller in refused:
            parents = {c: p for c, p in parents.items() if _V2_NAME.get(c) != controller}
            missing.append(
                f"{controller}: the kernel does not let it be switched on for {host.unified}"
            )
    if not parents:
        missing.append("no writable control-group hierarchy: nothing is limited or counted")
        entry = journal.plan("process", name, run=run, token=token)
        return RunCgroup(name, {}, memory_bytes, missing, token, entry, journal)
    paths = {controller: parent / name for controller, parent in parents.items()}
    directories = list(dict.fromkeys(paths.values()))
    entry = journal.plan("cgroup", name, run=run, token=token, new=[str(d) for d in directories])
    group = RunCgroup(name, paths, memory_bytes, missing, token, entry, journal, settings)
    try:
        for directory in directories:
            directory.mkdir()
        writes = _memory_writes(group, memory_bytes) if memory_bytes is not None else []
        if memory_soft_bytes is not None:
            writes += _soft_memory_writes(group, memory_soft_bytes)
        if pids_max is not None and "pids" in paths:
            writes.append((paths["pids"] / "pids.max", str(pids_max)))
        if writes:
            group.set_files(writes)
        journal.done(entry)
    except (OSError, PenstockError) as error:
        group.remove()
        raise PenstockError(f"control group {name}: {error}") from error
    return group


def _parents(
    host: Hierarchies, controllers: tuple[tuple[str, str], ...] = _RUN_CONTROLLERS
) -> tuple[dict[str, Path], list[str], list[str]]:
    """Directory of the group of each controller; v2 controllers to enable; missing ones, as messages."""
    parents: dict[str, Path] = {}
    switched: list[str] = []
    missing: list[str] = []
    on: set[str] = set()
    if host.unified is not None:
        with contextlib.suppress(OSError):
            on = set((host.unified / "cgroup.subtree_control").read_text().split())
    for old_name, new_name in controllers:
        if old_name in host.v1:
            if os.access(host.v1[old_name], os.W_OK):
                parents[old_name] = host.v1[old_name]
            else:
                missing.append(f"{old_name}: {host.v1[old_name]} may not be written")
        elif host.unified is not None and new_name and new_name in host.v2:
            if not os.access(host.unified, os.W_OK):
                missing.append(f"{new_name}: {host.unified} may not be written")
                continue
            parents[old_name] = host.unified
            if new_name not in on and new_name not in switched:
                switched.append(new_name)
        elif new_name or host.unified is None:
            missing.append(f"{old_name}: this kernel offers no such controller")
    if host.unified is not None and os.access(host.unified, os.W_OK):
        parents["unified"] = host.unified
    return parents, switched, missing


def _switch_on(
    root: Path, controllers: list[str], journal: Journal, run: str | None
) -> tuple[list[Entry], list[str]]:
    """Enable v2 controllers for the children of `root`, journalled; returns entries and refusals."""
    control = root / "cgroup.subtree_control"
    entry = journal.plan(
        "setting", control, run=run, old=control.read_text().split(), new=controllers
    )
    refused = []
    for controller in controllers:
        try:
            control.write_text(f"+{controller}")
        except OSError:
            refused.append(controller)
    journal.done(entry)
    return [entry], refused


def altering(writes: Iterable[Write]) -> Values:
    """Old and new content by file."""
    return {str(path): (text_of(path), value) for path, value in writes}


def write_files(writes: Iterable[Write]) -> None:
    """Write files in this order. Raises PenstockError if the kernel refuses."""
    for path, value in writes:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise PenstockError(
                f"{path} cannot be set to {value.strip() or 'all'}: {error.strerror}"
            ) from error


def _memory_writes(group: RunCgroup, memory_bytes: int) -> list[Write]:
    """Writes that set the hard limit of a group's memory [bytes]; the kernel kills processes above it.

    The kernel (v1) refuses a limit below the memory that it cannot reclaim.
    """
    directory = group.paths.get("memory")
    if directory is None:
        group.missing.append("memory: the limit cannot be set")
        return []
    return hard_limit(directory, memory_bytes)


def hard_limit(directory: Path, memory_bytes: int | None) -> list[Write]:
    """Writes that set the hard limit of a memory group [bytes], including swap; None for none."""
    files = [directory / "memory.limit_in_bytes", directory / "memory.memsw.limit_in_bytes"]
    if not files[0].exists():
        swap = directory / "memory.swap.max"
        return [
            (directory / "memory.max", "max" if memory_bytes is None else str(memory_bytes)),
            *([(swap, "max" if memory_bytes is None else "0")] if swap.exists() else []),
        ]
    files = [path for path in files if path.exists()]
    now = _number(files[0])
    if memory_bytes is None or (now >= 0 and memory_bytes > now):
        files.reverse()  # the limit with swap must never be the lower one
    return [(path, "-1" if memory_bytes is None else str(memory_bytes)) for path in files]


def _soft_memory_writes(group: RunCgroup, soft_bytes: int) -> list[Write]:
    """Writes that set the soft limit of a group's memory [bytes], above which the kernel reclaims pages.

    v1 does so only when the host is short of memory; `missing` then has a message.
    """
    directory = group.paths.get("memory")
    if directory is None:
        group.missing.append("memory: the soft limit cannot be set")
        return []
    if not (directory / "memory.high").exists():
        message = "memory: a soft limit presses only when the host itself is short of memory (v1)"
        if message not in group.missing:
            group.missing.append(message)
    return soft_limit(directory, soft_bytes)


def soft_limit(directory: Path, soft_bytes: int | None) -> list[Write]:
    """Writes that set the soft limit of a memory group [bytes], None for none."""
    high = directory / "memory.high"
    if high.exists():
        return [(high, "max" if soft_bytes is None else str(soft_bytes))]
    value = "-1" if soft_bytes is None else str(soft_bytes)
    return [(directory / "memory.soft_limit_in_bytes", value)]


def _tree(directory: Path) -> list[Path]:
    """Groups under a group and the group itself, parents first."""
    if not directory.is_dir():
        return []
    return [Path(top) for top, _, _ in os.walk(directory)]


def members(directories: Iterable[Path]) -> set[int]:
    """Pids in these groups and their child groups."""
    pids: set[int] = set()
    for directory in directories:
        for group in _tree(directory):
            with contextlib.suppress(OSError):
                pids.update(int(p) for p in (group / "cgroup.procs").read_text().split())
    pids.discard(0)
    return pids


def kill_members(directories: list[str]) -> list[int]:
    """Kill all members of our groups (SIGKILL) and wait; returns the remaining pids."""
    groups = [Path(d) for d in directories if os.path.basename(d).startswith("penstock-")]
    until = time.monotonic() + _EMPTY_WITHIN_S
    for group in groups:
        with contextlib.suppress(OSError):  # all at once if the kernel supports it (v2, since 5.14)
            (group / "cgroup.kill").write_text("1")
    pause_s = 0.0005
    while remaining := members(groups):
        if time.monotonic() > until:
            return sorted(remaining)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)
    return []


def remove_groups(directories: list[str]) -> bool:
    """Remove our empty groups, child groups first; False if there was none.

    Raises PenstockError if one remains busy.
    """
    groups = [Path(d) for d in directories if os.path.basename(d).startswith("penstock-")]
    removed = False
    for group in groups:
        for directory in reversed(_tree(group)):
            removed = True
            _rmdir(directory)
    return removed


def _rmdir(directory: Path) -> None:
    until = time.monotonic() + _EMPTY_WITHIN_S
    pause_s = 0.0005
    while True:
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:  # busy for a moment after the last member's exit
            if time.monotonic() > until:
                raise PenstockError(f"{directory} cannot be removed: {error.strerror}") from error
            for pid in members([directory]):  # a process that was just entering
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)


def _pairs(path: Path) -> dict[str, int]:
    """A flat keyed file as a dict; empty if unreadable."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {k: int(v) for k, _, v in (line.partition(" ") for line in lines) if v.strip().isdigit()}


def _number(path: Path) -> int:
    """A single number; -1 if unreadable or 'max'."""
    try:
        text = path.read_text().strip()
    except OSError:
        return -1
    return int(text) if text.isdigit() else -1
