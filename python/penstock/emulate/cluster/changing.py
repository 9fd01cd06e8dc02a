"""Changes of a cluster's nodes: checked, applied on each node, read back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.emulate.backends.base import Cause
from penstock.emulate.cluster.running import LiveCluster, LiveNode
from penstock.emulate.cluster.settings import Change
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Values


def change(cluster: LiveCluster, changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Make changes, each on all of its nodes; errors are in the results of the nodes.

    Raises BadInput, before any change, for contradictory values.
    """
    for change in changes:
        _check(cluster, change)
    pairs = [(change, node) for change in changes for node in cluster.chosen(change.nodes)]
    return make(cluster, pairs, None)


def fire(
    cluster: LiveCluster, change: Change, planned_ns: int, cause: Cause
) -> list[dict[str, Any]]:
    """As `change`, for one that was due at `planned_ns`; input errors are in the results, too."""
    pairs = [(change, node) for node in cluster.chosen(change.nodes)]
    return make(cluster, pairs, planned_ns, cause)


def make(
    cluster: LiveCluster,
    pairs: Sequence[tuple[Change, LiveNode]],
    planned_ns: int | None,
    cause: Cause | None = None,
) -> list[dict[str, Any]]:
    """Change processors and memory on all nodes before the first is read back.

    All changes are recorded in the journal first; scheduled ones do not wait for the disk there. Raises
    JournalFailure if that is not possible, without any change.
    """
    planned = [_altering(cluster, node, change) for change, node in pairs]
    cluster.journal.alter(
        [each for altered in planned for each in altered], synced=planned_ns is None
    )
    answers: dict[int, dict[str, Any]] = {}
    of_links = [n for n, (change, _) in enumerate(pairs) if change.resource == "network"]
    if len(of_links) > 1:
        results = _change_links(cluster, [pairs[n] for n in of_links], planned_ns)
        answers = dict(zip(of_links, results, strict=False))
    readers: dict[int, Callable[[], dict[str, Any]]] = {
        n: _begin(cluster, node, change, planned_ns or time.monotonic_ns(), cause or Cause())
        for n, (change, node) in enumerate(pairs)
        if n not in answers
    }
    applied = [answers[n] if n in answers else readers[n]() for n in range(len(pairs))]
    cluster.journal.read_back(
        reading
        for (change, node), altered in zip(pairs, planned, strict=True)
        if node.group is not None and change.resource in ("cpu", "memory")
        for _, values in altered
        for reading in node.group.readings_of(Path(path) for path in values)
    )
    return [{**one, "cause": asdict(cause or Cause())} for one in applied]


def _altering(cluster: LiveCluster, node: LiveNode, change: Change) -> list[tuple[Entry, Values]]:
    """Values that a change of a node sets, for the journal; none if the change will be refused."""
    if node.group is None:
        return []
    with contextlib.suppress(PenstockError, OSError):
        if change.resource in ("cpu", "memory"):
            settings = node.settings
            writes = [] if settings is None else settings.writes(change.resource, change.patch)
            return node.group.altering(writes)
        if change.resource == "disk":
            return cluster.disks.altering(node.name, change.name, change.patch)
        if change.resource == "network":
            return cluster.links.altering(node.name, change.name, change.patch)
        state = change.patch.get("state")
        writes = node.group.freeze_writes(state == "frozen")
        return node.group.altering(writes if state in ("frozen", "running") else [])
    return []


def _check(cluster: LiveCluster, change: Change) -> None:
    change.check()
    for node in cluster.chosen(change.nodes):
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
    cluster: LiveCluster, pairs: Sequence[tuple[Change, LiveNode]], planned_ns: int | None
) -> list[dict[str, Any]]:
    """Change many links at once; empty if that is refused: then each is tried separately for its own
    message."""
    if len({node.name for _, node in pairs}) < len(pairs):
        return []  # the second patch of a link must see the first
    try:
        requests = [(node.name, c.name, c.patch) for c, node in pairs]
        results = cluster.links.set(requests)
    except (PenstockError, OSError):
        return []
    due = {} if planned_ns is None else {"planned_ns": planned_ns}
    return [
        {"node": node.name, "resource": "network", "name": c.name, **one, **due}
        for (c, node), one in zip(pairs, results, strict=True)
    ]


def _begin(
    cluster: LiveCluster, node: LiveNode, change: Change, planned_ns: int, cause: Cause
) -> Callable[[], dict[str, Any]]:
    """Make a change on one node; the returned function reads it back and returns the fields of `Applied`."""
    fields: dict[str, Any] = {
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
                fields, change, lambda: settings.verified(change.resource, change.patch, applied)
            )
        answer = {**fields, **_make_change(cluster, node, change, cause), "planned_ns": planned_ns}
        return lambda: answer
    except (PenstockError, OSError) as error:
        failed = _failed(fields, change, error)
        return lambda: failed


def _make_change(
    cluster: LiveCluster, node: LiveNode, change: Change, cause: Cause
) -> dict[str, Any]:
    if change.resource == "disk" and "power_cut" in change.patch:
        return asdict(cluster.cut_power(node, change.name, change.patch, cause))
    if change.resource == "disk":
        return asdict(cluster.disks.patch(node.name, change.name, change.patch, cause))
    if change.resource == "network":
        return cluster.links.set([(node.name, change.name, change.patch)])[0]
    return cluster.set_state(node, str(change.patch.get("state")))


def _read(
    fields: Mapping[str, Any], change: Change, reads: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return {**fields, **reads()}
    except (PenstockError, OSError) as error:
        return _failed(fields, change, error)


def _failed(fields: Mapping[str, Any], change: Change, error: Exception) -> dict[str, Any]:
    now = time.monotonic_ns()
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    times = {"applied_ns": now, "verified_ns": now}
    return {**fields, **times, "asked": change.patch, "found": {}, "error": reason}
