"""Workloads by name: the synthetic patterns and the two applications."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import BadInput
from penstock.workload.applications import DATABASE_BYTES, IMAGES, blast, montage
from penstock.workload.synthetic import PATTERNS, SIZES, Shape
from penstock.workload.workflow import Workload

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
    workload = _of_kind(kind, size, given)
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
