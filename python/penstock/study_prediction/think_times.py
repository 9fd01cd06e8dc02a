"""Think times of the program per operation, from the trace of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from penstock.archive.bundle import Bundle

#: quantile of the gaps above which they are pauses (start, end, other work), not think time
_USUAL = 0.995
BOTH = frozenset({"read", "write"})


@dataclass(frozen=True)
class ClientCosts:
    """Time from the completion of an operation to the next issue in its thread, and of the path to the disk.

    Nanoseconds, per operation and per byte; `path_ns` is the time of a call beyond the disk's own.
    """

    think_ns: float = 0.0
    think_ns_per_byte: float = 0.0
    path_ns: float = 0.0
    operations: int = 0

    @property
    def fixed_ns(self) -> float:
        """Cost independent of the size."""
        return self.think_ns + self.path_ns


def disk_events(bundle: Bundle) -> pd.DataFrame:
    """The traced operations on emulated disks (all if the trace records no disk), by thread and time."""
    events: pd.DataFrame = bundle.accesses().to_pandas()
    if "files" in bundle.tables:
        files = bundle.table("files").to_pandas()
        on_disk = files[files["disk_id"].notna()]
        if len(on_disk):
            events = events.merge(on_disk[["file_id", "disk_id", "path"]], on="file_id")
    return events.sort_values(["tid", "t_ns"], kind="stable").reset_index(drop=True)


def gaps_ns(events: pd.DataFrame) -> pd.Series[float]:
    """Time since the completion of the previous operation of the thread; missing for a thread's first one."""
    done = events["t_ns"] + events["latency_ns"]
    before = done.groupby(events["tid"]).shift(1)
    gap: pd.Series[float] = (events["t_ns"] - before).clip(lower=0)
    return gap


def client_costs(bundle: Bundle, directions: frozenset[str] = BOTH) -> ClientCosts:
    """Costs of the program's operations in these directions; zeros if none was traced on its disks."""
    events = disk_events(bundle)
    events = events[events["direction"].astype(str).isin(directions)].reset_index(drop=True)
    gap = gaps_ns(events)
    usual = gap.notna() & (gap <= gap.quantile(_USUAL))
    if not usual.any():
        return ClientCosts()
    size = events.loc[usual, "size_bytes"].to_numpy(dtype=float)
    think = gap[usual].to_numpy(dtype=float)
    fixed, per_byte = _by_size(size, think)
    return ClientCosts(fixed, per_byte, _path_ns(bundle, events, directions), len(events))


def _by_size(size: np.ndarray[Any, Any], think: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Costs per operation and per byte: a line if the sizes differ enough to separate them."""
    if size.max() < 4 * size.min():
        return float(think.mean()), 0.0
    slope, fixed = np.polyfit(size, think, 1)
    if slope <= 0 or fixed <= 0:
        return float(think.mean()), 0.0
    return float(fixed), float(slope)


def _path_ns(bundle: Bundle, events: pd.DataFrame, directions: frozenset[str]) -> float:
    """Mean time of a call beyond the disk's own time; 0 if calls and requests are not one to one."""
    if "device_requests" not in bundle.tables:
        return 0.0
    requests = bundle.table("device_requests", ["op", "service_ns", "wait_ns"]).to_pandas()
    requests = requests[requests["op"].astype(str).isin(directions)]
    if not len(requests) or not 0.98 <= len(requests) / len(events) <= 1.02:
        return 0.0
    own = float((requests["service_ns"] + requests["wait_ns"]).mean())
    return max(0.0, float(events["latency_ns"].mean()) - own)
