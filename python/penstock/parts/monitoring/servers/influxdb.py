"""InfluxQL queries of InfluxDB 1.x. `$start` and `$end` are replaced by the times:

    SELECT busy FROM disk WHERE time >= $start AND time <= $end GROUP BY *

Settings: `database`, `user`, `password`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.collector import only, setting
from penstock.parts.monitoring.experiments.points import canonical_labels, points
from penstock.parts.monitoring.servers.reader import Kept, Server, check_window

#: integers up to this size are exact as floats
_EXACT = 1 << 53


class InfluxReader:
    """Reads the result of a query; points have the server's timestamps [ns]."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        only("influxdb", settings, ("database", "user", "password"))
        self._database = setting("influxdb", settings, "database", str, ...)
        rest = {key: value for key, value in settings.items() if key != "database"}
        self._server = Server(url, **rest)

    def read(self, query: str, start_ns: int, end_ns: int, step_ns: int) -> Kept:
        """As `ServerReader.read`, but with the step of the query. A field `f` of `m` is the metric `m_f`."""
        check_window(start_ns, end_ns, step_ns)
        if "$start" not in query or "$end" not in query:
            raise BadInput(f"found {query!r}; expected a query with $start and $end")
        before = self._server.requests
        sent = query.replace("$start", str(start_ns)).replace("$end", str(end_ns))
        answer = self._server.ask("/query", q=sent, db=self._database, epoch="ns")
        tables = [points(metric=[])]
        names: set[tuple[str, str]] = set()
        try:
            for result in answer["results"]:
                if "error" in result:
                    raise BadInput(
                        f"{self._server.url}: found {query!r}; its error: {result['error']}"
                    )
                for series in result.get("series", []):
                    if result.get("partial") or series.get("partial"):
                        raise self._server.incomplete("max-row-limit of the server")
                    of_series = self._tables(series)
                    new = {(m, labels) for m, labels, _ in of_series}
                    if new & names:
                        raise BadInput(
                            f"{self._server.url}: found {min(new & names)[0]!r} several times for {query!r}; "
                            "expected different names, such as those of AS"
                        )
                    names |= new
                    tables += [table for _, _, table in of_series]
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, pa.ArrowException):
            raise self._server.strange("results of series") from None
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        return Kept(table, sent, self._server.requests - before)

    @staticmethod
    def _tables(series: Any) -> list[tuple[str, str, pa.Table]]:
        """Metric, labels and points of each column, and of each kind of its values."""
        names = series["columns"]
        columns = dict(zip(names, zip(*series["values"], strict=True), strict=True))
        tags = {str(k): str(v) for k, v in series.get("tags", {}).items() if v}
        tables = []
        for name in names:
            if name == "time":
                continue
            rows = [
                (t, v) for t, v in zip(columns["time"], columns[name], strict=True) if v is not None
            ]
            of_kind: dict[str, list[tuple[int, Any]]] = {}
            for t, value in rows:
                kind, converted = _typed(value)
                of_kind.setdefault(kind, []).append((t, converted))
            metric = series["name"] if name == "value" else f"{series['name']}_{name}"
            for kind, pairs in of_kind.items():
                values: dict[str, Any] = {kind: [v for _, v in pairs]}
                labels = canonical_labels(tags)
                table = points(
                    metric=[metric] * len(pairs),
                    labels=labels,
                    utc_ns=[t for t, _ in pairs],
                    **values,
                )
                tables.append((metric, labels, table))
        return tables


def _typed(value: Any) -> tuple[str, Any]:
    """Column of a value among `points.VALUES`, and the value for it.

    JSON does not tell integers from floats: an integer is one if a float cannot represent it.
    """
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, str):
        return "text", value
    if isinstance(value, int) and _EXACT < abs(value) < 1 << 63:
        return "integer", value
    return "float", float(value)
