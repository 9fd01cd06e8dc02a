"""Load of the host during a run on virtual nodes, and whether it was saturated."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.emulate.cluster.cluster import RunningNode
from penstock.host.cgroups.busy import busy_share, busy_ticks
from penstock.parts.stores.calibration.trials import BUSIEST
from penstock.text import percentage

#: time before and after a run in which the processors that others use are read [s]
_BESIDE_S = 0.5
#: column of stolen time in /proc/stat (proc_stat(5))
_STEAL = 7


@dataclass(frozen=True)
class Load:
    """Load of the host. Shares of the time of all processors, or for PSI of the duration of the run.

    `stolen`: by the hypervisor; `others`: processes outside of the nodes, in pauses before and after the run;
    `cpu_waiting`, `io_waiting`: time in which a process waited for a processor or for input and output (PSI;
    None without it). Disks of nodes are emulated: processes that wait for them wait for input and output.
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
def watched(nodes: Iterable[RunningNode]) -> Iterator[Watch]:
    """Measure the load of the host while the block runs. `nodes`: those of the study."""
    watch, running = Watch(), list(nodes)
    before = _others(running)
    ticks, stolen, begin = busy_ticks(), _stolen_ticks(), time.monotonic()
    waited = {kind: _waited_s(kind) for kind in ("cpu", "io")}
    yield watch
    took_s, after = time.monotonic() - begin, busy_ticks()
    waiting = {
        kind: None if since is None else ((_waited_s(kind) or 0.0) - since) / took_s
        for kind, since in waited.items()
    }
    watch.loads.append(
        Load(
            busy_share(ticks, after),
            (_stolen_ticks() - stolen) / max(1, after[0] - ticks[0]),
            (before + _others(running)) / 2,
            waiting["cpu"],
            waiting["io"],
        )
    )


def _others(nodes: Iterable[RunningNode]) -> float:
    """Share of the processors that is used outside of the nodes during a pause."""
    groups = [node.cgroup for node in nodes]
    ticks, used_ns = busy_ticks(), sum(group.cpu_ns() or 0 for group in groups)
    time.sleep(_BESIDE_S)
    own_s = (sum(group.cpu_ns() or 0 for group in groups) - used_ns) / 1e9
    return max(0.0, busy_share(ticks, busy_ticks()) - own_s / _BESIDE_S / (os.cpu_count() or 1))


def _stolen_ticks() -> int:
    return int(Path("/proc/stat").read_text().splitlines()[0].split()[1 + _STEAL])


def _waited_s(kind: str) -> float | None:
    """Time in which a process waited, since the start of the host; None without PSI."""
    try:
        first = Path(f"/proc/pressure/{kind}").read_text().splitlines()[0]
    except OSError:
        return None
    return int(first.rpartition("total=")[2]) / 1e6
