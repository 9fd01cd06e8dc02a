"""Changes of a cluster's nodes as they are made: checked, applied on each, read back, answered for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.emulate.backends.base import Cause
from penstock.emulate.cluster.running import LiveCluster, LiveNode
from penstock.emulate.cluster.settings import Change
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Values


def change(held: LiveCluster, changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Makes changes, each on all of its nodes; an error is in the answer of the node it befell.

    Raises BadInput, before the first is made, for what makes no sense.
    """
    for change in changes:
        _check(held, change)
    pairs = [(change, node) for change in changes for node in held.chosen(change.nodes)]
    return make(held, pairs, None)


def fire(held: LiveCluster, change: Change, planned_ns: int, cause: Cause) -> list[dict[str, Any]]:
    """As `change`, of one that was due at `planned_ns`; input errors are in the answers, too."""
    pairs = [(change, node) for node in held.chosen(change.nodes)]
    return make(held, pairs, planned_ns, cause)


def make(
    held: LiveCluster,
    pairs: Sequence[tuple[Change, LiveNode]],
    planned_ns: int | None,
    cause: Cause | None = None,
) -> list[dict[str, Any]]:
    """Changes of processors and memory are made on all nodes before the first is read back.

    All are written down in the journal before the first is made; of what is due at a time, that must not
    wait for the disk. Raises JournalFailure where that is not possible; nothing is changed then.
    """
    told = [_altering(held, node, change) for change, node in pairs]
    held.journal.alter([each for altered in told for each in altered], synced=planned_ns is None)
    answers: dict[int, dict[str, Any]] = {}
    of_links = [n for n, (change, _) in enumerate(pairs) if change.resource == "network"]
    if len(of_links) > 1:
        made = _change_links(held, [pairs[n] for n in of_links], planned_ns)
        answers = dict(zip(of_links, made, strict=False))
    readers: dict[int, Callable[[], dict[str, Any]]] = {
        n: _begin(held, node, change, planned_ns or time.monotonic_ns(), cause or Cause())
        for n, (change, node) in enumerate(pairs)
        if n not in answers
    }
    found = [answers[n] if n in answers else readers[n]() for n in range(len(pairs))]
    held.journal.found(
        made
        for (change, node), altered in zip(pairs, told, strict=True)
        if node.group is not None and change.resource in ("cpu", "memory")
        for _, values in altered
        for made in node.group.made_of(Path(path) for path in values)
    )
    return [{**one, "cause": asdict(cause or Cause())} for one in found]


def _altering(held: LiveCluster, node: LiveNode, change: Change) -> list[tuple[Entry, Values]]:
    """What a change of a node sets, for the journal; nothing where making it will be refused."""
    if node.group is None:
        return []
    with contextlib.suppress(PenstockError, OSError):
        if change.resource in ("cpu", "memory"):
            settings = node.settings
            writes = [] if settings is None else settings.writes(change.resource, change.patch)
            return node.group.altering(writes)
        if change.resource == "disk":
            return held.disks.altering(node.name, change.name, change.patch)
        if change.resource == "network":
            return held.links.altering(node.name, change.name, change.patch)
        state = change.patch.get("state")
        writes = node.group.freeze_writes(state == "frozen")
        return node.group.altering(writes if state in ("frozen", "running") else [])
    return []


def _check(held: LiveCluster, change: Change) -> None:
    change.check()
    for node in held.chosen(change.nodes):
        spec = node.spec
        there = {
            "disk": [disk.name for disk in spec.disks],
            "network": [link.network for link in spec.links],
        }.get(change.resource)
        if there is None or change.name in there:
            continue
        if not there or change.name is not None or len(there) > 1 or change.resource == "disk":
            names = ", ".join(there) or "none"
            raise BadInput(f"{node.name} has no {change.resource} {change.name!r}; it has {names}")


def _change_links(
    held: LiveCluster, pairs: Sequence[tuple[Change, LiveNode]], planned_ns: int | None
) -> list[dict[str, Any]]:
    """Many links at once; nothing where that is refused: then each is tried, and says what is wrong."""
    if len({node.name for _, node in pairs}) < len(pairs):
        return []  # the second patch of a link has to see the first
    try:
        asked = [(node.name, c.name, c.patch) for c, node in pairs]
        made = held.links.set(asked)
    except (PenstockError, OSError):
        return []
    due = {} if planned_ns is None else {"planned_ns": planned_ns}
    return [
        {"node": node.name, "resource": "network", "name": c.name, **one, **due}
        for (c, node), one in zip(pairs, made, strict=True)
    ]


def _begin(
    held: LiveCluster, node: LiveNode, change: Change, planned_ns: int, cause: Cause
) -> Callable[[], dict[str, Any]]:
    """Makes a change on one node; what it gives reads it back and gives the fields of `Applied`."""
    said: dict[str, Any] = {
        "node": node.name,
        "resource": change.resource,
        "name": change.name,
        "planned_ns": planned_ns,
    }
    try:
        if node.state == "failed" and change.resource != "node":
            raise PenstockError(f"node {node.name} has failed: {node.failure}")
        if change.resource in ("cpu", "memory"):
            settings = node.settings
            if settings is None:
                raise PenstockError(f"node {node.name} is {node.state}")
            applied = settings.change(change.resource, change.patch)
            return lambda: _read(
                said, change, lambda: settings.verified(change.resource, change.patch, applied)
            )
        answer = {**said, **_make_change(held, node, change, cause), "planned_ns": planned_ns}
        return lambda: answer
    except (PenstockError, OSError) as error:
        failed = _failed(said, change, error)
        return lambda: failed


def _make_change(held: LiveCluster, node: LiveNode, change: Change, cause: Cause) -> dict[str, Any]:
    if change.resource == "disk" and "power_cut" in change.patch:
        return asdict(held.cut_power(node, change.name, change.patch, cause))
    if change.resource == "disk":
        return asdict(held.disks.patch(node.name, change.name, change.patch, cause))
    if change.resource == "network":
        return held.links.set([(node.name, change.name, change.patch)])[0]
    return held.set_state(node, str(change.patch.get("state")))


def _read(
    said: dict[str, Any], change: Change, reads: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return {**said, **reads()}
    except (PenstockError, OSError) as error:
        return _failed(said, change, error)


def _failed(said: dict[str, Any], change: Change, error: Exception) -> dict[str, Any]:
    now = time.monotonic_ns()
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    times = {"applied_ns": now, "verified_ns": now}
    return {**said, **times, "asked": change.patch, "found": {}, "error": words}
