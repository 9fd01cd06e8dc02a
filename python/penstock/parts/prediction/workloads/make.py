"""Workloads by name: the synthetic patterns and the two applications."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.applications import DATABASE_BYTES, IMAGES, blast, montage
from penstock.parts.prediction.workloads.check import MOST_SECONDS
from penstock.parts.prediction.workloads.synthetic import PATTERNS, SIZES, Shape
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.spec.units import MOST_BYTES

#: tasks of a made workload: beyond, reading it takes longer than anyone waits
MOST_TASKS = 1_000_000
#: the largest value of an option
MOST = {
    "file_bytes": 2**50,
    "compute_s": MOST_SECONDS,
    "launch": MOST_SECONDS,
    "every_s": MOST_SECONDS,
    "queries": 1_000_000,
}

KINDS = (*PATTERNS, "blast", "montage")


def made(kind: str, size: str = "medium", options: Mapping[str, Any] | None = None) -> Workload:
    """The workload of that name; options that are None, or that the kind does not have, are passed over.

    Options: fields of `Shape`, arguments of the pattern's function; blast and montage take `width`,
    `file_bytes` (blast: of its database), `compute_s` (blast: of a query), `queries`, `optimised`.
    """
    if kind not in KINDS:
        raise BadInput(f"the workload {kind!r}; expected {', '.join(KINDS)}")
    if size not in DATABASE_BYTES:
        raise BadInput(f"the size {size!r}; expected {', '.join(DATABASE_BYTES)}")
    given = {k: v for k, v in (options or {}).items() if v is not None}
    for name in ("compute_s", "launch", "every_s"):
        if name in given and not (math.isfinite(given[name]) and given[name] >= 0):
            raise BadInput(f"{name} is {given[name]}; a finite number of at least 0 is expected")
    for name, most in MOST.items():
        if name in given and not 0 <= given[name] <= most:
            raise BadInput(f"{name} is {given[name]:,}; 0 to {most:,.0f} is expected")
    side_by_side = given.get("width", 1)
    in_turn = 8 if kind == "montage" else max(given.get("stages", 3), given.get("rounds", 3))
    if side_by_side * in_turn > MOST_TASKS:
        found = f"{side_by_side:,} tasks side by side, {in_turn:,} in turn"
        raise BadInput(f"found {found}; expected at most {MOST_TASKS:,} tasks in all")
    workload = _of_kind(kind, size, given)
    largest = max(workload.file_sizes.values())
    if largest > MOST_BYTES:
        raise BadInput(f"found a file of {largest:,} bytes; expected at most {MOST_BYTES:,} (2^60)")
    if "launch" not in given:
        return workload
    tasks = tuple(replace(task, launch=given["launch"]) for task in workload.tasks)
    return replace(workload, tasks=tasks)


def _of_kind(kind: str, size: str, given: Mapping[str, Any]) -> Workload:
    if kind == "blast":
        return blast(
            given.get("width", 19),
            database_bytes=given.get("file_bytes", DATABASE_BYTES[size]),
            queries=given.get("queries", 200),
            query_s=given.get("compute_s") or 1.0,
            optimised=given.get("optimised", False),
            replicas=given.get("replicas", 2),
        )
    if kind == "montage":
        return montage(given.get("width", IMAGES[size]), optimised=given.get("optimised", False))
    shape = {k: v for k, v in given.items() if k in Shape.__dataclass_fields__}
    more = inspect.signature(PATTERNS[kind]).parameters
    own = {k: v for k, v in given.items() if k in more}
    return PATTERNS[kind](Shape(**{"file_bytes": SIZES[kind][size], **shape}), **own)
