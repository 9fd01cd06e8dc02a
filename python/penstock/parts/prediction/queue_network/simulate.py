"""The native simulator on one workload: many platforms, many seeds, all cores; counts runs and events."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from penstock.errors import BadInput
from penstock.parts.prediction.queue_network.uncertainty import Drawn
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.profile.model import native

Row = dict[str, Any]

#: memory per chunk request in flight, and the simulator's limit of requests per run
_REQUEST_BYTES, _MOST_REQUESTS = 240, 12_000_000
#: share of the free memory for all concurrent runs
_MEMORY = 0.5

#: platforms per call of the simulator, to limit the memory of outcomes
_BATCH = 64

#: fields of an outcome that `makespan` and `Simulator` need
TIMES = ("makespan_s", "error", "events")


class Columns:
    """Arrays of networks, which the simulator takes apart from their JSON."""

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[int, np.ndarray]] = {}

    def json(self, part: Any) -> str:
        """A part of a network as JSON, with the number of a column in place of each array."""
        return json.dumps(part, default=self._column)

    def lists(self, draws: Sequence[int] | slice = slice(None)) -> list[list[float]]:
        """Numbers of these draws, column by column."""
        return [array[draws].tolist() for _, array in self._arrays.values()]

    def _column(self, array: np.ndarray) -> dict[str, int]:
        number, _ = self._arrays.setdefault(id(array), (len(self._arrays), array))
        return {"column": number}


class Simulator:
    """One workload, ready for simulation. `events` and `simulations` count completed ones.

    `threads` 0 stands for all cores; results do not depend on it. `done` is called after every simulation
    with the number since the last call. `placement` is JSON: actual locations of files, in place of those
    chosen by tags and store: {file: [{"offset_bytes", "length_bytes", "hosts"}, …], …}. Raises BadInput for
    an invalid placement.
    """

    def __init__(
        self,
        workload: Workload,
        threads: int = 0,
        done: Callable[[int], None] | None = None,
        placement: str | None = None,
    ) -> None:
        self.workload = workload
        self.threads = threads or os.cpu_count() or 1
        self.events = 0
        self.simulations = 0
        self._done = done or (lambda _: None)
        moved = [o for task in workload.tasks for o in task.operations if o.size_bytes]
        self._bytes = sum(o.size_bytes for o in moved)
        hints = [file.hints for file in workload.files] + [
            o.hints for task in workload.tasks for o in task.operations if o.op == "set_xattr"
        ]
        self._chunks = [h.chunk_bytes for h in hints if h is not None and h.chunk_bytes]
        try:
            self._native: Any = native.NetworkWorkload(json.dumps(workload.to_dict()), placement)
        except ValueError as error:
            raise BadInput(_placement(error) or f"workload {workload.name}: {error}") from None

    def full(self, network: Row, seed: int) -> Row:
        """One outcome with its tasks and spans."""
        return self._read(_refused(self._native.simulate, json.dumps(network), seed, "full"))

    def runs(
        self, network: Row, seeds: Sequence[int], fields: Sequence[str] | None = None
    ) -> list[Row]:
        """One outcome per seed, with these `fields`; all but `tasks` without a choice.

        Arrays in the network have a number for each seed.
        """
        return next(self.many([network], seeds, fields))

    def many(
        self,
        networks: Iterable[Row],
        seeds: Sequence[int],
        fields: Sequence[str] | None = None,
    ) -> Iterator[list[Row]]:
        """Outcomes of all seeds, network by network, as from `runs`."""
        batch: list[str] = []
        columns, threads = Columns(), self.threads
        for network in networks:
            batch.append(columns.json(network))
            threads = min(threads, self._side_by_side(network))
            if len(batch) == _BATCH:
                yield from self._batch(batch, seeds, threads, columns, fields)
                batch, columns, threads = [], Columns(), self.threads
        if batch:
            yield from self._batch(batch, seeds, threads, columns, fields)

    def drawn(
        self, draws: Iterable[Drawn], seeds: Sequence[int], fields: Sequence[str] = TIMES
    ) -> list[Row]:
        """Outcome of the first draw with the first seed, of the second with the second, …"""
        outcomes: dict[int, Row] = {}
        for rows, platform in draws:
            of_rows = self.runs(platform.lower(), [seeds[i] for i in rows], fields)
            outcomes.update(zip(rows, of_rows, strict=True))
        return [outcomes[i] for i in range(len(seeds))]

    def _side_by_side(self, network: Row) -> int:
        """Number of parallel runs within memory, if each has all its requests in flight at once."""
        chunk = min([int(np.min(network["store"]["chunk_bytes"])), *self._chunks])
        requests = min(_MOST_REQUESTS, self._bytes // chunk)
        if requests * _REQUEST_BYTES * self.threads < 2**28:
            return self.threads
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return max(1, min(self.threads, int(_MEMORY * free / (requests * _REQUEST_BYTES))))

    def _batch(
        self,
        batch: list[str],
        seeds: Sequence[int],
        threads: int,
        columns: Columns,
        fields: Sequence[str] | None,
    ) -> Iterator[list[Row]]:
        of_outcome = None if fields is None else list(fields)
        run = self._native.simulate_many
        texts = _refused(run, batch, list(seeds), threads, columns.lists(), of_outcome)
        for of_one in texts:
            yield [self._read(text) for text in of_one]

    def _read(self, text: str) -> Row:
        outcome: Row = json.loads(text)
        self.events += int(outcome["events"])
        self.simulations += 1
        self._done(1)
        return outcome


def makespan(outcome: Row) -> float:
    """Seconds until the last task ended; infinite for an incomplete run."""
    return math.inf if outcome.get("error") else float(outcome["makespan_s"])


def _refused(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the simulator, with its refusals as BadInput. Ctrl-C interrupts it."""
    try:
        if threading.current_thread() is threading.main_thread():
            return _interruptible(call, *arguments)
        return call(*arguments)
    except ValueError as error:
        raise BadInput(_placement(error) or f"the simulator refuses this: {error}") from None


def _placement(error: ValueError) -> str:
    """Error of a placement, empty for another error."""
    text = str(error)
    return text if text.startswith("placement: ") else ""


def _interruptible(call: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a native call in a daemon thread, which does not block the exit of the process."""
    result: Future[Any] = Future()

    def work() -> None:
        try:
            result.set_result(call(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return result.result()
