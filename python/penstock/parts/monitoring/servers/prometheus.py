"""Range queries of Prometheus, VictoriaMetrics and other servers with the same HTTP API.

Settings: `user`, `password`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadInput, printable
from penstock.parts.monitoring.collectors.collector import only
from penstock.parts.monitoring.collectors.columns import unit_of
from penstock.parts.monitoring.experiments.points import canonical_labels, points
from penstock.parts.monitoring.servers.reader import Kept, Server, check_window

#: maximum number of points of a series in an answer of Prometheus, including both ends
MOST_POINTS = 11_000
#: maximum number of requests of one range
MOST_REQUESTS = 2_000


def ranges(start_ns: int, end_ns: int, step_ns: int) -> Iterator[tuple[int, int]]:
    """Disjoint windows of at most 11,000 steps, including both ends, aligned to the steps of the range."""
    steps = (end_ns - start_ns) // step_ns
    for first in range(0, steps + 1, MOST_POINTS):
        last = min(first + MOST_POINTS - 1, steps)
        yield start_ns + first * step_ns, start_ns + last * step_ns


def _seconds(ns: int) -> str:
    return f"{Decimal(ns) / 1_000_000_000:f}"


class PrometheusReader:
    """Reads a range, split into windows that the server accepts."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        only("prometheus", settings, ("user", "password"))
        self._server = Server(url, **settings)

    def read(self, query: str, start_ns: int, end_ns: int, step_ns: int) -> Kept:
        """As `ServerReader.read`; a series without a name has the query as its metric."""
        check_window(start_ns, end_ns, step_ns)
        if (end_ns - start_ns) // step_ns >= MOST_REQUESTS * MOST_POINTS:
            raise BadInput(
                f"found {(end_ns - start_ns) // step_ns} steps of {step_ns / 1e9:g} s; expected a longer "
                f"step, {MOST_REQUESTS * MOST_POINTS:,} of them at most"
            )
        before = self._server.requests
        tables = []
        windows = tuple(ranges(start_ns, end_ns, step_ns))
        for first, last in windows:
            answer = self._server.ask(
                "/api/v1/query_range",
                query=query,
                start=_seconds(first),
                end=_seconds(last),
                step=_seconds(step_ns),
                # cached results of VictoriaMetrics may lack recent points
                nocache="1",
            )
            tables += [
                self._series(one, query, (first, last, step_ns)) for one in self._matrix(answer)
            ]
        table = pa.concat_tables([points(metric=[]), *tables]).unify_dictionaries().combine_chunks()
        return Kept(table, query, self._server.requests - before, windows)

    def _matrix(self, answer: Any) -> list[Any]:
        try:
            if answer["data"]["resultType"] != "matrix":
                raise KeyError
            result = answer["data"]["result"]
        except (KeyError, TypeError):
            raise self._server.strange("a matrix of series") from None
        if answer.get("isPartial"):
            raise self._server.incomplete("a storage node of the server that did not answer")
        # such as those of Thanos, and of remote storage; remarks on the query itself begin with PromQL
        warnings = answer.get("warnings") or []
        reasons = [str(w) for w in warnings if not str(w).startswith("PromQL ")]
        if reasons:
            raise self._server.incomplete(printable(reasons[0][:200]))
        if not isinstance(result, list):
            raise self._server.strange("a list of series")
        return result

    def _series(self, one: Any, query: str, window: tuple[int, int, int]) -> pa.Table:
        first, last, step_ns = window
        if isinstance(one, dict) and "histograms" in one:
            raise BadInput(
                f"{self._server.url}: found native histograms for {query!r}; expected numbers, such as those "
                "of histogram_quantile"
            )
        try:
            labels = {str(k): str(v) for k, v in one["metric"].items()}
            times, values = zip(*one["values"], strict=True) if one["values"] else ((), ())
            seconds = np.asarray(times, np.float64)
            numbers = np.asarray(values, np.str_).astype(np.float64)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._server.strange("times and numbers of a series") from None
        # the server rounds timestamps to milliseconds; round them to the nearest step
        steps = np.rint((seconds * 1e9 - first) / step_ns).astype(np.int64)
        right = np.isfinite(numbers) & (steps >= 0) & (first + steps * step_ns <= last)
        metric = labels.pop("__name__", query)[:500]
        labels = {name: value for name, value in labels.items() if value}
        return points(
            metric=[metric] * int(right.sum()),
            labels=canonical_labels(labels),
            utc_ns=first + steps[right] * step_ns,
            float=numbers[right],
            unit=unit_of(metric),
        )
