"""One trace of nodes on several hosts, on the time base of this host.

The worker of each host records its nodes. Its clock is compared with that of this host before and after the
recording.
"""

from __future__ import annotations

import contextlib
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput
from penstock.host.journal.journal import Journal
from penstock.host.probe.clock_offset import Offset
from penstock.host.probe.clocks import clock_row
from penstock.host.processes.interrupts import Interrupts
from penstock.observe.recorder import OWN_CLOCK, Observation, finish_bundle, new_bundle
from penstock.observe.trace.recordings.bundle import ImportedTrace, write_recording
from penstock.observe.trace.recordings.merge import (
    SAMPLED,
    HostTrace,
    merge_samples,
    merge_traces,
)
from penstock.parts.remote.cluster.coordinator import RemoteCluster, call_hosts
from penstock.parts.remote.running import trace_here
from penstock.parts.remote.workers import WorkerPool
from penstock.scratch import Scratch
from penstock.spec.check_cluster import matching

_TRACE = {"trace": {"mode": "trace"}}


def trace_nodes(
    cluster: RemoteCluster,
    patterns: Sequence[str],
    output: Path,
    argv: Sequence[str] = (),
    seconds: float | None = None,
    *,
    observers: Mapping[str, Mapping[str, Any]] = _TRACE,
) -> tuple[int, ImportedTrace]:
    """Trace nodes while a command runs in them, else for `seconds` or until Ctrl-C; `output`: bundle.

    `observers`: settings of `trace` (mode trace) and, to sample hosts and nodes, `monitor`. Returns the
    highest status of the command. Raises BadInput for an existing `output` and for unknown nodes,
    PenstockError with the messages of hosts that failed.
    """
    if output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    nodes = matching(patterns, cluster.host_of)
    hosts = cluster.by_host(nodes)
    with (
        new_bundle(Journal(), output, argv) as bundle,
        cluster.pool(only=set(hosts)) as pool,
        _recording(cluster, pool, hosts, observers),
        Scratch("trace") as folder,
    ):
        assert bundle is not None
        before = {host: pool.clock_offset(host) for host in hosts}
        clocks = [clock_row("start") | OWN_CLOCK]
        start_ns = time.monotonic_ns()
        status = cluster.execute_in(pool, nodes, argv) if argv else _wait(seconds)
        run = start_ns, time.monotonic_ns()
        clocks.append(clock_row("end") | OWN_CLOCK)
        offsets = {host: before[host].until(pool.clock_offset(host)) for host in hosts}
        call_hosts(pool, trace_here.end, dict.fromkeys(hosts, (cluster.name,)))
        traces = [_fetched(cluster, pool, host, folder, offsets[host]) for host in hosts]
        recording = merge_traces(traces, folder, run)
        if "monitor" in observers:
            recording.tables |= {name: merge_samples(traces, name) for name in SAMPLED}
        judged = write_recording(bundle, recording, run[1] - run[0])
        manifest = bundle.manifest
        seen = Observation(losses=manifest["losses"], receipts=manifest["receipts"], clocks=clocks)
        phase = {"phase_id": "workload", "start_ns": run[0], "end_ns": run[1]}
        facts = {"hosts": {trace.host: _facts(trace) for trace in traces}}
        finish_bundle(bundle, seen, [phase], status, run, facts)
    return status, replace(judged, bundle=output)


@contextlib.contextmanager
def _recording(
    cluster: RemoteCluster,
    pool: WorkerPool,
    hosts: Mapping[str, Sequence[str]],
    observers: Mapping[str, Mapping[str, Any]],
) -> Iterator[None]:
    """Record the nodes of all hosts; then remove the recordings there."""

    def release() -> None:
        pool.call_all(trace_here.release, dict.fromkeys(hosts, (cluster.name,)))

    try:
        calls = {host: (cluster.name, own, observers) for host, own in hosts.items()}
        call_hosts(pool, trace_here.begin, calls)
        yield
    except Exception:  # at Ctrl-C a worker is busy with the command: its recording ends with it
        release()
        raise
    release()


def _wait(seconds: float | None) -> int:
    with Interrupts() as interrupts:
        until = None if seconds is None else time.monotonic() + seconds
        while not interrupts.wait(until) and (until is None or time.monotonic() < until):
            pass
    return 0


def _fetched(
    cluster: RemoteCluster, pool: WorkerPool, host: str, folder: Path, offset: Offset
) -> HostTrace:
    """Trace of a host, copied to `folder`."""
    packed = folder / f"{host}.tar"
    with packed.open("wb") as file:
        while chunk := call_hosts(pool, trace_here.read, {host: (cluster.name, file.tell())})[host]:
            file.write(chunk)
    with tarfile.open(packed) as tar:
        tar.extractall(folder / host, filter="data")
    packed.unlink()
    bundle = folder / host / trace_here.BUNDLE
    nodes = Bundle.open(bundle).manifest["nodes"]
    return HostTrace(host, bundle, offset, {int(group): node for group, node in nodes.items()})


def _facts(trace: HostTrace) -> Mapping[str, Any]:
    """Entry of a host in the manifest."""
    return {
        "nodes": sorted(set(trace.nodes.values())),
        "offset_ns": trace.offset.offset_ns,
        "offset_bound_ns": trace.offset.bound_ns,
        "receipts": Bundle.open(trace.bundle).manifest["receipts"],
    }
