"""Time of a task on a learned storage: `task_time`, and its syntax on the command line."""

from __future__ import annotations

import inspect
import math
import shlex
from collections.abc import Callable
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.black_box.model import LEVEL, BlackBoxModel
from penstock.parts.prediction.black_box.space import Point, value_of
from penstock.parts.prediction.black_box.tasks import TaskTime, scan_s, with_computing
from penstock.spec.units import parse_duration, parse_size

#: tasks → description in terms of the model
KINDS = {
    "scan": "read from one end to the other (also grep, table_scan): size [request, clients]",
    "write": "write from one end to the other: size [request, clients]",
    "skewed": "reads of a pattern, such as scans of rows: size, pattern [operation, request, clients]",
    "mapreduce": "map_in, map_out, reduce_in, reduce_out (all of the job), nodes, reducers [shared]",
}
_SAME = {"grep": "scan", "table_scan": "scan"}


def task_time(
    model: BlackBoxModel,
    kind: str,
    *,
    cpu_s: float | None = None,
    overlap: float | None = None,
    level: float = LEVEL,
    **options: Any,
) -> TaskTime:
    """Predicted time of a task [s] with its interval.

    `kind` and its sizes [bytes] are those of `KINDS`. Without `cpu_s` the time is that of the storage alone:
    a lower bound for a program that computes. `cpu_s`, the processor time of the task [s] (of the slowest
    node in a job), is added; `overlap` (0…1) defaults to the one measured on this storage, else 0. Outside of
    the measured grid the interval is wider, and `beyond` has the dimension. BadInput for an unknown kind,
    unsupported arguments, and an unmeasured category.
    """
    which = _SAME.get(kind, kind)
    if which not in KINDS:
        raise BadInput(f"found the task {kind!r}; expected {', '.join([*KINDS, *_SAME])}")
    make: Callable[..., list[tuple[float, Point]]] = _PARTS[which]
    names = list(inspect.signature(make).parameters)[1:]
    unknown = set(options) - set(names)
    needed = [
        n
        for n, p in list(inspect.signature(make).parameters.items())[1:]
        if p.default is p.empty and n not in options
    ]
    if unknown or needed:
        what = f"{', '.join(sorted(unknown))} for" if unknown else f"no {', '.join(needed)} of"
        raise BadInput(f"found {what} the task {kind}; expected {KINDS[which]}")
    for name, value in [*options.items(), ("cpu_s", cpu_s), ("overlap", overlap)]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            least = 1 if name in ("nodes", "reducers") else 0
            if not (math.isfinite(value) and value >= least):
                raise BadInput(f"found {name} {value}; expected a number of at least {least}")
    parts = make(model, **options)
    points = [p for _, p in parts]
    outside = tuple(dict.fromkeys(b for p in points for b in model.beyond(p)))
    low_bps, high_bps = model.interval(points, level)
    io = sum(scan_s(b, x) for (b, _), x in zip(parts, model.throughput(points), strict=True))
    best = sum(scan_s(b, x) for (b, _), x in zip(parts, high_bps, strict=True))
    worst = sum(
        scan_s(b, x) if x > 0 else math.inf for (b, _), x in zip(parts, low_bps, strict=True)
    )
    if cpu_s is None:
        return TaskTime(io, best, worst, "lower", io, None, None, level, outside)
    omega = overlap if overlap is not None else (model.overlap.overlap if model.overlap else 0.0)
    # the measured throughput already includes copies from the page cache
    copied = sum(b for b, p in parts if p.operation == "read") * (model.cpu_s_per_byte or 0.0)
    computing = max(0.0, cpu_s - copied)
    times = [with_computing(t, computing, omega) for t in (io, best, worst)]
    return TaskTime(times[0], times[1], times[2], "none", io, computing, omega, level, outside)


def _scan(
    model: BlackBoxModel, size: float, request: int | None = None, clients: int = 0
) -> list[tuple[float, Point]]:
    return [(size, _point(model, size, "read", "sequential", request, clients))]


def _write(
    model: BlackBoxModel, size: float, request: int | None = None, clients: int = 0
) -> list[tuple[float, Point]]:
    return [(size, _point(model, size, "write", "sequential", request, clients))]


def _skewed(
    model: BlackBoxModel,
    size: float,
    pattern: str,
    operation: str = "read",
    request: int | None = None,
    clients: int = 0,
) -> list[tuple[float, Point]]:
    return [(size, _point(model, size, operation, pattern, request, clients))]


def _mapreduce(
    model: BlackBoxModel,
    map_in: float,
    map_out: float,
    reduce_in: float,
    reduce_out: float,
    nodes: int,
    reducers: int,
    shared: bool = True,
    request: int | None = None,
) -> list[tuple[float, Point]]:
    """`shared`: all nodes are clients of this storage; otherwise each has its own."""
    q = min(reducers, nodes)

    def part(size: float, operation: str, workers: int) -> tuple[float, Point]:
        own = size / workers
        others = workers - 1 if shared else 0
        return own, _point(model, own, operation, "sequential", request, others)

    return [
        part(map_in, "read", nodes),
        part(map_out, "write", nodes),
        part(reduce_in, "read", q),
        part(reduce_out, "write", q),
    ]


_PARTS: dict[str, Callable[..., list[tuple[float, Point]]]] = {
    "scan": _scan,
    "write": _write,
    "skewed": _skewed,
    "mapreduce": _mapreduce,
}


def _point(
    model: BlackBoxModel,
    size: float,
    operation: str,
    pattern: str,
    request: int | None,
    clients: int,
) -> Point:
    dimensions: dict[str, Any] = {"operation": operation, "pattern": pattern, "clients": clients}
    if request is not None:
        dimensions["request_bytes"] = request
    return model.point(**dimensions, data_bytes=max(1, round(size)))


def parse_task(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `scan size=1GiB cpu=2s clients=1` to the arguments of `task_time`; BadInput with the expected
    syntax."""
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
    return kind, options


def _value(name: str, text: str) -> Any:
    if name in ("size", "map_in", "map_out", "reduce_in", "reduce_out"):
        return parse_size(text)
    if name == "cpu":
        return parse_duration(text)
    if name in ("pattern", "operation", "clients"):
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
    raise ValueError("size, cpu, overlap, clients, request, pattern, … (see docs/learn.md)")
