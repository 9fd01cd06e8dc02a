"""Assign runs to hosts: one host for each block, so that differences between hosts are block effects.

If a host fails, its run and the rest of its block are executed on another host. A message reports that the
block then has two hosts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.bundle import write_parquet
from penstock.archive.runs import set_aside
from penstock.campaign.conductor import (
    Listener,
    Outcome,
    PriorAttempts,
    must_repeat,
    rounds,
    still_to_make,
)
from penstock.campaign.evidence.interrupted import note_interrupted
from penstock.design.planned import PlannedRun
from penstock.errors import PenstockError
from penstock.host.probe.clock_offset import Exchange, Offset, offset_of
from penstock.host.processes.dask_cluster import NO_PAGES
from penstock.host.processes.launch import last_line
from penstock.parts.remote.assignment import Assignment, end_study, make_run, read_clock, unpack
from penstock.parts.remote.tls import Authority, security
from penstock.scratch import Scratch
from penstock.spec.study import Hosts, Study, Worker
from penstock.text import counted

_UP_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.2
_CLOCK_TRIES = 15


@dataclass
class _Host:
    worker: Worker
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    address: str = ""
    #: monotonic clock of the host − that of this process, from the last measurement
    clock: Offset = field(default_factory=lambda: Offset(0, 0, 0))
    waiting: list[tuple[PlannedRun, int]] = field(default_factory=list)
    repeat: list[tuple[PlannedRun, int]] = field(default_factory=list)
    task: Any = None
    now: tuple[PlannedRun, int] | None = None


class HostConductor:
    """Executes the runs of a study on its hosts."""

    def __init__(
        self,
        hosts: Hosts,
        assignment: Assignment,
        out: Path,
        listener: Listener[PlannedRun],
        say: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._assignment = assignment
        self._out = out
        self._listener = listener
        self._say = say
        self._up: dict[str, _Host] = {}
        self._attempts: dict[str, int] = {}

    def conduct(
        self,
        runs: Sequence[PlannedRun],
        completed: Mapping[str, PriorAttempts],
        interrupted: Mapping[str, int],
    ) -> list[Outcome]:
        """Execute the runs that are not completed; return their outcomes. Raises PenstockError."""
        remaining = still_to_make(runs, completed)
        if not remaining:
            return []
        self._attempts = {i: prior.outcome.attempt for i, prior in completed.items()}
        for run_id, number in interrupted.items():
            self._attempts[run_id] = max(number, self._attempts.get(run_id, 0))
        with self._started() as client:
            self._assign(remaining, completed)
            return self._make_all(client)

    def _assign(self, remaining: list[PlannedRun], completed: Mapping[str, PriorAttempts]) -> None:
        hosts = list(self._up.values())
        run_ids = {r.run_id for r in remaining}
        for one_round in rounds(remaining):
            block = one_round[0].block
            host = hosts[block % len(hosts)]
            host.waiting += [(r, self._next(r.run_id)) for r in one_round if r.run_id in run_ids]
        idle = [h.worker.name for h in hosts if not h.waiting]
        if idle and not completed:
            self._say(f"no block for {', '.join(idle)}: there are fewer replicates than hosts")

    def _next(self, run_id: str) -> int:
        return self._attempts.get(run_id, 0) + 1

    def _make_all(self, client: Any) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while self._begin(client):
            time.sleep(_LOOK_EVERY_S / 4)
            alive = set(client.scheduler_info(n_workers=-1)["workers"])
            for host in list(self._up.values()):
                if host.now is None:
                    continue
                if host.task.status in ("finished", "error"):
                    outcomes += self._ended(host, client)
                elif host.address not in alive or host.process.poll() is not None:
                    self._lost(host)
        return outcomes

    def _begin(self, client: Any) -> bool:
        """Start the next run on every idle host; return True if any host is busy."""
        for host in self._up.values():
            if host.now is not None:
                continue
            if not host.waiting and host.repeat:
                host.waiting, host.repeat = host.repeat, []
            if host.waiting:
                host.now = host.waiting.pop(0)
                run, number = host.now
                self._listener.begun(run, number)
                host.task = client.submit(
                    make_run,
                    Assignment(**{**vars(self._assignment), "host": host.worker.name}),
                    run.run_id,
                    number,
                    workers=[host.address],
                    allow_other_workers=False,
                    resources={"run": 1},
                    retries=0,
                    pure=False,
                )
        return any(h.now is not None for h in self._up.values())

    def _ended(self, host: _Host, client: Any) -> list[Outcome]:
        assert host.now is not None
        run, number = host.now
        host.now = None
        outcome_fields, packed, messages = host.task.result()
        host.task = None
        for message in messages:
            self._say(f"{host.worker.name}: {message}")
        if (self._out / "runs" / run.run_id).exists():
            set_aside(self._out, run.run_id)
        unpack(packed, self._out / "runs", run.run_id)
        before, host.clock = host.clock, clock_offset(client, host.address)
        if drift := before.drift(host.clock):
            change = f"its clock drifted {drift / 1e6:.3f} ms from this host's in {run.run_id}"
            self._say(f"{host.worker.name}: {change}; both offsets are in `clocks`")
        _clocks(self._out / "runs" / run.run_id / "clocks.parquet", before, host.clock)
        outcome = Outcome(**outcome_fields)
        self._attempts[run.run_id] = number
        self._listener.ended(run, outcome)
        if must_repeat(PriorAttempts(outcome, number)):
            host.repeat.append((run, number + 1))
        return [outcome]

    def _lost(self, host: _Host) -> None:
        """Set aside the run of a failed host and assign its remaining runs to another host."""
        assert host.now is not None
        run, number = host.now
        note_interrupted(self._out, run.run_id, number)
        self._attempts[run.run_id] = number
        with contextlib.suppress(Exception):
            host.task.cancel(force=True)
        name = host.worker.name
        self._end(self._up.pop(name))
        remaining = [(run, number + 1), *host.waiting, *host.repeat]
        if not self._up:
            raise PenstockError(
                f"host {name} failed during {run.run_id}, and there is no other host; --resume continues "
                f"after the finished runs. Its last message: {self._last_message(name)}"
            )
        other = min(self._up.values(), key=lambda h: len(h.waiting) + len(h.repeat))
        other.waiting += remaining
        self._say(
            f"host {name} failed during {run.run_id}: {counted(len(remaining), 'remaining run')} moved to "
            f"{other.worker.name}, so block {run.block} has two hosts"
        )

    @contextlib.contextmanager
    def _started(self) -> Iterator[Any]:
        """Start a scheduler here and a worker on every host; yield a client; stop them at the end."""
        import dask
        from distributed import Client, LocalCluster

        authority = Authority(self._assignment.study_id)
        with Scratch("tls") as place:
            paths = authority.identity("conductor").write(place)
            secure = security(paths)
            with dask.config.set(NO_PAGES):
                cluster = LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=0,
                    host=self._hosts.listen,
                    protocol="tls://",
                    security=secure,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,  # True means level 1: all messages
                )
            connection = Client(cluster, security=secure, set_as_default=False)  # type: ignore[no-untyped-call]
            with cluster, connection as client:
                try:
                    for worker in self._hosts.workers:
                        self._start(worker, cluster.scheduler_address, authority)
                    self._await(client)
                    yield client
                finally:
                    for host in self._up.values():
                        with contextlib.suppress(Exception):
                            client.run(end_study, self._assignment.study_id, workers=[host.address])
                    while self._up:
                        self._end(self._up.popitem()[1])

    def _log(self, name: str) -> Path:
        return self._out / f"host-{name}.log"

    def _last_message(self, name: str) -> str:
        return last_line(self._log(name)) or "none"

    def _start(self, worker: Worker, scheduler: str, authority: Authority) -> None:
        identity = authority.identity(worker.name)
        log = open(self._log(worker.name), "wb")  # noqa: SIM115 - closed with the host
        process = subprocess.Popen(
            start_argv(worker),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._up[worker.name] = _Host(worker, process, log)
        settings = {
            "scheduler": scheduler,
            "name": worker.name,
            "authority": identity.authority,
            "certificate": identity.certificate,
            "key": identity.key,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()

    def _await(self, client: Any) -> None:
        """Wait for every worker and measure its clock offset.

        Raises PenstockError with the last message of a worker that does not start.
        """
        until = time.monotonic() + _UP_WITHIN_S
        while True:
            workers = client.scheduler_info(n_workers=-1)["workers"]
            by_name = {w["name"]: address for address, w in workers.items()}
            missing = [n for n in self._up if n not in by_name]
            if not missing:
                break
            for name in missing:
                if self._up[name].process.poll() is not None or time.monotonic() > until:
                    raise PenstockError(
                        f"host {name} did not start; its last message: {self._last_message(name)}"
                    )
            time.sleep(_LOOK_EVERY_S / 4)
        for name, host in self._up.items():
            host.address = by_name[name]
            host.clock = clock_offset(client, host.address)

    @staticmethod
    def _end(host: _Host) -> None:
        """Stop a worker by closing its input; kill it after 15 s."""
        if host.process.stdin is not None:
            with contextlib.suppress(OSError):
                host.process.stdin.close()
        try:
            host.process.wait(15)
        except subprocess.TimeoutExpired:
            host.process.kill()
            host.process.wait()
        host.log.close()


def conductor_of(
    study: Study,
    study_id: str,
    text: str,
    runs: Sequence[PlannedRun],
    out: Path,
    listener: Listener[PlannedRun],
    say: Callable[[str], None],
) -> HostConductor:
    """The conductor of a study with `hosts`; `text` is the content of its file after expansion."""
    assert study.hosts is not None
    assignment = Assignment(study_id, text, str(study.base_dir), "", tuple(runs))
    return HostConductor(study.hosts, assignment, out, listener, say)


def start_argv(worker: Worker) -> list[str]:
    """The command that starts the worker process on its host."""
    python = worker.python or sys.executable
    argv = [python, "-m", "penstock.parts.remote.worker"]
    if worker.netns is not None:
        path = worker.netns if "/" in worker.netns else f"/run/netns/{worker.netns}"
        return ["nsenter", f"--net={path}", "--", *argv]
    if worker.ssh is not None:
        return ["ssh", "-o", "BatchMode=yes", *worker.ssh_options, "--", worker.ssh, *argv]
    return argv


def _clocks(path: Path, start: Offset, end: Offset) -> None:
    """Add the clock offsets of the host before and after a run to the bundle's table of clocks."""
    table = pq.read_table(path)
    points = [str(point) for point in table["point"].to_pylist()]
    offsets = [end if point == "end" else start for point in points]
    bounds = table["offset_bound_ns"].to_pylist()
    for name, values in (
        ("offset_ns", [offset.offset_ns for offset in offsets]),
        ("offset_bound_ns", [b + o.bound_ns for b, o in zip(bounds, offsets, strict=True)]),
    ):
        at = table.schema.get_field_index(name)
        kind = table.schema.field(at)
        table = table.set_column(at, kind, pa.array(values, kind.type))
    write_parquet(path, table)


def clock_offset(client: Any, address: str) -> Offset:
    """Measure the monotonic clock of a host − that of this process."""
    exchanges = []
    for _ in range(_CLOCK_TRIES):
        before = time.monotonic_ns()
        clocks = client.run(read_clock, workers=[address])[address]
        after = time.monotonic_ns()
        read = int(clocks["monotonic_ns"]), after, int(clocks["offset_bound_ns"])
        exchanges.append(Exchange(before, *read))
    return offset_of(exchanges)
