"""The native simulator on one workload: many platforms, many seeds, all cores; counts runs and events."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.profile.model import native

Row = dict[str, Any]

#: memory per chunk request in flight, and the simulator's limit of requests per run
_REQUEST_BYTES, _MOST_REQUESTS = 240, 12_000_000
#: share of the free memory for all concurrent runs
_MEMORY = 0.5

#: platforms per call of the simulator, to limit the memory of outcomes
_BATCH = 64


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

    def runs(self, network: Row, seeds: Sequence[int]) -> list[Row]:
        """One outcome per seed."""
        return next(self.many([network], seeds))

    def many(self, networks: Iterable[Row], seeds: Sequence[int]) -> Iterator[list[Row]]:
        """Outcomes of all seeds, network by network."""
        batch: list[str] = []
        threads = self.threads
        for network in networks:
            batch.append(json.dumps(network))
            threads = min(threads, self._side_by_side(network))
            if len(batch) == _BATCH:
                yield from self._batch(batch, seeds, threads)
                batch, threads = [], self.threads
        if batch:
            yield from self._batch(batch, seeds, threads)

    def _side_by_side(self, network: Row) -> int:
        """Number of parallel runs within memory, if each has all its requests in flight at once."""
        chunk = min([int(network["store"]["chunk_bytes"]), *self._chunks])
        requests = min(_MOST_REQUESTS, self._bytes // chunk)
        if requests * _REQUEST_BYTES * self.threads < 2**28:
            return self.threads
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return max(1, min(self.threads, int(_MEMORY * free / (requests * _REQUEST_BYTES))))

    def _batch(self, batch: list[str], seeds: Sequence[int], threads: int) -> Iterator[list[Row]]:
        texts = _refused(self._native.simulate_many, batch, list(seeds), threads)
        for of_one in texts:
            yield [self._read(text) for text in of_one]

    def paired(self, networks: Iterable[Row], seeds: Iterable[int]) -> list[Row]:
        """Outcome of the first network with the first seed, of the second with the second, …"""

        def one(pair: tuple[Row, int]) -> str:
            network, seed = pair
            return str(_refused(self._native.simulate_many, [json.dumps(network)], [seed], 1)[0][0])

        pairs = list(zip(networks, seeds, strict=True))
        threads = min((self._side_by_side(network) for network, _ in pairs), default=1)
        with ThreadPoolExecutor(threads) as pool:
            return [self._read(text) for text in pool.map(one, pairs)]

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
