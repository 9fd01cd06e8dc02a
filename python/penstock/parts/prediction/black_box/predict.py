"""Time of a task on a learned storage: `task_time`, and its syntax on the command line."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.black_box.model import LEVEL, BlackBoxModel
from penstock.parts.prediction.black_box.space import Point, value_of
from penstock.parts.prediction.black_box.tasks import (
    TaskTime,
    further_run,
    scan_s,
    with_computing,
)
from penstock.spec.units import parse_duration, parse_size
from penstock.text import percentage

#: tasks → description in terms of the model
KINDS = {
    "scan": "read from one end to the other (also grep, table_scan): size "
    "[request, clients, nodes, storage]",
    "write": "write from one end to the other: size [request, clients, nodes, storage]",
    "skewed": "reads of a pattern, such as scans of rows: size, pattern "
    "[operation, request, clients, nodes, storage]",
    "mapreduce": "map_in, map_out, reduce_in, reduce_out (all of the job), nodes, reducers "
    "[shared, storage]",
}
#: arguments of a task that give its processor time
CPU_SOURCES = ("cpu_s", "command", "runs")
_SAME = {"grep": "scan", "table_scan": "scan"}
_JOB_SIZES = ("map_in", "map_out", "reduce_in", "reduce_out")
_PLACE = ("request", "clients", "nodes", "storage")
#: task → required and optional arguments
_ARGUMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "scan": (("size",), _PLACE),
    "write": (("size",), _PLACE),
    "skewed": (("size", "pattern"), ("operation", *_PLACE)),
    "mapreduce": ((*_JOB_SIZES, "nodes", "reducers"), ("shared", "request", "storage")),
}


def task_time(
    model: BlackBoxModel,
    kind: str,
    *,
    cpu_s: float | Sequence[float] | None = None,
    overlap: float | None = None,
    level: float = LEVEL,
    **options: Any,
) -> TaskTime:
    """Predicted time of a task [s] with its interval.

    `kind` and its sizes [bytes] are those of `KINDS`. Without `cpu_s` the time is that of the storage alone:
    a lower bound for a program that computes. `cpu_s`, the processor time of the task [s] (of the slowest
    node in a job) in one run or several, is added; `overlap` (0…1) defaults to the one measured on this
    storage, else 0. The interval then includes the variation of several processor times, and any overlap
    unless one is given. Outside of the measured grid the interval is wider, and `beyond` has the dimension.
    BadInput for an unknown kind, unsupported arguments, and an unmeasured category.
    """
    times = _processor_times(cpu_s)
    parts = _checked_parts(model, kind, overlap, options)
    points = [p for _, p in parts]
    outside = tuple(dict.fromkeys(b for p in points for b in model.beyond(p)))
    low_bps, high_bps = model.interval(points, level)
    io = sum(scan_s(b, x) for (b, _), x in zip(parts, model.throughput(points), strict=True))
    best = sum(scan_s(b, x) for (b, _), x in zip(parts, high_bps, strict=True))
    worst = sum(
        scan_s(b, x) if x > 0 else math.inf for (b, _), x in zip(parts, low_bps, strict=True)
    )
    storage = f"storage: {percentage(level)} interval of its throughput"
    if not times:
        covers = (storage,)
        return TaskTime(
            io, best, worst, "lower", io, None, None, level, outside, None, None, covers
        )
    omega = overlap if overlap is not None else (model.overlap.overlap if model.overlap else 0.0)
    # the measured throughput already includes copies from the page cache
    copied = sum(b for b, p in parts if p.operation == "read") * (model.cpu_s_per_byte or 0.0)
    mean, *ends = (max(0.0, v - copied) for v in (fmean(times), *further_run(times, level)))
    omegas = (omega, omega) if overlap is not None else (0.0, 1.0)
    return TaskTime(
        with_computing(io, mean, omega),
        with_computing(best, ends[0], omegas[1]),
        with_computing(worst, ends[1], omegas[0]),
        "none",
        io,
        mean,
        omega,
        level,
        outside,
        (ends[0], ends[1]),
        omegas,
        (storage, _computing_covered(times, level), _overlap_covered(overlap)),
    )


def _processor_times(cpu_s: float | Sequence[float] | None) -> tuple[float, ...]:
    if cpu_s is None:
        return ()
    times = (cpu_s,) if isinstance(cpu_s, int | float) else tuple(cpu_s)
    if not times or not all(math.isfinite(t) and t >= 0 for t in times):
        shown = ", ".join(f"{t:g}" for t in times) or "none"
        raise BadInput(f"found cpu_s {shown}; expected numbers of at least 0")
    return times


def _computing_covered(times: tuple[float, ...], level: float) -> str:
    if len(times) == 1:
        return "computing: one processor time, its variation between runs left out"
    return f"computing: {percentage(level)} interval of a further run, from {len(times)} runs"


def _overlap_covered(overlap: float | None) -> str:
    if overlap is not None:
        return f"overlap of computing and reading: {percentage(overlap)}, as given"
    return "overlap of computing and reading: from none to complete"


def _checked_parts(
    model: BlackBoxModel,
    kind: str,
    overlap: float | None,
    options: Mapping[str, Any],
) -> list[tuple[float, Point]]:
    """Bytes and point of each part of the task; BadInput for arguments that it does not have."""
    which = _SAME.get(kind, kind)
    if which not in KINDS:
        raise BadInput(f"found the task {kind!r}; expected {', '.join([*KINDS, *_SAME])}")
    required, optional = _ARGUMENTS[which]
    unknown = set(options).difference(required, optional)
    needed = [name for name in required if name not in options]
    if unknown or needed:
        what = f"{', '.join(sorted(unknown))} for" if unknown else f"no {', '.join(needed)} of"
        raise BadInput(f"found {what} the task {kind}; expected {KINDS[which]}")
    for name, value in [*options.items(), ("overlap", overlap)]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            least = 1 if name in ("nodes", "reducers") else 0
            if not (math.isfinite(value) and value >= least):
                raise BadInput(f"found {name} {value}; expected a number of at least {least}")
    return _mapreduce(model, options) if which == "mapreduce" else [_part(model, which, options)]


def _part(model: BlackBoxModel, kind: str, options: Mapping[str, Any]) -> tuple[float, Point]:
    """Bytes and point of a task of one part."""
    operation = "write" if kind == "write" else options.get("operation", "read")
    place = {**options, "request_bytes": options.get("request")}
    size = options["size"]
    return size, _point(model, size, operation, options.get("pattern", "sequential"), place)


def _mapreduce(model: BlackBoxModel, options: Mapping[str, Any]) -> list[tuple[float, Point]]:
    """`shared`: all nodes use this storage at once, as measured on several nodes, else as its clients;
    otherwise each has its own."""
    nodes, shared = options["nodes"], options.get("shared", True)
    on_nodes = len(model.space.nodes) > 1
    parts = []
    for name in _JOB_SIZES:
        phase, direction = name.split("_")
        workers = nodes if phase == "map" else min(options["reducers"], nodes)
        size = options[name] / workers
        place = {
            "request_bytes": options.get("request"),
            "storage": options.get("storage"),
            "clients": workers - 1 if shared and not on_nodes else 0,
            "nodes": (workers if shared else 1) if on_nodes else None,
        }
        operation = {"in": "read", "out": "write"}[direction]
        parts.append((size, _point(model, size, operation, "sequential", place)))
    return parts


def _point(
    model: BlackBoxModel, size: float, operation: str, pattern: str, place: Mapping[str, Any]
) -> Point:
    """The point of a part; dimensions of `place` without a value have the model's default."""
    dimensions = {
        name: place[name]
        for name in ("request_bytes", "clients", "nodes", "storage")
        if place.get(name) is not None
    }
    dimensions |= {"operation": operation, "pattern": pattern, "data_bytes": max(1, round(size))}
    return model.point(**dimensions)


