"""The native simulator on one workload: many platforms, many seeds, all cores; what it did is counted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.errors import BadInput
from penstock.profile.model import native
from penstock.workload.workflow import Workload

Row = dict[str, Any]

#: platforms handed to the simulator at once, so that outcomes of thousands are not held as text
_BATCH = 64


class Simulator:
    """One workload, ready to be simulated. `events` and `simulations` count what was done so far.

    `threads` 0 stands for all cores; results do not depend on it. `done` is called after every simulation
    with how many were made since the last call.
    """

    def __init__(
        self, workload: Workload, threads: int = 0, done: Callable[[int], None] | None = None
    ) -> None:
        self.workload = workload
        self.threads = threads or os.cpu_count() or 1
        self.events = 0
        self.simulations = 0
        self._done = done or (lambda _: None)
        try:
            self._native: Any = native.NetworkWorkload(json.dumps(workload.to_dict()))
        except ValueError as error:
            raise BadInput(f"workload {workload.name}: {error}") from None

    def full(self, network: Row, seed: int) -> Row:
        """One outcome with its tasks and spans."""
        return self._read(_refused(self._native.simulate, json.dumps(network), seed, "full"))

    def runs(self, network: Row, seeds: Sequence[int]) -> list[Row]:
        """One outcome per seed."""
        return next(self.many([network], seeds))

    def many(self, networks: Iterable[Row], seeds: Sequence[int]) -> Iterator[list[Row]]:
        """Per network the outcomes of all seeds, network by network."""
        batch: list[str] = []
        for network in networks:
            batch.append(json.dumps(network))
            if len(batch) == _BATCH:
                yield from self._batch(batch, seeds)
                batch = []
        if batch:
            yield from self._batch(batch, seeds)

    def _batch(self, batch: list[str], seeds: Sequence[int]) -> Iterator[list[Row]]:
        texts = _refused(self._native.simulate_many, batch, list(seeds), self.threads)
        for of_one in texts:
            yield [self._read(text) for text in of_one]

    def paired(self, networks: Iterable[Row], seeds: Iterable[int]) -> list[Row]:
        """The outcome of the first network with the first seed, of the second with the second, …"""

        def one(pair: tuple[Row, int]) -> str:
            network, seed = pair
            return str(_refused(self._native.simulate_many, [json.dumps(network)], [seed], 1)[0][0])

        pairs = zip(networks, seeds, strict=True)
        with ThreadPoolExecutor(self.threads) as pool:
            return [self._read(text) for text in pool.map(one, pairs)]

    def _read(self, text: str) -> Row:
        outcome: Row = json.loads(text)
        self.events += int(outcome["events"])
        self.simulations += 1
        self._done(1)
        return outcome


def makespan(outcome: Row) -> float:
    """Seconds until the last task ended; infinite where the run did not come to its end."""
    return math.inf if outcome.get("error") else float(outcome["makespan_s"])


def _refused(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the simulator refuses is bad input."""
    try:
        return call(*arguments)
    except ValueError as error:
        raise BadInput(f"the simulator refuses this: {error}") from None
