"""Start of the tracer's daemon. Imports no library: the BPF programs load while the caller imports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.observe.trace import RING_BYTES


class Settings(TypedDict, total=False):
    """Settings of the programs; the daemon has defaults.

    `ring_bytes` is for all CPUs together. `hooks` is the only permitted kind of hook (HOOKS); the features in
    `require` must be available. `drop_every` plants losses and `deny` refusals, for tests; `hot` (mode trace)
    stores events of the most used files only: `by` (hot.MEASURES), `share`, `first_s`, `first_requests`,
    `every_s`, each with a default. `streams` (mode pattern, for tests) is the number of sequences counted in
    the kernel; calls of others are reported individually (0: 65,536). `scope` filters the group's activity
    (`Scope.for_programs`), default: all.
    """

    ring_bytes: int
    drop_every: int
    hooks: str
    require: Sequence[str]
    deny: Sequence[str]
    scope: Mapping[str, Any] | None
    hot: Mapping[str, Any] | None
    streams: int


def start_programs(journal: Journal, mode: str, **settings: Unpack[Settings]) -> Daemon:
    """Start a daemon that loads the programs, and return at once.

    Raises PenstockError if the start cannot be recorded in the journal.
    """
    present = {name: value for name, value in settings.items() if value is not None}
    config = {"mode": mode, "ring_bytes": RING_BYTES, **present}
    return start_daemon("tracer", config, journal, wait=False)