def parse_task(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `scan size=1GiB cpu=2s clients=1` to the arguments of `task_time`; BadInput with the expected
    syntax.

    `command=` and `runs=`, sources of a processor time, are returned as they are.
    """
    try:
        kind, *arguments = shlex.split(text)
    except ValueError:
        kind, arguments = "", []
    if _SAME.get(kind, kind) not in KINDS:
        raise BadInput(
            f"--predict {text!r}: found {kind!r}; expected a task such as 'scan size=1GiB cpu=2s', one of "
            + ", ".join([*KINDS, *_SAME])
        )
    options: dict[str, Any] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        try:
            if not equals:
                raise ValueError("name=value")
            options[{"cpu": "cpu_s"}.get(name, name)] = _value(name, value)
        except ValueError as error:
            raise BadInput(f"--predict {text!r}: found {word!r}; expected {error}") from None
    if len(sources := [name for name in CPU_SOURCES if name in options]) > 1:
        shown = " and ".join({"cpu_s": "cpu"}.get(name, name) for name in sources)
        raise BadInput(f"--predict {text!r}: found {shown}; expected one of them")
    return kind, options


def _value(name: str, text: str) -> Any:
    if name in ("size", *_JOB_SIZES):
        return parse_size(text)
    if name == "cpu":
        return tuple(parse_duration(one) for one in text.split(","))
    if name in CPU_SOURCES and text:
        return text
    if name in ("pattern", "operation", "clients", "storage"):
        return value_of(name, text)
    if name == "request":
        return value_of("request_bytes", text)
    if name in ("nodes", "reducers"):
        if not text.isdecimal() or int(text) < 1:
            raise ValueError("an integer of at least 1")
        return int(text)
    if name == "overlap":
        share = float(text)
        if not 0 <= share <= 1:
            raise ValueError("a number from 0 to 1")
        return share
    if name == "shared":
        if text not in ("yes", "no"):
            raise ValueError("yes or no")
        return text == "yes"
    raise ValueError("size, cpu, command, runs, overlap, clients, request, … (see docs/learn.md)")
