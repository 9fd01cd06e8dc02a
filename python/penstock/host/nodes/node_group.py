"""Control groups of virtual nodes: processor time, processors, memory, freezing; v1, v2 and hybrid.

Like a run's groups they are directly under each hierarchy, named `penstock-<cluster>-<node>-<token>`; those
of many nodes share one journal entry.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import (
    _NODE_CONTROLLERS,
    _V2_NAME,
    RunCgroup,
    Write,
    _number,
    _parents,
    _switch_on,
    hard_limit,
    hierarchies,
    remove_groups,
    soft_limit,
    write_files,
)
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.journal.settings import restore_own, text_of
from penstock.host.storage.mounts import mounts

#: period of the processor quota [µs]: short, so that a slow processor does not alternate between work and
#: pause; long enough that the scheduler's time slices do not matter
PERIOD_US = 20_000
_LEAST_QUOTA_US = 1_000
_LONGEST_PERIOD_US = 1_000_000
_FROZEN_WITHIN_S = 2.0
#: weight of a v2 group by default, and largest one
_WEIGHT, _MOST_WEIGHT = 100, 10_000


@dataclass
class NodeGroup(RunCgroup):
    """Control group of one node: a run's group that also limits the processors."""

    #: reclaim lowers the hard limit for a moment, which no other thread may see or undo
    _memory: threading.RLock = field(
        default_factory=threading.RLock, init=False, repr=False, compare=False
    )

    def journalled(self, journal: Journal, entry: Entry) -> None:
        """Record its changes with an entry of several groups."""
        self._journal, self._entry = journal, entry

    def entrances(self) -> tuple[str, ...]:
        """Files to which a single-threaded process writes 0 to enter, without stopping other processes."""
        return tuple(
            str(d / ("tasks" if (d / "tasks").exists() else "cgroup.procs"))
            for d in self.directories
        )

    def set_cpus(self, cpus: float | None) -> None:
        """Limit processor time to `cpus` processors; None: no limit. Raises PenstockError."""
        self.set_files(self.cpu_writes(cpus))

    def cpu_writes(self, cpus: float | None) -> list[Write]:
        """Writes of `set_cpus`."""
        group = self._controller("cpu", cpus is not None)
        if group is None:
            return []
        period_us = PERIOD_US
        if cpus is not None:
            period_us = min(max(PERIOD_US, math.ceil(_LEAST_QUOTA_US / cpus)), _LONGEST_PERIOD_US)
        quota_us = -1 if cpus is None else max(_LEAST_QUOTA_US, round(cpus * period_us))
        if (group / "cpu.max").exists():
            return [(group / "cpu.max", f"{'max' if cpus is None else quota_us} {period_us}")]
        quota, period = group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"
        between: list[Write] = []
        if period_us != _number(period):
            between = [(quota, "-1"), (period, str(period_us))]  # so that no step is refused
        return [*between, (quota, str(quota_us))]

    def cpus(self) -> float | None:
        """Limit in force [processors], read back; None: none."""
        group = self.paths.get("cpu")
        if group is None:
            return None
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        return None if quota_us < 0 else quota_us / _number(group / "cpu.cfs_period_us")

    def set_cpuset(self, processors: Iterable[int] | None) -> None:
        """Restrict it to these processors; None: all. Raises PenstockError if the kernel refuses."""
        self.set_files(self.cpuset_writes(processors))

    def cpuset_writes(self, processors: Iterable[int] | None) -> list[Write]:
        """Writes of `set_cpuset`."""
        group = self._controller("cpuset", processors is not None)
        if group is None:
            return []
        processor_list = (
            "" if processors is None else ",".join(str(p) for p in sorted(set(processors)))
        )
        if not processor_list:  # a group with processes must have processors
            unified = (group / "cgroup.controllers").exists()
            source = "cpuset.cpus.effective" if unified else "cpuset.cpus"
            processor_list = (group.parent / source).read_text().strip()
        return [(group / "cpuset.cpus", processor_list)]

    def cpuset(self) -> tuple[int, ...]:
        """Processors that it may use, read back."""
        group = self.paths.get("cpuset")
        if group is None:
            return tuple(sorted(os.sched_getaffinity(0)))
        own = (group / "cpuset.cpus").read_text().strip()
        if not own and (group / "cpuset.cpus.effective").exists():
            own = (group / "cpuset.cpus.effective").read_text().strip()
        return parse_cpuset(own)

    def set_memory(self, hard_bytes: int | None, soft_bytes: int | None) -> None:
        """Limit memory, page cache included; above `hard` the kernel kills, above `soft` it reclaims.

        Raises PenstockError if the kernel refuses, as for a limit below the unreclaimable memory.
        """
        with self._memory:
            self.set_files(self.memory_writes(hard_bytes, soft_bytes))

    def memory_writes(self, hard_bytes: int | None, soft_bytes: int | None) -> list[Write]:
        """Writes of `set_memory`."""
        group = self._controller("memory", hard_bytes is not None or soft_bytes is not None)
        if group is None:
            return []
        with self._memory:
            return [*hard_limit(group, hard_bytes), *soft_limit(group, soft_bytes)]

    def write(self, writes: Sequence[Write]) -> None:
        """Make writes that are in the journal. Raises PenstockError if the kernel refuses."""
        with self._memory:
            write_files(writes)

    def _accepted(self, path: Path) -> list[str]:
        """Values of a file; reclaim sets the hard limit to the soft one for a moment."""
        with self._memory:
            accepted = super()._accepted(path)
            if path.name == "memory.limit_in_bytes":
                accepted.append(text_of(path.with_name("memory.soft_limit_in_bytes")))
        return accepted

    def device_writes(self, rules: Iterable[str]) -> list[Write]:
        """Writes that allow the node's processes these devices only (v1)."""
        group = self.paths.get("devices")
        if group is None:
            return []
        allowed: list[Write] = [(group / "devices.allow", rule) for rule in rules]
        return [(group / "devices.deny", "a"), *allowed]

    def memory(self) -> tuple[int | None, int | None]:
        """Hard and soft limit in force [bytes], read back; None: none."""
        group = self.paths.get("memory")
        if group is None:
            return None, None
        names = ("memory.limit_in_bytes", "memory.soft_limit_in_bytes")
        if not (group / names[0]).exists():
            names = ("memory.max", "memory.high")
        with self._memory:
            hard, soft = (_number(group / name) for name in names)
        return _limit(hard), _limit(soft)

    def press(self) -> bool:
        """Reclaim memory down to the soft limit (v1 only: v2 does so itself).

        The hard limit is lowered for a moment while nothing can be killed. True if memory was above it.
        """
        group = self.paths.get("memory")
        if group is None or not (group / "memory.limit_in_bytes").exists():
            return False
        with self._memory:
            return self._press(group)

    def _press(self, group: Path) -> bool:
        hard, soft = self.memory()
        if soft is None or _number(group / "memory.usage_in_bytes") <= soft:
            return False
        with contextlib.suppress(OSError):
            (group / "memory.oom_control").write_text("1")
        try:
            with contextlib.suppress(OSError):  # memory in use cannot be reclaimed
                (group / "memory.limit_in_bytes").write_text(str(soft))
        finally:
            with contextlib.suppress(OSError):
                (group / "memory.limit_in_bytes").write_text(str(-1 if hard is None else hard))
            with contextlib.suppress(OSError):
                (group / "memory.oom_control").write_text("0")
        return True

    def freeze(self, frozen: bool) -> None:
        """Freeze or thaw all its processes. Raises PenstockError.

        The caller records it in the journal (`freeze_writes`): thawing must always be possible.
        """
        unified = self.paths.get("unified")
        if unified is None or not (unified / "cgroup.freeze").exists():
            raise PenstockError("this kernel cannot freeze a group (cgroup v2, Linux 5.2)")
        write_files(self.freeze_writes(frozen))
        until = time.monotonic() + _FROZEN_WITHIN_S
        pause_s = 0.0001
        while self.frozen() != frozen:
            if time.monotonic() > until:
                raise PenstockError(f"{self.name} does not {'freeze' if frozen else 'thaw'}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.01)

    def freeze_writes(self, frozen: bool) -> list[Write]:
        """Writes of `freeze`."""
        unified = self.paths.get("unified")
        return [] if unified is None else [(unified / "cgroup.freeze", "1" if frozen else "0")]

    def frozen(self) -> bool:
        """True if all its processes are frozen."""
        unified = self.paths.get("unified")
        if unified is None:
            return False
        with contextlib.suppress(OSError):
            return "frozen 1" in (unified / "cgroup.events").read_text()
        return False

    def throttled_ns(self) -> int:
        """Time for which the processor limit throttled it since its creation."""
        stat = self._cpu_stat()
        return stat.get("throttled_time", 1000 * stat.get("throttled_usec", 0))

    def limit_periods(self) -> tuple[int, int]:
        """Periods of the processor limit in which it ran, and those in which it was throttled."""
        stat = self._cpu_stat()
        return stat.get("nr_periods", 0), stat.get("nr_throttled", 0)

    def _cpu_stat(self) -> dict[str, int]:
        group = self.paths.get("cpu")
        if group is None:
            return {}
        pairs = (line.partition(" ") for line in (group / "cpu.stat").read_text().splitlines())
        return {key: int(value) for key, _, value in pairs}

    def _controller(self, name: str, needed: bool) -> Path | None:
        group = self.paths.get(name)
        if group is None and needed:
            raise PenstockError(f"no {name} controller here, so {self.name} cannot be limited")
        return group


_MOST_PROCESSOR = 99_999


def parse_cpuset(text: str) -> tuple[int, ...]:
    """Processors of a list such as `0-2,5`; ValueError if malformed."""
    processors: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if high < low:
            raise ValueError(f"{part}: the range is empty")
        if high > _MOST_PROCESSOR:
            raise ValueError(f"{part}: at most processor {_MOST_PROCESSOR}")
        processors.update(range(low, high + 1))
    return tuple(sorted(processors))


@dataclass
class NodeGroups:
    """Groups of a cluster's nodes, and their journal entries."""

    groups: dict[str, NodeGroup]
    journal: Journal
    entry: Entry
    settings: list[Entry]
    #: parent of all groups in the unified hierarchy, if any
    above: Path | None = None

    def remove(self) -> None:
        """Kill remaining members and remove the groups. Raises PenstockError if one remains."""
        for group in self.groups.values():
            group.kill()
        for group in self.groups.values():
            remove_groups([str(d) for d in group.directories])
        if self.above is not None:
            remove_groups([str(self.above)])
        self.journal.undone(self.entry)
        while self.settings:
            restore_own(self.settings.pop(), self.journal)


def create_node_groups(
    cluster: str, nodes: Iterable[str], journal: Journal, *, everywhere: bool = False
) -> NodeGroups:
    """Create a group for each node, without limits; `missing` of each lists features that the host lacks.

    `everywhere`: in every hierarchy, also those that only an OCI runtime uses. Raises PenstockError without
    control groups, or if the kernel refuses.
    """
    host = hierarchies()
    parents, switched, missing = _parents(host, _NODE_CONTROLLERS)
    if "unified" not in parents and not any(c in parents for c in ("cpuacct", "pids")):
        raise PenstockError("no control-group hierarchy that may be written; nodes need one")
    settings: list[Entry] = []
    if switched and host.unified is not None:
        settings, refused = _switch_on(host.unified, switched, journal, cluster)
        for controller in refused:
            parents = {c: p for c, p in parents.items() if c != controller}
            missing.append(f"{controller}: cannot be switched on for {host.unified}")
    if everywhere:
        for mount in mounts():
            if mount.fstype == "cgroup" and Path(mount.point) not in parents.values():
                parents[f"also {os.path.basename(mount.point)}"] = Path(mount.point)
    token, nodes = new_token(), list(nodes)
    unified = parents.get("unified")
    controllers = [c for c, p in parents.items() if p == unified and c != "unified"]
    above = _above(cluster, token, unified, alone=bool(everywhere and controllers))
    if above is not None and unified is not None:
        # a runtime enters the root of the hierarchy first; the unified group is entered last
        first = {"also unified": unified} if everywhere else {}
        parents = {**first, **parents, **dict.fromkeys((*controllers, "unified"), above)}
    groups: dict[str, NodeGroup] = {}
    for node in nodes:
        label = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{cluster}-{node}")[:100]
        name = f"penstock-{label}-{token}"
        paths = {controller: parent / name for controller, parent in parents.items()}
        groups[node] = NodeGroup(name, paths, None, missing, token)
    planned = [str(d) for group in groups.values() for d in group.directories]
    planned += [str(above)] if above is not None else []
    entry = journal.plan(
        "cgroup", f"penstock-{cluster}-*-{token}", run=cluster, token=token, new=planned
    )
    node_groups = NodeGroups(groups, journal, entry, settings, above)
    for group in groups.values():
        group.journalled(journal, entry)
    try:
        if above is not None:
            above.mkdir()
            _delegate(above, [_V2_NAME[controller] for controller in controllers], len(nodes))
        for group in groups.values():
            for directory in group.directories:
                directory.mkdir()
            _prepare_cpuset(group.paths.get("cpuset"))
        journal.done(entry)
    except (OSError, PenstockError) as error:
        node_groups.remove()
        raise PenstockError(f"control groups of {cluster}: {error}") from error
    return node_groups


def _above(cluster: str, token: str, unified: Path | None, *, alone: bool) -> Path | None:
    """Parent group of the cluster in the unified hierarchy, which identifies all nodes for the tracer. None
    without that hierarchy, or if each node is `alone`: a runtime enters controllers at the root itself."""
    if unified is None or alone:
        return None
    label = re.sub(r"[^A-Za-z0-9_.-]", "-", cluster)[:64]
    return unified / f"penstock-{label}-{token}"


def _delegate(above: Path, controllers: Sequence[str], nodes: int) -> None:
    """Enable controllers for the groups in a parent group, which weighs as much as they would without it."""
    if not controllers:
        return
    (above / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    weight = str(min(_MOST_WEIGHT, _WEIGHT * nodes))
    for name in ("cpu.weight", "io.weight"):
        if (above / name).exists():
            (above / name).write_text(weight)


def _prepare_cpuset(group: Path | None) -> None:
    """Give a v1 group processors and memory nodes, without which it accepts no process."""
    if group is None or (group / "cgroup.controllers").exists():
        return
    for name in ("cpuset.cpus", "cpuset.mems"):
        (group / name).write_text((group.parent / name).read_text())


def _limit(number: int) -> int | None:
    return None if number < 0 or number >= 1 << 62 else number
