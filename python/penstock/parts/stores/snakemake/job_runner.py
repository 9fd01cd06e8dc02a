"""Execution of jobs on the client nodes of a store: hints, choice of the node, processes, records."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.task import Operation, Task
from penstock.parts.stores.snakemake.job_hints import Tags
from penstock.parts.stores.snakemake.job_records import JobRecord, JobRecords
from penstock.parts.stores.snakemake.node_client import NodeClient
from penstock.parts.stores.snakemake.node_jobs import Line, Request
from penstock.parts.stores.snakemake.slots import Slots
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.schedule import bytes_by_node
from penstock.spec.store import Extent

#: jobs that are prepared or concluded at the same time
_TOGETHER = 8
#: size that stands for the end of every file
_TO_THE_END = 1 << 62


@dataclass(frozen=True)
class Job:
    """A command for a node: paths are those of the store's mount.

    `tags` by output: set before the command starts, or if `asks` when it asks for them (a program that first
    removes its outputs). The command starts once the node sees its inputs, or fails after `patience_s`.
    """

    name: str
    rule: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    threads: int = 1
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tags: Mapping[str, Tags] = field(default_factory=dict)
    asks: bool = False
    patience_s: float = 5.0


@dataclass(frozen=True)
class JobEnd:
    """End of a job: `error` is empty if it succeeded, `output` is the beginning and the end of its output."""

    record: JobRecord
    output: str
    error: str = ""


@dataclass
class _Running:
    job: Job
    record: JobRecord
    ended: Callable[[JobEnd], None]
    stored: Mapping[str, int] = field(default_factory=dict)
    #: its end has been reported
    over: bool = False


class JobRunner:
    """Runs jobs until `close`; each `ended` is called once, in another thread."""

    def __init__(self, store: Store, slots: Slots, records: JobRecords) -> None:
        self._store, self._slots, self._records = store, slots, records
        self._begin_ns = time.monotonic_ns()
        self._lock = threading.RLock()
        self._tagging = threading.Lock()
        self._ready: list[_Running] = []
        self._running: dict[str, _Running] = {}
        self._extents: dict[str, list[Extent]] = {}
        self._clients: dict[str, NodeClient] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(_TOGETHER)

    def submit(self, job: Job, ended: Callable[[JobEnd], None]) -> None:
        """Run a job on the best node that is idle, as soon as one is."""
        record = JobRecord(job.name, job.rule, direct=not job.asks, submitted_s=self._now_s())
        self._pool.submit(self._guarded, self._locate_inputs, _Running(job, record, ended))

    def cancel(self) -> None:
        """Kill all jobs; each ends with an error."""
        with self._lock:
            waiting, self._ready = self._ready, []
            running = list(self._running.values())
        for one in waiting:
            self._end(one, "cancelled")
        for one in running:
            with contextlib.suppress(PenstockError, KeyError):
                self._clients[one.record.node].send({"cancel": one.job.name})

    def close(self) -> None:
        """Kill the remaining jobs, and end the programs of the nodes."""
        with self._lock:
            self._closed = True
        for client in list(self._clients.values()):
            client.close()
        with self._lock:
            for one in (*self._ready, *self._running.values()):
                one.over = True
                with contextlib.suppress(OSError):
                    self._records.add(one.record)
            self._ready.clear()
            self._running.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._store.release()  # requests to a store that does not answer
        self._pool.shutdown()

    def _now_s(self) -> float:
        return self._of_run(time.monotonic_ns())

    def _of_run(self, t_ns: int) -> float:
        return round((t_ns - self._begin_ns) / 1e9, 6)

    def _guarded(self, step: Callable[..., None], one: _Running, *arguments: Any) -> None:
        """Take a step of a job; its errors end the job."""
        try:
            step(one, *arguments)
        except Exception as error:
            self._end(one, str(error) or type(error).__name__)

    def _locate_inputs(self, one: _Running) -> None:
        one.stored = self._by_node(one.job.inputs)
        with self._lock:
            self._ready.append(one)
        self._fill()

    def _fill(self) -> None:
        """Start the ready jobs for which there is a node."""
        with self._lock:
            for one in list(self._ready):
                node = self._slots.take(one.job.threads, one.stored)
                if node is None:
                    if not self._slots.nodes:
                        self._ready.remove(one)
                        self._pool.submit(self._end, one, "no client node of the store is alive")
                    continue
                self._ready.remove(one)
                one.record.node = node
                self._running[one.job.name] = one
                self._pool.submit(self._guarded, self._start, one)

    def _start(self, one: _Running) -> None:
        """Send a job to its node; if that is dead, to another one."""
        job, node = one.job, one.record.node
        try:
            client = self._client(node)
            created = [] if job.asks else self._tag(one)
            one.record.sent_s = self._now_s()
            request: Request = {
                "job": job.name,
                "argv": list(job.argv),
                "cwd": job.cwd,
                "env": dict(job.env),
                "inputs": list(job.inputs),
                "wait_s": job.patience_s,
                "created": created,
            }
            client.send(request)
        except PenstockError:
            if self._alive(node):
                raise
            self._dead(node, to_other_node=one)

    def _client(self, node: str) -> NodeClient:
        with self._lock:
            if self._closed:
                raise PenstockError("cancelled")
            if node not in self._clients:
                running = self._store.cluster.nodes[node]
                self._clients[node] = NodeClient(running, self._heard)
            return self._clients[node]

    def _alive(self, node: str) -> bool:
        try:
            self._store.cluster.nodes[node].enter(["true"])
        except PenstockError:
            return False
        return True

    def _dead(self, node: str, *, to_other_node: _Running | None = None) -> None:
        """Exclude a node; jobs that ran there have failed, one that was not sent goes to another."""
        with self._lock:
            self._slots.drop(node)
            lost = [r for r in self._running.values() if r.record.node == node]
            for one in lost:
                del self._running[one.job.name]
            if to_other_node is not None and to_other_node in lost:
                lost.remove(to_other_node)
                to_other_node.record.tags.clear()
                self._ready.append(to_other_node)
        for one in lost:
            self._end(one, f"node {node} has died, or the program that runs its jobs")
        self._fill()

    def _tag(self, one: _Running) -> list[str]:
        """Create the tagged outputs of a job, empty; their paths."""
        for path, tags in one.job.tags.items():
            with self._tagging:  # an engine's state changes with some hints
                results = self._store.tag(path, tags, node=one.record.node, create=True)
            one.record.tags += results
        return list(one.job.tags)

    def _heard(self, node: str, line: Line | None) -> None:
        """Handle a line of a node's program; None: it ended."""
        if self._closed:
            return
        if line is None:
            self._dead(node)
            return
        with self._lock:
            one = self._running.get(line["job"])
        if one is None:
            return
        step = self._hint_later if line.get("hints") else self._conclude
        self._pool.submit(self._guarded, step, one, line)

    def _hint_later(self, one: _Running, _: Line) -> None:
        """Set the hints of a job that waits for them."""
        client = self._client(one.record.node)
        try:
            created = self._tag(one)
        except BaseException:  # it is reported as failed, so it must not run on
            client.send({"cancel": one.job.name})
            raise
        client.send({"hinted": one.job.name, "created": created})

    def _conclude(self, one: _Running, line: Line) -> None:
        """Record a job that ended, and report it."""
        job, record = one.job, one.record
        record.status = line["status"]
        record.started_s = self._of_run(line["started_ns"])
        record.ended_s = self._of_run(line["ended_ns"])
        with self._lock:
            for path in job.outputs:
                self._extents.pop(path, None)
        written = self._by_node(job.outputs, record.node) if record.status == 0 else {}
        for prefix, by_node, paths in (
            ("input", one.stored, job.inputs),
            ("output", written, job.outputs),
        ):
            local = by_node.get(record.node, 0)
            total = sum(e.length_bytes for path in paths for e in self._extents.get(path, ()))
            setattr(record, f"{prefix}_local_bytes", local)
            setattr(record, f"{prefix}_remote_bytes", max(0, total - local))
        if record.status == 0:
            record.outputs = {
                path: sum(e.length_bytes for e in self._extents[path])
                for path in job.outputs
                if path in self._extents
            }
        self._end(one, _failure(record.status), line["output"])

    def _end(self, one: _Running, error: str, output: str = "") -> None:
        """Report the end of a job once, and give its slots to others."""
        with self._lock:
            if one.over:
                return
            one.over = True
            if self._running.get(one.job.name) is one:
                del self._running[one.job.name]
                self._slots.give_back(one.record.node, one.job.threads)
            with contextlib.suppress(OSError):  # a full disk: the job must be reported in any case
                self._records.add(one.record)
        one.ended(JobEnd(one.record, output, error))
        if not self._closed:
            self._fill()

    def _by_node(self, paths: tuple[str, ...], seen_from: str | None = None) -> dict[str, int]:
        """Bytes of these files by node, as far as the store knows; `seen_from` has the newest metadata."""
        for path in paths:
            if path not in self._extents:
                with contextlib.suppress(BadInput, PenstockError):
                    extents = self._store.locate(path, seen_from)
                    with self._lock:
                        self._extents[path] = extents
        reads = tuple(Operation("read", path, 0, _TO_THE_END) for path in paths)
        return bytes_by_node(Task("", reads), self._extents)


def _failure(status: int | None) -> str:
    if status == 0:
        return ""
    if status is not None and status < 0:
        return f"its process was killed by signal {-status}"
    return f"its process ended with status {status}"
