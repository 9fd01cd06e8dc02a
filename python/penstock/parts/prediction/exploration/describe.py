"""A configuration as text: `14 application + 5 storage hosts, 256 KiB chunks`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from penstock.parts.prediction.exploration.space.space import Axis, Candidate, Level, Space

_GROUPS = {"app": "application", "apps": "application", "node": "", "nodes": "", "hosts": ""}
_SETTINGS = {
    "store.chunk": "{} chunks",
    "placement": "{} placement",
    "store.placement": "{} placement",
    "store.replication": "{} replication",
    "store.window": "window of {}",
    "scheduler": "{} scheduling",
    "scheduler.kind": "{} scheduling",
    "power.frequency": "at {}",
    "preprocess.cache": "{} client cache",
    "network.bandwidth": "network of {}",
}
_UNIT = re.compile(r"(\d)([A-Za-z][A-Za-z/]*)$")


def describe(space: Space, candidate: Candidate, only: Collection[int] | None = None) -> str:
    """The levels of a candidate as text, in the order of the axes; axes of one level are omitted.

    `only`: indices of the axes to include.
    """
    counts: list[str] = []
    parts: list[str] = []
    for k, (axis, level) in enumerate(zip(space.axes, space.levels(candidate), strict=True)):
        if len(axis.levels) == 1 or (only is not None and k not in only):
            continue
        if all(_is_count(key) for key in axis.keys):
            counts += [f"{value} {group_word(key)}".strip() for key, value in level.values]
        else:
            parts.append(_phrase(axis, level, space.axes))
    if counts:
        parts.insert(0, f"{' + '.join(counts)} host{'' if counts == ['1'] else 's'}")
    return ", ".join(parts) or "the only configuration"


def _is_count(key: str) -> bool:
    return key.startswith("hosts.") and key.endswith(".count")


def _phrase(axis: Axis, level: Level, axes: Sequence[Axis]) -> str:
    label = spaced(level.label)
    kind = axis.name.rpartition(".")[2]
    if any(a is not axis and len(a.levels) > 1 and a.name.endswith(f".{kind}") for a in axes):
        return f"{axis.name} {label}"  # two axes would have the same text below
    if axis.name == "store.replicas":
        return "1 replica" if label == "1" else f"{label} replicas"
    if axis.name == "store.stripe":
        return "stripes over all hosts" if label == "all" else f"stripes of {label}"
    if axis.name in _SETTINGS:
        return _SETTINGS[axis.name].format(label)
    if axis.name.endswith(".profile"):
        return f"{label} storage"
    if axis.name.endswith(".frequency"):
        return f"at {label}"
    return f"{axis.name} {label}"


def group_word(key: str) -> str:
    """The group of `hosts.GROUP.count` as a word: `application` for app, nothing for nodes."""
    group = key.split(".")[1] if key.count(".") >= 2 else key
    return _GROUPS.get(group, group)


def spaced(label: str) -> str:
    """`256 KiB` for `256KiB`."""
    return _UNIT.sub(r"\1 \2", label)


def axis_word(axis: Axis) -> str:
    """Name of an axis in tables and figures."""
    if axis.name == "split":
        first, second = (key.split(".")[1] for key in axis.keys)
        return f"{first} + {second} hosts"
    if _is_count(axis.name):
        return f"{group_word(axis.name)} hosts".strip()
    return {
        "store.chunk": "chunk",
        "store.replicas": "replicas",
        "store.stripe": "stripe width",
        "store.placement": "placement",
        "scheduler": "scheduler",
        "scheduler.kind": "scheduler",
        "power.frequency": "frequency",
    }.get(axis.name, axis.name)
