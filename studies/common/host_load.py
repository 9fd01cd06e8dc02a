"""Load of the host during a run on virtual nodes; its limits, above which the host is saturated."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.emulate.cluster.cluster import Cluster
from penstock.host.cgroups.busy import busy_share, busy_ticks
from penstock.parts.stores.calibration.trials import BUSIEST
from penstock.text import percentage

#: column of stolen time in /proc/stat (proc_stat(5))
_STEAL = 7


@dataclass(frozen=True)
class Load:
    """Load of the host. Shares of the time of all processors, or for PSI of the duration of the run.

    `stolen`: by the hypervisor; `others`: by processes outside of the nodes, without their disk server
    and this process; `cpu_waiting`, `io_waiting`: time in which a process waited for a processor, or
    for input and output (PSI; None without it). Disks of nodes are emulated: waiting for them counts as
    waiting for input and output.
    """

    busy: float
    stolen: float
    others: float
    cpu_waiting: float | None
    io_waiting: float | None


@dataclass(frozen=True)
class Limits:
    """Limits of a load; above them, the host is saturated. Waiting for input and output has none."""

    busy: float = BUSIEST
    stolen: float = 0.02
    others: float = 0.10
    cpu_waiting: float = 0.5

    def exceeded(self, load: Load) -> str:
        """The exceeded limits, as the reason of an invalid run; empty if there is none."""
        names = {
            "busy": "processors busy",
            "stolen": "processors stolen",
            "others": "processors used by others",
            "cpu_waiting": "waiting for a processor",
        }
        reasons = [
            f"{text} {percentage(value)}, limit {percentage(limit)}"
            for name, text in names.items()
            if (value := getattr(load, name) or 0.0) > (limit := getattr(self, name))
        ]
        return "; ".join(reasons)


@dataclass
class Watch:
    """The load, when the block has ended."""

    loads: list[Load] = field(default_factory=list)

    @property
    def load(self) -> Load:
        """Load during the block."""
        return self.loads[0]


@contextmanager
def watched(cluster: Cluster) -> Iterator[Watch]:
    """Measure the load of the host while the block runs on the nodes of a cluster."""
    watch = Watch()
    own_s, ticks, stolen, begin = _own_s(cluster), busy_ticks(), _stolen_ticks(), time.monotonic()
    waited = {kind: _waited_s(kind) for kind in ("cpu", "io")}
    yield watch
    took_s, after = time.monotonic() - begin, busy_ticks()
    busy = busy_share(ticks, after)
    own_s = _own_s(cluster) - own_s
    waiting = {
        kind: None if since is None else ((_waited_s(kind) or 0.0) - since) / took_s
        for kind, since in waited.items()
    }
    watch.loads.append(
        Load(
            busy,
            (_stolen_ticks() - stolen) / max(1, after[0] - ticks[0]),
            max(0.0, busy - own_s / took_s / (os.cpu_count() or 1)),
            waiting["cpu"],
            waiting["io"],
        )
    )


def _own_s(cluster: Cluster) -> float:
    """Processor time of the nodes, of the process that serves their disks, and of this process [s]."""
    nodes_ns = sum(node.cgroup.cpu_ns() or 0 for node in cluster.nodes.values())
    disks = (disk for row in cluster.status() for disk in (row.get("disks") or {}).values())
    server_ns = max(
        (float((disk.get("stats") or {}).get("server_cpu_ns", 0)) for disk in disks), default=0.0
    )
    return (nodes_ns + server_ns) / 1e9 + time.process_time()


def _stolen_ticks() -> int:
    return int(Path("/proc/stat").read_text().splitlines()[0].split()[1 + _STEAL])


def _waited_s(kind: str) -> float | None:
    """Time in which a process waited, since the start of the host; None without PSI."""
    try:
        first = Path(f"/proc/pressure/{kind}").read_text().splitlines()[0]
    except OSError:
        return None
    return int(first.rpartition("total=")[2]) / 1e6
