"""The part of a cluster on one host; these functions run in the worker of that host.

Values are JSON, so that coordinator and host agree on nothing else. A part that the coordinator has not
confirmed is stopped by `undo` of the host once the worker has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypedDict

from penstock.emulate.cluster.cluster import Cluster, registered
from penstock.emulate.cluster.parallel import exit_status
from penstock.emulate.cluster.settings import Change
from penstock.emulate.cluster.survey import survey
from penstock.emulate.cluster.wire import from_json
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.plugins import STORE_ENGINES
from penstock.spec.cluster import ClusterSpec, Event
from penstock.state import state_dir
from penstock.version import version
from penstock.writing import write_atomic

#: largest output of a command that is returned [bytes]
_MOST_OUTPUT = 16 << 20
#: process groups of commands in nodes
_COMMANDS: set[int] = set()
#: clusters that wait for the other hosts
_UNCONFIRMED: dict[str, Cluster] = {}


class PartStatus(TypedDict):
    """Status of the nodes on one host; None if their supervisor does not respond."""

    status: Mapping[str, Any] | None
    failures: list[str]


class Executed(TypedDict):
    """Exit status of a command in a node, and its output; `cut`: its end is missing."""

    status: int
    stdout: bytes
    stderr: bytes
    cut: bool


def prepare() -> str:
    """Undo what dead commands left on this host; returns the version of penstock here."""
    undo(Journal())
    return version()


def require_engine(name: str) -> None:
    """Raise PenstockError if an engine of stores lacks programs on this host."""
    if lacking := STORE_ENGINES.load(name)().missing():
        raise PenstockError(f"{name}: {lacking}")


def start(spec: str, key: str) -> None:
    """Start nodes of a specification (`wire.to_json`, as text).

    `key` identifies the start: only `stop` with the same key stops these nodes.
    """
    read = from_json(ClusterSpec, json.loads(spec))
    if read.name in registered():
        raise BadInput(f"a cluster {read.name} is up on this host already")
    part = _part(read.name)
    part.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomic(part, key)
    try:
        cluster = Cluster.up(read, Journal(), outlive=True, complete=False)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _UNCONFIRMED[cluster.name] = cluster


def confirm(name: str) -> None:
    """Mark the part complete: from now on it survives the worker."""
    _UNCONFIRMED.pop(name).completed()


def schedule(name: str, events: Sequence[Any], start_ns: int) -> int:
    """Submit events, whose times count from `start_ns` of the monotonic clock of this host."""
    return Cluster.find(name).schedule([from_json(Event, e) for e in events], start_ns)


def status(name: str) -> PartStatus:
    """Status of the nodes here."""
    if name not in registered():
        return {"status": None, "failures": [f"no cluster {name} is up on this host"]}
    surveyed, failures = survey(name)
    return {
        "status": surveyed[0].status if surveyed else None,
        "failures": [f.message for f in failures],
    }


def execute(
    name: str, nodes: Sequence[str], argv: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Executed]:
    """Run a command in nodes at once, to its end; returns statuses and outputs, of at most 16 MiB each."""
    lines = {node.name: node.enter(argv, **options) for node in Cluster.find(name).chosen(nodes)}
    with ThreadPoolExecutor(len(lines)) as runners:
        return dict(zip(lines, runners.map(_run, lines.values()), strict=True))


def interrupt() -> None:
    """Terminate the commands that run in nodes for this worker."""
    for group in list(_COMMANDS):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)


def _run(line: Sequence[str]) -> Executed:
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        ) as child,
        ThreadPoolExecutor(2) as readers,
    ):
        _COMMANDS.add(child.pid)
        try:
            (out, more_out), (err, more_err) = readers.map(_beginning, (child.stdout, child.stderr))
            status = exit_status(child)
        finally:
            _COMMANDS.discard(child.pid)
    return {"status": status, "stdout": out, "stderr": err, "cut": more_out or more_err}


def _beginning(stream: IO[bytes]) -> tuple[bytes, bool]:
    """The first bytes of an output; True if there were more, which are discarded."""
    beginning, more = stream.read(_MOST_OUTPUT), False
    while stream.read(1 << 20):
        more = True
    return beginning, more


def change(name: str, changes: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Make changes (`Change` as JSON) of nodes here; all are checked before the first."""
    return Cluster.find(name).change([from_json(Change, c) for c in changes])


def stop(name: str, key: str) -> None:
    """Stop the nodes that `start` started with this key, and undo what dead commands left on this host."""
    _UNCONFIRMED.pop(name, None)
    part = _part(name)
    started = part.is_file() and part.read_text() == key
    if started and name in registered():
        with contextlib.suppress(BadInput):  # it was just ending
            Cluster.find(name).down()
    undo(Journal(), own=True)
    if started:
        if name in registered():
            raise PenstockError(f"the nodes of {name} are not stopped yet")
        part.unlink(missing_ok=True)


def _part(name: str) -> Path:
    """File with the key of the start of a cluster's nodes on this host."""
    return state_dir() / "cluster-parts" / name
