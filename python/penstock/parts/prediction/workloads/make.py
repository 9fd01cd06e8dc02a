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

#: limit of tasks of a workload: reading more takes too long
MOST_TASKS = 1_000_000
#: maximum of each option
MOST = {
    "file_bytes": 2**50,
    "compute_s": MOST_SECONDS,
    "launch": MOST_SECONDS,
    "every_s": MOST_SECONDS,
    "queries": 1_000_000,
}

KINDS = (*PATTERNS, "blast", "montage")
#: options of the applications, and those of `Shape` that a pattern does not use
_OPTIONS = {
    "blast": frozenset(
        ("width", "file_bytes", "compute_s", "launch", "queries", "replicas", "optimised")
    ),
    "montage": frozenset(("width", "launch", "optimised")),
}
_WITHOUT = {"checkpoint": {"compute_s", "staged"}}


def make_workload(
    kind: str, size: str = "medium", options: Mapping[str, Any] | None = None
) -> Workload:
    """The workload of that name; ignores options that are None or that the kind does not have (`options_of`).

    Options: fields of `Shape`, arguments of the pattern's function; blast takes `file_bytes` of its database
    and `compute_s` of a query.
    """
    if kind not in KINDS:
        raise BadInput(f"the workload {kind!r}; expected {', '.join(KINDS)}")
    if size not in DATABASE_BYTES:
        raise BadInput(f"the size {size!r}; expected {', '.join(DATABASE_BYTES)}")
    chosen = {k: v for k, v in (options or {}).items() if v is not None}
    for name in ("compute_s", "launch", "every_s"):
        if name in chosen and not (math.isfinite(chosen[name]) and chosen[name] >= 0):
            raise BadInput(f"{name} is {chosen[name]}; a finite number of at least 0 is expected")
    for name, most in MOST.items():
        if name in chosen and not 0 <= chosen[name] <= most:
            raise BadInput(f"{name} is {chosen[name]:,}; 0 to {most:,.0f} is expected")
    side_by_side = chosen.get("width", 1)
    in_turn = 8 if kind == "montage" else max(chosen.get("stages", 3), chosen.get("rounds", 3))
    if side_by_side * in_turn > MOST_TASKS:
        widths = f"{side_by_side:,} tasks side by side, {in_turn:,} in turn"
        raise BadInput(f"found {widths}; expected at most {MOST_TASKS:,} tasks in all")
    workload = _of_kind(kind, size, chosen)
    largest = max(workload.file_sizes.values())
    if largest > MOST_BYTES:
        raise BadInput(f"found a file of {largest:,} bytes; expected at most {MOST_BYTES:,} (2^60)")
    if "launch" not in chosen:
        return workload
    tasks = tuple(replace(task, launch=chosen["launch"]) for task in workload.tasks)
    return replace(workload, tasks=tasks)


def options_of(kind: str) -> frozenset[str]:
    """Options of `make_workload` that have an effect on that kind."""
    if kind in _OPTIONS:
        return _OPTIONS[kind]
    own = inspect.signature(PATTERNS[kind]).parameters.keys() - {"shape"}
    return frozenset({*Shape.__dataclass_fields__, *own} - _WITHOUT.get(kind, set()))


def _of_kind(kind: str, size: str, chosen: Mapping[str, Any]) -> Workload:
    if kind == "blast":
        return blast(
            chosen.get("width", 19),
            database_bytes=chosen.get("file_bytes", DATABASE_BYTES[size]),
            queries=chosen.get("queries", 200),
            query_s=chosen.get("compute_s", 1.0),
            optimised=chosen.get("optimised", False),
            replicas=chosen.get("replicas", 2),
        )
    if kind == "montage":
        return montage(chosen.get("width", IMAGES[size]), optimised=chosen.get("optimised", False))
    shape = {k: v for k, v in chosen.items() if k in Shape.__dataclass_fields__}
    more = inspect.signature(PATTERNS[kind]).parameters
    own = {k: v for k, v in chosen.items() if k in more}
    return PATTERNS[kind](Shape(**{"file_bytes": SIZES[kind][size], **shape}), **own)
