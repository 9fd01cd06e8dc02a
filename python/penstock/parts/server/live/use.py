"""Utilisation of the host and of running nodes and disks, from the growing spools of samplers."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.observe.sampler.monitor import Monitor, link_capacities
from penstock.observe.sampler.spool_reader import Follower, Values
from penstock.routes.server import Document
from penstock.state import runtime_dir

#: samples of each source that a new client gets
HISTORY = 120
#: maximum number of entities of a metric
_MOST_ENTITIES = 120
#: metrics of the stream; the entity, if only one is included
_METRICS: Mapping[str, str | None] = {
    "cpu_busy": "all",
    "memory_available": None,
    "disk_busy_of_time": None,
    "disk_read_rate": None,
    "disk_write_rate": None,
    "emulated_disk_busy": None,
    "emulated_disk_queue_depth": None,
    "emulated_disk_read_rate": None,
    "emulated_disk_write_rate": None,
    "network_send_rate": None,
    "network_receive_rate": None,
    "cgroup_cpu_busy": None,
    "cgroup_memory": None,
}
#: the sampler starts a new spool after this time [s], since old samples are not read
_RESTART_S = 600.0
HOST = "host"


class _Source:
    """A reader of one spool, and the samples of its last minutes."""

    def __init__(self, name: str, spool: Path) -> None:
        self.name = name
        self._follower = Follower(spool, link_capacities())
        self.history: deque[Document] = deque(maxlen=HISTORY)

    def poll(self, source_id: str) -> Document | None:
        """Means of the samples since the last call, with the time of the last one; None without samples."""
        new_values = [v for v in self._follower.look() if _is_shown(v)]
        if not new_values:
            return None
        last_ns = max(int(v.t_ns[-1]) for v in new_values)
        values: dict[str, dict[str, float]] = {}
        for series in new_values:
            by_entity = values.setdefault(series.metric, {})
            mean = _mean(series)
            if mean is not None and len(by_entity) < _MOST_ENTITIES:
                by_entity[series.entity] = mean
        shift_ns = time.time_ns() - time.monotonic_ns()
        sample = {
            "source": source_id,
            "name": self.name,
            "t_ns": str(last_ns),
            "utc_ms": (last_ns + shift_ns) / 1e6,
            "samples": max(len(v.t_ns) for v in new_values),
            "values": {metric: by_entity for metric, by_entity in values.items() if by_entity},
        }
        self.history.append(sample)
        return sample


class Utilisation:
    """Samples of announced samplers. Without any, starts a sampler of this host."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._monitor: Monitor | None = None
        self._folder: Path | None = None
        self._started_s = 0.0
        self._starts = 0

    def poll(self, announcements: Sequence[Mapping[str, Any]]) -> list[Document]:
        """New samples of each source."""
        spools = {HOST: ("this host", spool)} if (spool := self._host(announcements)) else {}
        for announcement in announcements:
            spool = _announced_spool(announcement)
            if spool is not None:
                spools[f"{announcement['id']}:{spool.parent.name}"] = (_name(announcement), spool)
        self._sources = {i: s for i, s in self._sources.items() if i in spools}
        samples = []
        for source_id, (name, spool) in spools.items():
            source = self._sources.setdefault(source_id, _Source(name, spool))
            with contextlib.suppress(PenstockError, OSError):
                sample = source.poll(source_id)
                if sample is not None:
                    samples.append(sample)
        return samples

    def history(self) -> list[list[Document]]:
        """The last `HISTORY` samples of each source."""
        return [list(s.history) for s in self._sources.values() if s.history]

    def _host(self, announcements: Iterable[Mapping[str, Any]]) -> Path | None:
        """The spool of a sampler started here, which runs while no other process samples this host."""
        if any(_announced_spool(announcement) is not None for announcement in announcements):
            self._stop()
            return None
        now = time.monotonic()
        if self._monitor is not None and now - self._started_s < _RESTART_S:
            return self._spool_path
        with contextlib.suppress(PenstockError, OSError):
            if self._monitor is None:
                self._folder = Path(tempfile.mkdtemp(prefix="live-use-", dir=runtime_dir()))
                self._monitor = Monitor(Journal(), self._folder)
            self._monitor.drop()
            self._starts += 1
            folder = self._folder_of(self._starts)
            folder.mkdir(exist_ok=True)
            self._monitor.start(None, None, folder)
            self._sources.pop(HOST, None)
            self._started_s = now
            return self._spool_path
        self._stop()
        return None

    def _folder_of(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / str(number % 2)

    @property
    def _spool_path(self) -> Path:
        return self._folder_of(self._starts) / "samples.spool"

    def _stop(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            with contextlib.suppress(PenstockError, OSError):
                monitor.drop()
            with contextlib.suppress(PenstockError, OSError):
                monitor.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def close(self) -> None:
        """Stop the sampler started here."""
        self._stop()
        self._sources = {}


def _is_shown(values: Values) -> bool:
    if not len(values.t_ns) or values.metric not in _METRICS:
        return False
    only = _METRICS[values.metric]
    return (only is None or values.entity == only) and values.entity != "lo"


def _mean(values: Values) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all are NaN
        mean = float(np.nanmean(values.values))
    return float(f"{mean:.6g}") if math.isfinite(mean) else None


def _announced_spool(announcement: Mapping[str, Any]) -> Path | None:
    sources = announcement.get("sources")
    monitor = sources.get("monitor") if isinstance(sources, dict) else None
    spool = monitor.get("spool") if isinstance(monitor, dict) else None
    return Path(spool) if isinstance(spool, str) else None


def _name(announcement: Mapping[str, Any]) -> str:
    runs = announcement.get("runs") or [{}]
    return " ".join(
        filter(None, (str(announcement.get("name", "")), str(runs[0].get("run_id", ""))))
    )
