"""What is asked of an experiment's data, and the answer: a table in a format, part by part."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import plugins
from penstock.errors import BadInput
from penstock.observe.monitor.door import CLOCK
from penstock.observe.monitor.experiments import Experiment, Experiments, Unknown
from penstock.observe.monitor.export import MEDIA, as_bytes, joined
from penstock.observe.monitor.lacking import Verdict, verdict_of
from penstock.observe.monitor.points import Batch, canonical_labels, points
from penstock.observe.monitor.recorded import Recorded, labels_of, recorded
from penstock.observe.monitor.targets import ELSEWHERE, Target, Targets, checked_options


@dataclass(frozen=True)
class Answer:
    """Its parts, their media type, the experiment's state, what of its points was lost, late or twice, and
    which of its series are not complete."""

    parts: Iterator[bytes]
    media: str
    state: str
    totals: Mapping[str, int]
    verdict: Verdict


def answer(
    store: Experiments, targets: Targets, name: str, sees: str | None, said: Mapping[str, Any]
) -> Answer:
    """Data of the experiment `name` as a user sees it, by options of `targets.OPTIONS`.

    Raises Unknown for an experiment, metric or phase that is none, BadInput for wrong options.
    """
    options = targets.options(checked_options(said))
    found = store.find(name, sees)
    wanted = options.get("format", "csv")
    axis = options.get("type")
    if wanted not in MEDIA:
        raise BadInput(f"found format {wanted!r}; expected one of {', '.join(MEDIA)}")
    if axis not in (None, "timestamp", "duration", "sample"):
        raise BadInput(f"found type {axis!r}; expected timestamp, duration or sample")
    start_ns, end_ns = window(found, options.get("phase"))
    made, metric = data_of(store, targets, found, options, start_ns, end_ns)
    if options.get("clocks", "recorded") == "corrected":
        made = corrected(made, store.recorded(found, CLOCK), found.name)
    elif options.get("clocks", "recorded") != "recorded":
        raise BadInput(f"found clocks {options['clocks']!r}; expected recorded or corrected")
    labels, origin_ns = options.get("labels"), found.start_ns
    table = joined(made, metric, start_ns, end_ns, axis=axis, labels=labels, origin_ns=origin_ns)
    if table is None:
        raise Unknown(f"found no metric {metric!r} in {found.name}#{found.repeat}")
    parts = as_bytes(table, wanted)
    head = next(parts)  # what cannot be written is told before the answer begins

    def content() -> Iterator[bytes]:
        yield head
        yield from parts

    refused = made.gaps.filter(pc.equal(made.gaps["kind"].cast(pa.string()), "refused")).to_pylist()
    verdict = verdict_of(table.about, found.running, refused)
    return Answer(content(), MEDIA[wanted], found.state, table.totals, verdict)


def corrected(made: Recorded, clock: Recorded, name: str) -> Recorded:
    """Points on the store's clock: of each source that compared its own with it, by what it found before and
    after, and in between by a straight line. BadInput where none of these sources did."""
    offsets = {
        labels_of(r["labels"]).get("source"): r["series_id"] for r in clock.series.to_pylist()
    }
    numbers = made.points["series_id"].to_numpy()
    times = made.points["utc_ns"].to_numpy(zero_copy_only=False).copy()
    known = False
    for row in made.series.to_pylist():
        mine = clock.points.filter(
            pc.equal(clock.points["series_id"], offsets.get(row["source"], -1))
        )
        if not len(mine) or row["kind"] != "time":
            continue
        known = True
        at, ahead_s = mine["utc_ns"].to_numpy(), mine["float"].to_numpy()
        which = numbers == row["series_id"]
        since = (times[which] - at[0]).astype(np.float64)
        ahead_ns = np.interp(since, (at - at[0]).astype(np.float64), ahead_s * 1e9)
        times[which] -= np.rint(ahead_ns).astype(times.dtype)
    if not known:
        raise BadInput(
            f"found no measured clock of who sent this to {name}; expected recorded times"
        )
    column = made.points.schema.get_field_index("utc_ns")
    field = made.points.schema.field(column)
    moved = made.points.set_column(column, field, pa.array(times, field.type))
    return replace(made, points=moved)


def window(found: Experiment, phase: str | None) -> tuple[int, int]:
    """From when to when an experiment, or one of its phases, lasted [ns since 1970 UTC]."""
    end_ns = found.end_ns if found.end_ns is not None else time.time_ns()
    if phase is None:
        return found.start_ns, end_ns
    named = [p for p in found.phases if p.name == phase or p.name.rpartition("/")[2] == phase]
    if not named:
        said = ", ".join(p.name for p in found.phases) or "none"
        raise Unknown(f"found no phase {phase!r} in {found.name}; expected one of {said}")
    return named[0].start_ns, named[-1].end_ns or end_ns


def data_of(
    store: Experiments,
    targets: Targets,
    found: Experiment,
    options: Mapping[str, Any],
    start_ns: int,
    end_ns: int,
) -> tuple[Recorded, str]:
    """What is asked for: of this store, or read from a server elsewhere; and its metric's name."""
    if any(key in options for key in ELSEWHERE):
        server = options.get("server", "default")
        target = targets.servers.get(server)
        if target is None:
            raise Unknown(
                f"found server {server!r}; expected one of {', '.join(targets.servers) or 'none'}"
            )
        table = _read(target, options, start_ns, end_ns)
        name = str(options.get("metric") or options.get("query") or options["measurement"])
        same = {n: table[n] for n in table.column_names if n != "metric"}
        if "measurement" in options:  # its fields stay apart
            fields = table["metric"].combine_chunks().dictionary_decode().to_pylist()
            texts = table["labels"].combine_chunks().dictionary_decode().to_pylist()
            same["labels"] = [
                canonical_labels({**labels_of(t), "field": f})
                for t, f in zip(texts, fields, strict=True)
            ]
        named = points(metric=[name] * table.num_rows, **same)
        return recorded([Batch(server, 0, named)], start_ns, end_ns), name
    if "metric" not in options:
        raise BadInput("found no metric; expected metric, or server with query or measurement")
    metric = options["metric"]
    return store.recorded(found, metric), metric


def _read(target: Target, options: Mapping[str, Any], start_ns: int, end_ns: int) -> pa.Table:
    """Points of a server elsewhere, by the reader that its type has."""
    readers = next((t for t in plugins.TABLES if t.name == "metric-servers"), None)
    if readers is None:
        raise BadInput(
            f"found a server of type {target.type!r}; expected none, as nothing reads them"
        )
    settings = {"database": options.get("database", "monex")} if "measurement" in options else {}
    url = target.address if "://" in target.address else f"http://{target.address}"
    query = options.get("query") or _selected(options)
    reader = readers.load(target.type)(url, settings)
    return reader.read(query, start_ns, end_ns, _step_ns(options.get("step", "1s"))).points


def _selected(options: Mapping[str, Any]) -> str:
    """A measurement's fields in InfluxQL, whose names cannot be parameters: they are quoted."""

    def quoted(name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("$", "") + '"'

    fields = ", ".join(map(quoted, options.get("fields", []))) or "*"
    where = "WHERE time >= $start AND time <= $end GROUP BY *"
    return f"SELECT {fields} FROM {quoted(options['measurement'])} {where}"


def _step_ns(said: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?", said)
    if found is None or float(found[1]) <= 0:
        raise BadInput(f"found step {said[:80]!r}; expected one as 1s, 250ms or 5m")
    return round(float(found[1]) * {"ms": 1e6, "s": 1e9, "m": 6e10, "h": 3.6e12}[found[2] or "s"])
