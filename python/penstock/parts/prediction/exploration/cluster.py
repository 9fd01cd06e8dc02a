"""The same evaluator over a Dask cluster: batches go to the workers, results come back in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import PenstockError
from penstock.parts.prediction.exploration.evaluate import Measure
from penstock.parts.prediction.exploration.simulate import Simulated
from penstock.parts.prediction.exploration.space.space import Candidate, Space
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform

#: candidates per task, at most: small enough to distribute a batch over workers
_SHARE = 32


class Clustered(Simulated):
    """Like `Simulated`, with `evaluate` on the workers of a Dask client."""

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        space: Space,
        client: Any,
        hinted: Mapping[str, Workload] | None = None,
    ) -> None:
        super().__init__(workload, platform, space, hinted=hinted)
        self._client = client
        inputs = (workload, platform, space, 1, hinted)
        self._there = client.scatter(inputs, broadcast=True, hash=False)

    def evaluate(
        self, candidates: Sequence[Candidate], seeds: Sequence[int]
    ) -> list[list[Measure]]:
        """See `Evaluator`: the same measures as without a cluster."""
        workers = max(1, len(self._client.ncores()))
        share = max(1, min(_SHARE, -(-len(candidates) // workers)))
        futures = [
            self._client.submit(
                _there, self._there, list(candidates[i : i + share]), list(seeds), pure=False
            )
            for i in range(0, len(candidates), share)
        ]
        try:
            parts = self._client.gather(futures)
        except (KeyboardInterrupt, SystemExit):
            self._client.cancel(futures)
            raise
        except PenstockError:
            raise
        except (
            Exception
        ) as error:  # on any failure of the cluster, completed evaluations are retained
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise PenstockError(f"the cluster failed: {reason}") from None
        return [row for part in parts for row in part]


_evaluators: dict[tuple[int, int, int], Simulated] = {}


def _there(
    what: tuple[Workload, Platform, Space, int, Mapping[str, Workload] | None],
    candidates: list[Candidate],
    seeds: list[int],
) -> list[list[Measure]]:
    """Evaluate one share of a batch on a worker, which caches its simulator."""
    key = (id(what[0]), id(what[1]), id(what[2]))
    if key not in _evaluators:
        _evaluators.clear()
        _evaluators[key] = Simulated(*what)
    return _evaluators[key].evaluate(candidates, seeds)
