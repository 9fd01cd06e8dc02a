"""The render API of Graphite. The query is a target: `servers.*.cpu`, `sumSeries(…)`.

A series whose name differs from the target has its name as the label `name`.

Settings: `user`, `password`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.collector import only
from penstock.parts.monitoring.experiments.points import canonical_labels, points
from penstock.parts.monitoring.servers.reader import Kept, Server, check_window

SECOND_NS = 1_000_000_000


class GraphiteReader:
    """Reads the series of a target; the step is that of the server's archives."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        only("graphite", settings, ("user", "password"))
        self._server = Server(url, **settings)

    def read(self, query: str, start_ns: int, end_ns: int, step_ns: int) -> Kept:
        """As `ServerReader.read`, at whole seconds, without points that the archive lacks."""
        check_window(start_ns, end_ns, step_ns)
        before = self._server.requests
        # `from` is exclusive
        first, last = -(-start_ns // SECOND_NS) - 1, end_ns // SECOND_NS
        form = {"target": query, "from": str(first), "until": str(last), "format": "json"}
        answer = self._server.ask("/render", **form)
        tables = [points(metric=[])]
        names: set[str] = set()
        try:
            for series in answer:
                rows = [
                    (int(t) * SECOND_NS, float(v)) for v, t in series["datapoints"] if v is not None
                ]
                rows = [
                    row for row in rows if start_ns <= row[0] <= end_ns and math.isfinite(row[1])
                ]
                tags = {str(k): str(v) for k, v in series.get("tags", {}).items()}
                name = tags.pop("name", series["target"])
                if name != query:
                    tags["name"] = name
                # functions such as keepLastValue change the target but not the tags
                if canonical_labels(tags) in names:
                    tags["target"] = str(series["target"])
                if (labels := canonical_labels(tags)) in names:
                    raise BadInput(
                        f"{self._server.url}: found several series {series['target']!r} for {query!r}; "
                        "expected different names, such as those of aliasByNode"
                    )
                names.add(labels)
                tables.append(
                    points(
                        metric=[str(name)[:500]] * len(rows),
                        labels=labels,
                        utc_ns=[t for t, _ in rows],
                        float=[v for _, v in rows],
                    )
                )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._server.strange("targets with datapoints") from None
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        return Kept(table, query, self._server.requests - before)
