"""Who makes which run: each block of the plan on one host, so that a difference of hosts is one of blocks.

A run whose host dies is set aside and made again on another one, with the rest of its block; that this mixes
the hosts of a block is said.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import subprocess
import sys
import tempfile
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
from penstock.spec.study import Hosts, Study, Worker

_UP_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.2
_CLOCK_TRIES = 15


@dataclass
class _Host:
    worker: Worker
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    address: str = ""
    #: its monotonic clock minus ours, as it was last measured
    clock: Offset = field(default_factory=lambda: Offset(0, 0, 0))
    waiting: list[tuple[PlannedRun, int]] = field(default_factory=list)
    repeat: list[tuple[PlannedRun, int]] = field(default_factory=list)
    task: Any = None
    now: tuple[PlannedRun, int] | None = None


class HostConductor:
    """Makes the runs of a study on its hosts."""

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
        made: Mapping[str, PriorAttempts],
        interrupted: Mapping[str, int],
    ) -> list[Outcome]:
        """Makes what is still to be made; gives the outcomes of this call. Raises PenstockError."""
        left = still_to_make(runs, made)
        if not left:
            return []
        self._attempts = {i: m.outcome.attempt for i, m in made.items()}
        for run_id, number in interrupted.items():
            self._attempts[run_id] = max(number, self._attempts.get(run_id, 0))
        with self._started() as client:
            self._share_out(left, made)
            return self._make_all(client)

    def _share_out(self, left: list[PlannedRun], made: Mapping[str, PriorAttempts]) -> None:
        hosts = list(self._up.values())
        wanted = {r.run_id for r in left}
        for one_round in rounds(left):
            block = one_round[0].block
            host = hosts[block % len(hosts)]
            host.waiting += [(r, self._next(r.run_id)) for r in one_round if r.run_id in wanted]
        idle = [h.worker.name for h in hosts if not h.waiting]
        if idle and not made:
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
        """Gives every idle host its next run; whether anything is under way."""
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
        said, packed, words = host.task.result()
        host.task = None
        for word in words:
            self._say(f"{host.worker.name}: {word}")
        if (self._out / "runs" / run.run_id).exists():
            set_aside(self._out, run.run_id)
        unpack(packed, self._out / "runs", run.run_id)
        before, host.clock = host.clock, clock_offset(client, host.address)
        if drift := before.drift(host.clock):
            told = f"its clock went {drift / 1e6:.3f} ms astray from ours in {run.run_id}"
            self._say(f"{host.worker.name}: {told}; both offsets are in `clocks`")
        _clocks(self._out / "runs" / run.run_id / "clocks.parquet", before, host.clock)
        outcome = Outcome(**said)
        self._attempts[run.run_id] = number
        self._listener.ended(run, outcome)
        if must_repeat(PriorAttempts(outcome, number)):
            host.repeat.append((run, number + 1))
        return [outcome]

    def _lost(self, host: _Host) -> None:
        """A host is gone: its run is set aside, and what is left of its block goes to another."""
        assert host.now is not None
        run, number = host.now
        note_interrupted(self._out, run.run_id, number)
        self._attempts[run.run_id] = number
        with contextlib.suppress(Exception):
            host.task.cancel(force=True)
        name = host.worker.name
        self._end(self._up.pop(name))
        left = [(run, number + 1), *host.waiting, *host.repeat]
        if not self._up:
            raise PenstockError(
                f"host {name} was lost during {run.run_id}, and there is no other; what is finished is kept "
                f"(--resume goes on). Its last words: {self._last_words(name)}"
            )
        other = min(self._up.values(), key=lambda h: len(h.waiting) + len(h.repeat))
        other.waiting += left
        self._say(
            f"host {name} was lost during {run.run_id}: its {len(left)} runs are made on "
            f"{other.worker.name}, so block {run.block} is of two hosts"
        )

    @contextlib.contextmanager
    def _started(self) -> Iterator[Any]:
        """A scheduler here and a worker on every host, and a client to them."""
        import dask
        from distributed import Client, LocalCluster

        authority = Authority(self._assignment.study_id)
        place = Path(tempfile.mkdtemp(prefix="penstock-tls-"))
        try:
            paths = authority.identity("conductor").write(place)
            secure = security(paths)
            with dask.config.set(NO_PAGES):
                cluster = LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=0,
                    host=self._hosts.listen,
                    protocol="tls://",
                    security=secure,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,  # True would be the level 1: all
                )
            asking = Client(cluster, security=secure, set_as_default=False)  # type: ignore[no-untyped-call]
            with cluster, asking as client:
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
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _log(self, name: str) -> Path:
        return self._out / f"host-{name}.log"

    def _last_words(self, name: str) -> str:
        return last_line(self._log(name)) or "it said nothing"

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
        said = {
            "scheduler": scheduler,
            "name": worker.name,
            "authority": identity.authority,
            "certificate": identity.certificate,
            "key": identity.key,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(said).encode() + b"\n")
            process.stdin.flush()

    def _await(self, client: Any) -> None:
        """Waits for every worker and compares the clocks. Raises PenstockError with a worker's last words."""
        until = time.monotonic() + _UP_WITHIN_S
        while True:
            found = client.scheduler_info(n_workers=-1)["workers"]
            by_name = {w["name"]: address for address, w in found.items()}
            missing = [n for n in self._up if n not in by_name]
            if not missing:
                break
            for name in missing:
                if self._up[name].process.poll() is not None or time.monotonic() > until:
                    words = self._last_words(name)
                    raise PenstockError(f"host {name} did not come up: {words}")
            time.sleep(_LOOK_EVERY_S / 4)
        for name, host in self._up.items():
            host.address = by_name[name]
            host.clock = clock_offset(client, host.address)

    @staticmethod
    def _end(host: _Host) -> None:
        """Ends a worker by the end of its input, and by its pid if that does not do."""
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
    """The conductor of a study with `hosts`; `text`: its file as it is run."""
    assert study.hosts is not None
    assignment = Assignment(study_id, text, str(study.base_dir), "", tuple(runs))
    return HostConductor(study.hosts, assignment, out, listener, say)


