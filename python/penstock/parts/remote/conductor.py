"""Assign runs to hosts: one host for each block, so that differences between hosts are block effects.

If a host fails, its run and the rest of its block are executed on another host. A message reports that the
block then has two hosts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from penstock.host.probe.clock_offset import Offset
from penstock.parts.remote.assignment import Assignment, end_study, make_run, unpack
from penstock.parts.remote.workers import WorkerPool
from penstock.spec.study import Hosts, Study
from penstock.text import counted

_LOOK_EVERY_S = 0.05


@dataclass
class _Host:
    name: str
    #: monotonic clock of the host − that of this process, from the last measurement
    clock: Offset
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
        self._pool: WorkerPool
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
        with self._started():
            self._assign(remaining, completed)
            return self._make_all()

    def _assign(self, remaining: list[PlannedRun], completed: Mapping[str, PriorAttempts]) -> None:
        hosts = list(self._up.values())
        run_ids = {r.run_id for r in remaining}
        for one_round in rounds(remaining):
            block = one_round[0].block
            host = hosts[block % len(hosts)]
            host.waiting += [(r, self._next(r.run_id)) for r in one_round if r.run_id in run_ids]
        idle = [h.name for h in hosts if not h.waiting]
        if idle and not completed:
            self._say(f"no block for {', '.join(idle)}: there are fewer replicates than hosts")

    def _next(self, run_id: str) -> int:
        return self._attempts.get(run_id, 0) + 1

    def _make_all(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while self._begin():
            time.sleep(_LOOK_EVERY_S)
            connected = self._pool.connected()
            for host in list(self._up.values()):
                if host.now is None:
                    continue
                if host.task.status in ("finished", "error"):
                    outcomes += self._ended(host)
                elif not self._pool.is_alive(host.name, connected):
                    self._lost(host)
        return outcomes

    def _begin(self) -> bool:
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
                host.task = self._pool.submit(
                    host.name,
                    make_run,
                    Assignment(**{**vars(self._assignment), "host": host.name}),
                    run.run_id,
                    number,
                    resources={"run": 1},
                )
        return any(h.now is not None for h in self._up.values())

    def _ended(self, host: _Host) -> list[Outcome]:
        assert host.now is not None
        run, number = host.now
        host.now = None
        outcome_fields, packed, messages = host.task.result()
        host.task = None
        for message in messages:
            self._say(f"{host.name}: {message}")
        if (self._out / "runs" / run.run_id).exists():
            set_aside(self._out, run.run_id)
        unpack(packed, self._out / "runs", run.run_id)
        before, host.clock = host.clock, self._pool.clock_offset(host.name)
        if drift := before.drift(host.clock):
            change = f"its clock drifted {drift / 1e6:.3f} ms from this host's in {run.run_id}"
            self._say(f"{host.name}: {change}; both offsets are in `clocks`")
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
        name = host.name
        del self._up[name]
        self._pool.end(name)
        remaining = [(run, number + 1), *host.waiting, *host.repeat]
        if not self._up:
            raise PenstockError(
                f"host {name} failed during {run.run_id}, and there is no other host; --resume continues "
                f"after the finished runs. Its last message: {self._pool.last_message(name)}"
            )
        other = min(self._up.values(), key=lambda h: len(h.waiting) + len(h.repeat))
        other.waiting += remaining
        self._say(
            f"host {name} failed during {run.run_id}: {counted(len(remaining), 'remaining run')} moved to "
            f"{other.name}, so block {run.block} has two hosts"
        )

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        """Start a worker on every host and measure its clock; stop them at the end."""
        with WorkerPool(
            self._assignment.study_id, self._hosts.listen, self._hosts.workers, self._out
        ) as pool:
            self._pool = pool
            self._up = {
                w.name: _Host(w.name, pool.clock_offset(w.name)) for w in self._hosts.workers
            }
            try:
                yield
            finally:
                for address in pool.addresses.values():
                    with contextlib.suppress(Exception):
                        pool.client.run(end_study, self._assignment.study_id, workers=[address])


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
