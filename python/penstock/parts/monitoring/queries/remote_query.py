"""A query to a remote server about an experiment, and its answer as points of one metric."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.experiment import Unknown
from penstock.parts.monitoring.experiments.points import canonical_labels, points, series_of
from penstock.parts.monitoring.experiments.recorded import labels_of
from penstock.parts.monitoring.experiments.targets import REMOTE, Target, Targets, shown
from penstock.plugins import METRIC_SERVERS

if TYPE_CHECKING:
    from penstock.parts.monitoring.servers.reader import Kept

DEFAULT_SERVER = "default"
_DATABASE = "monex"


@dataclass(frozen=True)
class Question:
    """A query to a server, in its own language; `metric`: name of the answer here.

    `fields_apart`: it is of a measurement, whose fields become a label.
    """

    metric: str
    server: str
    query: str
    step_ns: int
    database: str = ""
    fields_apart: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Question:
        """By checked options of a request or of a named metric."""
        measurement = options.get("measurement")
        query = options.get("query") or (None if measurement is None else _selected(options))
        if not query:
            raise BadInput("found neither query nor measurement; expected one of them")
        name = options.get("metric") or options.get("query") or measurement
        return cls(
            str(name),
            options.get("server", DEFAULT_SERVER),
            query,
            _step_ns(options.get("step", "1s")),
            options.get("database", _DATABASE if "measurement" in options else ""),
            "measurement" in options,
        )

    def document(self) -> dict[str, Any]:
        """The question as in a receipt."""
        return {
            "metric": self.metric,
            "server": self.server,
            "query": self.query,
            "step_ns": self.step_ns,
            "database": self.database,
        }

    def is_of(self, receipt: Mapping[str, Any]) -> bool:
        """True if a receipt is of the same question, whatever the name of its answer."""
        same = all(receipt[k] == getattr(self, k) for k in ("query", "step_ns", "database"))
        return same and self.server in (receipt["server"], receipt["address"])


def is_remote(options: Mapping[str, Any]) -> bool:
    """True if options refer to a remote server instead of the local store."""
    return any(key in options for key in REMOTE)


def target_of(question: Question, targets: Targets) -> Target:
    """The server of a question. Raises Unknown if the configuration has none of that name."""
    target = targets.servers.get(question.server)
    if target is None:
        names = ", ".join(targets.servers) or "none"
        raise Unknown(f"found server {question.server!r}; expected one of {names}")
    return target


def address_of(target: Target) -> str:
    """The URL of a server, without user and password."""
    return shown(_url(target))


def read(target: Target, question: Question, start_ns: int, end_ns: int) -> Kept:
    """The server's points of a window, under the question's name.

    Raises BadInput if it refuses the query, Upstream if it does not answer properly.
    """
    settings = {"database": question.database} if question.database else {}
    reader = METRIC_SERVERS.load(target.type)(_url(target), settings)
    reply: Kept = reader.read(question.query, start_ns, end_ns, question.step_ns)
    table = reply.points
    same = {n: table[n] for n in table.column_names if n != "metric"}
    series, of_row = series_of(table)
    texts = {text for _, text in series}
    if question.fields_apart or len(set(series)) > len(texts):
        # its fields, or series of several metrics, stay apart
        label = "field" if question.fields_apart else _unused_label(texts)
        named = [canonical_labels({**labels_of(text), label: name}) for name, text in series]
        codes = pa.array(of_row, pa.int32())
        same["labels"] = pa.DictionaryArray.from_arrays(codes, pa.array(named, pa.string()))
    return replace(reply, points=points(metric=[question.metric] * table.num_rows, **same))


def _unused_label(texts: Iterable[str]) -> str:
    """A label for the names of series that none of these labels has."""
    used = {label for text in texts for label in labels_of(text)}
    return next(label for n in count() if (label := f"name{n or ''}") not in used)


def _url(target: Target) -> str:
    return target.address if "://" in target.address else f"http://{target.address}"


def _selected(options: Mapping[str, Any]) -> str:
    """A measurement's fields in InfluxQL, whose names cannot be parameters: they are quoted."""

    def quoted(name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("$", "") + '"'

    fields = ", ".join(map(quoted, options.get("fields", []))) or "*"
    where = "WHERE time >= $start AND time <= $end GROUP BY *"
    return f"SELECT {fields} FROM {quoted(options['measurement'])} {where}"


def _step_ns(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?", text)
    if match is None or float(match[1]) <= 0:
        raise BadInput(f"found step {text[:80]!r}; expected one as 1s, 250ms or 5m")
    return round(float(match[1]) * {"ms": 1e6, "s": 1e9, "m": 6e10, "h": 3.6e12}[match[2] or "s"])
