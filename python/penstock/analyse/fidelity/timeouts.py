"""Time-outs of applications that an emulated speed makes unreachable.

A time-out applies to an amount of work: a replicated block, a request of a written batch, a disk scan
between heartbeats. At a rate at which that amount takes longer, the application fails for a reason
unrelated to the study: the published case is TeraSort at 30 MB/s, killed after 174 minutes by Hadoop's 600
s task time-out. The table has defaults with their sources; nothing here is measured.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.study.resolve import ResolvedRun
from penstock.text import first_of, listed

#: delivered rate above this percentage of a limit: the limit was not applied
NOT_APPLIED_PERCENT = 130.0
#: share of a time-out from which it is reported before it is reached: rates are shared and vary
NEAR = 0.5


@dataclass(frozen=True)
class TimeOut:
    """One time-out: one step moves `bytes` without progress reports and must finish within `seconds`."""

    application: str
    setting: str
    seconds: float
    bytes: int
    step: str
    source: str


MIB = 1 << 20
#: applications by name; patterns below match them in a command
TIME_OUTS = (
    TimeOut("hadoop", "mapreduce.task.timeout", 600.0, 20_000_000_000,
            "a reducer's 10 GB spilled and merged (120 GB on 12 reducers, as published)",
            "mapred-default.xml, Hadoop 3.4: 600000 ms; DistemIO-Hadoop-exps, result1.ssd"),
    TimeOut("hadoop", "dfs.client.socket-timeout", 60.0, 128 * MIB,
            "a block of dfs.blocksize read or acknowledged",
            "hdfs-default.xml, Hadoop 3.4: 60000 ms, 128 MiB"),
    TimeOut("hadoop", "dfs.datanode.socket.write.timeout", 480.0, 128 * MIB,
            "a block written to a pipeline",
            "hdfs-default.xml and HdfsConstants.WRITE_TIMEOUT, Hadoop 3.4: 8 min"),
    TimeOut("spark", "spark.network.timeout", 120.0, 48 * MIB,
            "spark.reducer.maxSizeInFlight fetched", "Spark 3.5 configuration: 120 s, 48 MiB"),
    TimeOut("cassandra", "write_request_timeout", 2.0, 32 * MIB,
            "a commit log segment synced", "cassandra.yaml, 5.0: 2000 ms, 32 MiB segments"),
    TimeOut("cassandra", "read_request_timeout", 5.0, 64 * 1024 * 10,
            "ten partitions' chunks of 64 KiB read", "cassandra.yaml, 5.0: 5000 ms"),
    TimeOut("hbase", "hbase.rpc.timeout", 60.0, 128 * MIB,
            "a memstore flushed while its writers wait", "hbase-default.xml, 2.6: 60000 ms, 128 MiB"),
    TimeOut("kafka", "request.timeout.ms", 30.0, 1 * MIB * 50,
            "fetch.max.bytes read for one answer", "Kafka 3.9 consumer: 30000 ms, 50 MiB"),
    TimeOut("postgresql", "wal_receiver_timeout", 60.0, 16 * MIB,
            "a WAL segment written and synced by a standby", "PostgreSQL 15: 60 s, 16 MiB segments"),
    TimeOut("etcd", "election-timeout", 1.0, 8 * 1024,
            "a heartbeat's entries synced to the log", "etcd 3.4: 1000 ms"),
    TimeOut("ceph", "osd_op_thread_timeout", 15.0, 4 * MIB,
            "an object written", "Ceph 16 osd.yaml.in: 15 s, objects of 4 MiB"),
    TimeOut("elasticsearch", "cluster.publish.timeout", 30.0, 1 * MIB,
            "a cluster state synced by every master", "OpenSearch 2.19, Elasticsearch 7: 30 s"),
    TimeOut("linux", "kernel.hung_task_timeout_secs", 120.0, 64 * MIB,
            "dirty pages of one disk written back while a process waits in fsync",
            "Linux sysctl documentation: 120 s"),
)  # fmt: skip

_COMMANDS = {
    "hadoop": r"hadoop|hdfs|mapred|terasort|teragen|yarn",
    "spark": r"spark",
    "cassandra": r"cassandra",
    "hbase": r"hbase",
    "kafka": r"kafka",
    "postgresql": r"postgres|pgbench|pg_ctl|psql",
    "etcd": r"etcd",
    "ceph": r"ceph|rados",
    "elasticsearch": r"elasticsearch|opensearch",
}


@dataclass(frozen=True)
class TimeOutWarning:
    """A time-out that a rate makes unreachable (`certain`) or likely, with the required rate."""

    timeout: TimeOut
    takes_s: float
    certain: bool
    least_bps: float

    def __str__(self) -> str:
        t = self.timeout
        verb = "will trip" if self.certain else "may trip"
        return (
            f"{t.application}: {t.setting} ({t.seconds:g} s) {verb}: {t.step} "
            f"({_size(t.bytes)}) takes {_time(self.takes_s)} at this rate; "
            f"from {_size(self.least_bps)}/s on it does not, or raise the time-out"
        )


def application_of(command: str) -> str | None:
    """The application of the table that a command runs; None if there is none."""
    for name, pattern in _COMMANDS.items():
        if re.search(pattern, command, re.IGNORECASE):
            return name
    return None


def warnings_of(
    rate_bps: float | None, application: str | None, *, step_bytes: int | None = None
) -> list[TimeOutWarning]:
    """Time-outs of an application that `rate_bps` of a disk [B/s] makes unreachable, most certain first.

    `application` is a name of the table or a command; those of the kernel apply to all. `step_bytes`
    replaces the bytes of the steps, if the amount is known. No rate, no limit: no warnings. ValueError for
    a rate that is not above 0.
    """
    if rate_bps is None or math.isinf(rate_bps):
        return []
    if not rate_bps > 0:
        raise ValueError(f"rate {rate_bps}: a number above 0 is expected")
    applications = {t.application for t in TIME_OUTS}
    name = application if application in applications else application_of(application or "")
    warnings = []
    for timeout in TIME_OUTS:
        if timeout.application not in (name, "linux"):
            continue
        size = timeout.bytes
        if step_bytes is not None and timeout.application != "linux":
            size = step_bytes
        takes_s = size / rate_bps
        if takes_s >= NEAR * timeout.seconds:
            warnings.append(
                TimeOutWarning(
                    timeout if size == timeout.bytes else _of_size(timeout, size),
                    takes_s,
                    takes_s >= timeout.seconds,
                    size / (NEAR * timeout.seconds),
                )
            )
    return sorted(warnings, key=lambda w: w.timeout.seconds / w.takes_s)


def applied(delivered_bps: float, limit_bps: float) -> bool:
    """True if a limit may have been in force: 100 delivered / limit is at most 130 %."""
    return 100.0 * delivered_bps <= NOT_APPLIED_PERCENT * limit_bps


def time_out_warnings(runs: Iterable[ResolvedRun]) -> list[str]:
    """One message for each time-out that a disk will or may trigger, with the first such treatment."""
    disks_by_warning: dict[str, tuple[list[str], str]] = {}
    for run in runs:
        commands = " ".join([run.command, run.prepare or "", *(s.command for s in run.services)])
        application = application_of(commands)
        if application is None:
            continue
        where = ", ".join(f"{k} {v}" for k, v in run.treatment.items())
        for disk_id, rate_bps in slowest_rates(run).items():
            for warning in warnings_of(rate_bps, application):
                if warning.timeout.application != "linux":
                    disks, _ = disks_by_warning.setdefault(str(warning), ([], where))
                    if disk_id not in disks:
                        disks.append(disk_id)
    return [
        f"{listed(first_of(disks, 3))}: {text} ({where})"
        for text, (disks, where) in disks_by_warning.items()
    ]


def slowest_rates(run: ResolvedRun) -> dict[str, float]:
    """The lowest rate of each disk of a run at any time [B/s]: from its limits, its schedule, and the
    per-byte time of its profile."""
    slowest: dict[str, float] = {}
    for disk in run.disks:
        rates = list(_profile_rates(disk.profile))
        if run.cluster is not None:
            node = next(n for n in run.cluster.nodes if n.name == disk.node)
            limits = next(d.limits for d in node.disks if d.name == disk.name)
            rates += [r for r in (limits.read_bps, limits.write_bps) if r is not None]
            for event in run.cluster.events:
                fits = any(fnmatch.fnmatch(disk.node, p) for p in event.nodes)
                if fits and event.resource == "disk" and event.name in (disk.name, "*", None):
                    changed = event.patch.get("limits") or {}
                    rates += [changed[k] for k in ("read_bps", "write_bps") if changed.get(k)]
        if rates:
            slowest[disk.disk_id] = min(rates)
    return slowest


def _profile_rates(profile: Mapping[str, Any]) -> Iterator[float]:
    """Rates of a stream, of the interface, of the profile's limits and of exhausted credits [B/s]."""
    streams = [(profile.get(d) or {}).get("sequential") or {} for d in ("read", "write")]
    limits = profile.get("limits") or {}
    credits_ = (profile.get("credits") or {}).get("bytes") or {}
    rates = [stream.get("rate_bps") for stream in streams]
    rates += [profile.get("interface_rate_bps"), credits_.get("baseline")]
    rates += [limits.get(key) for key in ("read_bps", "write_bps")]
    for rate in rates:
        if isinstance(rate, int | float) and rate > 0:
            yield float(rate)


def _of_size(timeout: TimeOut, size: int) -> TimeOut:
    return TimeOut(**{**vars(timeout), "bytes": size})


def _size(value: float) -> str:
    for power, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= power:
            return f"{value / power:.3g} {unit}"
    return f"{value:.3g} B"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds >= 120 else f"{seconds:.3g} s"