def start_argv(worker: Worker) -> list[str]:
    """The words that start the worker's process on its host."""
    python = worker.python or sys.executable
    words = [python, "-m", "penstock.parts.remote.worker"]
    if worker.netns is not None:
        path = worker.netns if "/" in worker.netns else f"/run/netns/{worker.netns}"
        return ["nsenter", f"--net={path}", "--", *words]
    if worker.ssh is not None:
        return ["ssh", "-o", "BatchMode=yes", *worker.ssh_options, "--", worker.ssh, *words]
    return words


def _clocks(path: Path, start: Offset, end: Offset) -> None:
    """How the host's clock lay to ours before and after a run, into the bundle's table of clocks."""
    table = pq.read_table(path)
    points = [str(point) for point in table["point"].to_pylist()]
    lay = [end if point == "end" else start for point in points]
    bounds = table["offset_bound_ns"].to_pylist()
    for name, values in (
        ("offset_ns", [offset.offset_ns for offset in lay]),
        ("offset_bound_ns", [b + o.bound_ns for b, o in zip(bounds, lay, strict=True)]),
    ):
        at = table.schema.get_field_index(name)
        kind = table.schema.field(at)
        table = table.set_column(at, kind, pa.array(values, kind.type))
    write_parquet(path, table)


def clock_offset(client: Any, address: str) -> Offset:
    """How far a host's monotonic clock is ahead of ours."""
    exchanges = []
    for _ in range(_CLOCK_TRIES):
        before = time.monotonic_ns()
        there = client.run(read_clock, workers=[address])[address]
        after = time.monotonic_ns()
        read = int(there["monotonic_ns"]), after, int(there["offset_bound_ns"])
        exchanges.append(Exchange(before, *read))
    return offset_of(exchanges)
