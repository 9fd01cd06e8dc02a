"""The monitor: samples around a run, and utilisations from them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.observe.observer import Seen, Watched
from penstock.observe.sampler.latency import with_beginnings
from penstock.observe.sampler.samples import read_samples
from penstock.spec.application import Application

#: minimum and default interval of a study [ns]
SHORTEST_INTERVAL_NS = 10_000_000
DEFAULT_INTERVAL_NS = 1_000_000_000
#: start of a recording, as in the sampler: maximum interval, and duration [ns]
CLOSE_NS, BEGINNING_NS = 100_000_000, 10_000_000_000


def interval_ns_of(interval_s: float) -> int:
    """Interval of a sampler [ns]. BadInput unless it is between 10 ms and a day."""
    if not SHORTEST_INTERVAL_NS / 1e9 <= interval_s <= 86_400:
        raise BadInput(
            f"monitor interval {interval_s * 1e3:g} ms; expected at least 10 ms, a day at most"
        )
    return round(interval_s * 1e9)


@dataclass(frozen=True)
class MonitorResult:
    """Tables `samples` and `utilisation`, and the receipt: samples due, taken, late, and the overhead."""

    tables: dict[str, pa.Table]
    receipt: dict[str, Any]


class Monitor:
    """Sampler of the host, a run's group and its emulated disks; one daemon serves many runs.

    The daemon starts with the first `start` (or `open`) and ends with `close`. With `block_latency` it needs
    the privileges of a tracer. `application`: further processes, files and commands to sample; the commands
    run in the working directory of this process. Raises BadInput for an interval below 10 ms.
    """

    def __init__(
        self,
        journal: Journal,
        state_dir: str | os.PathLike[str] | None = None,
        interval_ns: int = DEFAULT_INTERVAL_NS,
        block_latency: bool = False,
        application: Application | None = None,
    ):
        if interval_ns < SHORTEST_INTERVAL_NS:
            raise BadInput(f"monitor interval {interval_ns / 1e6:g} ms; expected at least 10 ms")
        self.interval_ns = interval_ns
        self.block_latency = block_latency
        self.application = application if application is not None else Application()
        self._journal = journal
        self._log = Path(state_dir) / "sampler.log" if state_dir is not None else None
        self._daemon: Daemon | None = None
        self._spool: Path | None = None
        self._links: dict[str, float] = {}
        self._begun_ns = 0

    def open(self) -> Monitor:
        """Start the daemon without recording. PenstockError if a request is unsupported."""
        if self._daemon is None or not self._daemon.alive:
            config = {"interval_ns": self.interval_ns, "block_latency": self.block_latency}
            self._daemon = start_daemon("sampler", config, self._journal, self._log)
        return self

    def start(
        self,
        cgroup: RunCgroup | None,
        disks: Mapping[str, str | os.PathLike[str]] | None,
        out_dir: str | os.PathLike[str],
        *,
        network: bool = True,
        nodes: Mapping[str, Mapping[str, Path]] | None = None,
        links: Mapping[str, float] | None = None,
    ) -> None:
        """Start recording a run; `disks` maps emulated disks to their statistics pages, `nodes` the names of
        virtual nodes to the directories of their groups, `links` interfaces of nodes to their capacities."""
        self._links = dict(links or {})
        self.open()
        assert self._daemon is not None
        self._spool = Path(out_dir) / "samples.spool"
        self._begun_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        groups = {c: str(p) for c, p in cgroup.paths.items()} if cgroup is not None else {}
        self._daemon.call(
            "start",
            spool=str(self._spool.absolute()),
            interval_ns=self.interval_ns,
            cgroups=groups,
            nodes={n: {c: str(p) for c, p in of.items()} for n, of in (nodes or {}).items()},
            disks={name: os.fspath(page) for name, page in (disks or {}).items()},
            network=network,
            **self._targets(bool(groups or nodes)),
        )

    def _targets(self, groups: bool) -> dict[str, Any]:
        """Processes, files and commands to sample; without groups the processes are those that we start."""
        application = self.application
        return {
            "processes": application.processes,
            "processes_named": application.processes_named,
            "tree": None if groups else os.getpid(),
            "files": application.files,
            "metrics": application.metrics,
            # an interval longer than the run would yield no sample
            "metric_interval_ns": max(round(application.metric_interval_s * 1e9), self.interval_ns),
            "directory": os.getcwd(),
        }

    def live(self) -> dict[str, Any]:
        """File of the current samples, and their interval."""
        spool = None if self._spool is None else str(self._spool.absolute())
        return {"spool": spool, "interval_ns": self.interval_ns}

    def stop(self) -> MonitorResult:
        """End the recording; returns its tables and receipt, and removes the spool."""
        if self._daemon is None or self._spool is None:
            raise PenstockError("the monitor was not started")
        try:
            receipt = self._daemon.call("stop")
            taken = read_samples(self._spool)
        except PenstockError:
            if self._daemon.alive:
                raise
            # it was killed: its samples so far are in the spool, the rest of the run is missing
            taken = read_samples(self._spool)
            receipt = _of_the_dead(taken, self._begun_ns, self.interval_ns)
            self._daemon.stop()
            self._daemon = None
        samples, receipt["used_ns"] = _of_use(taken, receipt)
        samples = with_beginnings(samples)
        links = {**link_capacities(), **self._links}
        from penstock.observe.sampler.utilisation import (
            utilisation,  # pandas: not before the end of the first run
        )

        tables = {"samples": samples, "utilisation": utilisation(samples, link_bps=links)}
        receipt |= {
            "observer": "monitor",
            "hz": os.sysconf("SC_CLK_TCK"),
            "cpus": os.cpu_count(),
            "link_bps": links,
            "complete": _complete(receipt, samples),
        }
        for path in (self._spool, Path(f"{self._spool}.series")):
            path.unlink(missing_ok=True)
        self._spool = None
        return MonitorResult(tables, receipt)

    def drop(self) -> None:
        """End the recording, if any, without a table."""
        if self._daemon is None or self._spool is None:
            return
        spool, self._spool = self._spool, None
        try:
            self._daemon.call("stop")
        finally:
            for path in (spool, Path(f"{spool}.series")):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None

    def __enter__(self) -> Monitor:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_use(samples: pa.Table, receipt: Mapping[str, Any]) -> tuple[pa.Table, int]:
    """Evenly spaced samples of a recording, and their interval [ns].

    One that ended within its start phase keeps all; a longer one the first of each requested interval.
    """
    start_ns, interval_ns = int(receipt["start_ns"]), int(receipt["interval_ns"])
    if int(receipt["end_ns"]) - start_ns <= int(receipt["beginning_ns"]):
        return samples, int(receipt["close_ns"])
    taken_ns = samples.column("t_ns").to_numpy()
    times = np.unique(taken_ns)
    _, first = np.unique((times - start_ns) // interval_ns, return_index=True)
    # the result of a command is recorded once, at any time
    once = pc.equal(samples["source"], "command").to_numpy()
    return samples.filter(pa.array(np.isin(taken_ns, times[first]) | once)), interval_ns


def _of_the_dead(samples: pa.Table, begun_ns: int, interval_ns: int) -> dict[str, Any]:
    """Receipt of a sampler that was killed, from its spool; its overhead is unknown."""
    own = samples.filter(pc.equal(samples["source"], "sampler"))
    own = own.filter(pc.equal(own["metric"], "lateness"))
    times = own["t_ns"].to_numpy()
    late_ns = own["value"].to_numpy() if len(own) else np.zeros(1)
    start_ns = int(times[0]) - int(late_ns[0]) if len(times) else begun_ns
    end_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    expected = (end_ns - start_ns) // interval_ns + 1
    taken = len(np.unique((times - start_ns) // interval_ns))
    return {
        "died": True,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "interval_ns": interval_ns,
        "close_ns": interval_ns,
        "beginning_ns": 0,
        "samples": taken,
        "expected": expected,
        "missed": max(0, expected - taken),
        **{
            f"late_{name}_ns": int(np.quantile(late_ns, share, method="inverted_cdf"))
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }


def _complete(receipt: Mapping[str, Any], samples: pa.Table) -> str:
    """'complete' (at least 99 % of the samples, no gap over 5 intervals), else 'partial' or 'unusable'."""
    expected, taken = int(receipt["expected"]), int(receipt["samples"])
    if taken < 2 and expected >= 2:
        return "unusable"
    times = samples.column("t_ns").unique().to_numpy()
    gaps = times[1:] - times[:-1]
    gap_ns = int(gaps.max()) if len(gaps) else 0
    complete = taken >= 0.99 * expected and gap_ns <= 5 * int(receipt["interval_ns"])
    return "complete" if complete else "partial"


def link_capacities() -> dict[str, float]:
    """Capacity of each interface with a known speed [bytes/s]."""
    capacities: dict[str, float] = {}
    for interface in Path("/sys/class/net").glob("*"):
        try:
            megabits = int((interface / "speed").read_text())
        except (OSError, ValueError):
            continue
        if megabits > 0:
            capacities[interface.name] = megabits * 1e6 / 8
    return capacities


class MonitorObserver:
    """Monitor of the runs of a study. Settings: `interval_s`, `block_latency` (false), and those of
    `Application`."""

    def __init__(self, journal: Journal, home: Path | None, settings: Mapping[str, Any]) -> None:
        interval_ns = round(float(settings["interval_s"]) * 1e9)
        latency = bool(settings.get("block_latency", False))
        own = ("interval_s", "block_latency")
        application = Application(**{k: v for k, v in settings.items() if k not in own})
        self._monitor = Monitor(journal, home, interval_ns, latency, application).open()

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Start sampling a run's groups, its emulated disks and the host."""
        assert out_dir is not None
        self._monitor.start(
            watched.group, watched.pages, out_dir, nodes=watched.nodes, links=watched.links
        )

    def live(self) -> dict[str, Any]:
        """As `Monitor.live`."""
        return self._monitor.live()

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """Tables `samples` and `utilisation`."""
        sampled = self._monitor.stop()
        return Seen(sampled.tables, sampled.receipt, int(sampled.receipt.get("missed", 0)))

    def stop(self) -> None:
        self._monitor.close()
