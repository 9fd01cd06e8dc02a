"""The trace of nodes on one host; these functions run in the worker of that host.

`begin`, `end`, `read` until there is no more, and `release`, which also ends a recording without `end`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.archive.bundle import Bundle
from penstock.campaign.places.stage import nodes_and_disks
from penstock.emulate.cluster.cluster import Cluster, RunningNode
from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.observe.observer import Watched
from penstock.observe.recorder import OWN_CLOCK, Recorder, finish_bundle, new_bundle
from penstock.scratch import Scratch
from penstock.state import state_dir

#: name of the bundle in the archive
BUNDLE = "trace"
_CHUNK = 8 << 20


@dataclass
class _Recording:
    """A recording, and the archive of its bundle after its end."""

    stack: contextlib.ExitStack
    recorder: Recorder
    bundle: Bundle
    nodes: Sequence[RunningNode]
    #: node of each control group
    groups: dict[int, str]
    start_ns: int
    archive: Path


#: recordings of this worker by cluster
_RECORDINGS: dict[str, _Recording] = {}


def begin(name: str, nodes: Sequence[str], observers: Mapping[str, Mapping[str, Any]]) -> None:
    """Start to record these nodes of a cluster; `observers`: their settings, by name."""
    cluster = Cluster.find(name)
    chosen = cluster.chosen(nodes)
    journal = Journal()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(Scratch("trace"))
        bundle = stack.enter_context(new_bundle(journal, folder / BUNDLE, []))
        assert bundle is not None
        recorder = stack.enter_context(Recorder.of_names(journal, state_dir(), observers))
        recorder.start(_watched(cluster, chosen), folder)
        start_ns, groups = time.monotonic_ns(), _groups(chosen)
        archive = folder / f"{BUNDLE}.tar"
        _RECORDINGS[name] = _Recording(
            stack.pop_all(), recorder, bundle, chosen, groups, start_ns, archive
        )


def end(name: str) -> None:
    """End the recording, and pack its bundle; the entry `nodes` of its manifest has the control groups."""
    one = _RECORDINGS[name]
    run = one.start_ns, time.monotonic_ns()
    groups = one.groups | _groups(one.nodes)
    seen = one.recorder.finish(one.bundle, run)
    clocks = [row | OWN_CLOCK for row in seen.clocks]
    phase = {"phase_id": "workload", "start_ns": run[0], "end_ns": run[1]}
    facts = {"nodes": {str(group): node for group, node in groups.items()}}
    finished = finish_bundle(
        one.bundle, dataclasses.replace(seen, clocks=clocks), [phase], 0, run, facts
    )
    with tarfile.open(one.archive, "w") as tar:
        tar.add(finished, arcname=BUNDLE)


def read(name: str, at: int) -> bytes:
    """Bytes of the packed bundle from a position, at most 8 MiB; empty at its end."""
    with _RECORDINGS[name].archive.open("rb") as file:
        file.seek(at)
        return file.read(_CHUNK)


def release(name: str) -> None:
    """Remove the recording, if any, and its files."""
    if (one := _RECORDINGS.pop(name, None)) is not None:
        one.stack.close()


def _watched(cluster: Cluster, nodes: Sequence[RunningNode]) -> Watched:
    watched = Watched(nodes[0].cgroup, None, **nodes_and_disks(nodes))
    if len(nodes) == 1:
        return watched
    if cluster.above is None:
        raise PenstockError(
            "several nodes of a host cannot be traced at once here: their control groups have no common "
            "parent in the unified hierarchy (mount -t cgroup2; not with `runtime`); trace one node"
        )
    return dataclasses.replace(watched, scope=cluster.above.stat().st_ino)


def _groups(nodes: Sequence[RunningNode]) -> dict[int, str]:
    """Node of each control group of the unified hierarchy."""
    return {
        os.stat(directory).st_ino: node.name
        for node in nodes
        if "unified" in node.cgroup.paths
        for directory, _, _ in os.walk(node.cgroup.paths["unified"])
    }
