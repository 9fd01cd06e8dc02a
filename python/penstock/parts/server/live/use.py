"""How busy the host is, and the nodes and disks of what runs: from the samplers' spools, as they grow."""

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
from penstock.state import runtime_dir

Document = dict[str, Any]
#: points of the past that a page is given of each source
HISTORY = 120
#: entities of one metric that are told
_MOST_ENTITIES = 120
#: what is told, and where only for one entity
_SHOWN: Mapping[str, str | None] = {
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
#: a spool of our own begins anew after this [s]: nobody reads its beginning
_ANEW_S = 600.0
HOST = "host"


class _Source:
    """One spool that is followed, and what a page is told of its last minutes."""

    def __init__(self, name: str, spool: Path) -> None:
        self.name = name
        self._follower = Follower(spool, link_capacities())
        self.history: deque[Document] = deque(maxlen=HISTORY)

    def look(self, source_id: str) -> Document | None:
        """What is new: means of the samples since the last look, stamped with the last of them."""
        found = [v for v in self._follower.look() if _is_shown(v)]
        if not found:
            return None
        last_ns = max(int(v.t_ns[-1]) for v in found)
        values: dict[str, dict[str, float]] = {}
        for one in found:
            of = values.setdefault(one.metric, {})
            mean = _mean(one)
            if mean is not None and len(of) < _MOST_ENTITIES:
                of[one.entity] = mean
        shift_ns = time.time_ns() - time.monotonic_ns()
        told = {
            "source": source_id,
            "name": self.name,
            "t_ns": str(last_ns),
            "utc_ms": (last_ns + shift_ns) / 1e6,
            "samples": max(len(v.t_ns) for v in found),
            "values": {metric: of for metric, of in values.items() if of},
        }
        self.history.append(told)
        return told


class Use:
    """The spools of what is announced; and where there is none a sampler of our own, of this host."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._own: Monitor | None = None
        self._place: Path | None = None
        self._own_since = 0.0
        self._numbers = 0

    def look(self, announced: Sequence[Mapping[str, Any]]) -> list[Document]:
        """What is new of each source."""
        spools = {HOST: ("this host", spool)} if (spool := self._host(announced)) else {}
        for said in announced:
            spool = _spool(said)
            if spool is not None:
                spools[f"{said['id']}:{spool.parent.name}"] = (_name(said), spool)
        self._sources = {i: s for i, s in self._sources.items() if i in spools}
        found = []
        for source_id, (name, spool) in spools.items():
            source = self._sources.setdefault(source_id, _Source(name, spool))
            with contextlib.suppress(PenstockError, OSError):
                told = source.look(source_id)
                if told is not None:
                    found.append(told)
        return found

    def history(self) -> list[list[Document]]:
        """The last minutes of each source."""
        return [list(s.history) for s in self._sources.values() if s.history]

    def _host(self, announced: Iterable[Mapping[str, Any]]) -> Path | None:
        """The spool of our own, while no other samples this host."""
        if any(_spool(said) is not None for said in announced):
            self._forget()
            return None
        now = time.monotonic()
        if self._own is not None and now - self._own_since < _ANEW_S:
            return self._own_spool
        with contextlib.suppress(PenstockError, OSError):
            if self._own is None:
                self._place = Path(tempfile.mkdtemp(prefix="live-use-", dir=runtime_dir()))
                self._own = Monitor(Journal(), self._place)
            self._own.drop()
            self._numbers += 1
            place = self._place_of(self._numbers)
            place.mkdir(exist_ok=True)
            self._own.start(None, None, place)
            self._sources.pop(HOST, None)
            self._own_since = now
            return self._own_spool
        self._forget()
        return None

    def _place_of(self, number: int) -> Path:
        assert self._place is not None
        return self._place / str(number % 2)

    @property
    def _own_spool(self) -> Path:
        return self._place_of(self._numbers) / "samples.spool"

    def _forget(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(PenstockError, OSError):
                own.drop()
            with contextlib.suppress(PenstockError, OSError):
                own.close()
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def close(self) -> None:
        """Ends the sampler of our own."""
        self._forget()
        self._sources = {}


def _is_shown(one: Values) -> bool:
    if not len(one.t_ns) or one.metric not in _SHOWN:
        return False
    only = _SHOWN[one.metric]
    return (only is None or one.entity == only) and one.entity != "lo"


def _mean(one: Values) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all of them empty
        mean = float(np.nanmean(one.values))
    return float(f"{mean:.6g}") if math.isfinite(mean) else None


def _spool(said: Mapping[str, Any]) -> Path | None:
    sources = said.get("sources")
    where = sources.get("monitor") if isinstance(sources, dict) else None
    spool = where.get("spool") if isinstance(where, dict) else None
    return Path(spool) if isinstance(spool, str) else None


def _name(said: Mapping[str, Any]) -> str:
    runs = said.get("runs") or [{}]
    return " ".join(filter(None, (str(said.get("name", "")), str(runs[0].get("run_id", "")))))
