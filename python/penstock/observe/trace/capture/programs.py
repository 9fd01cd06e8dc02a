"""Start of the tracer's daemon. Imports no library: the BPF programs load while the caller imports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.observe.trace import RING_BYTES


def start_programs(
    journal: Journal,
    mode: str,
    *,
    ring_bytes: int = RING_BYTES,
    drop_every: int = 0,
    hooks: str = "auto",
    require: Sequence[str] = (),
    deny: Sequence[str] = (),
    scope: Mapping[str, Any] | None = None,
    hot: Mapping[str, Any] | None = None,
    streams: int = 0,
) -> Daemon:
    """Start a daemon that loads the programs, and return at once; see `Tracer` for the settings.

    Raises PenstockError if the start cannot be recorded in the journal.
    """
    config: dict[str, Any] = {"mode": mode, "ring_bytes": ring_bytes, "drop_every": drop_every}
    config |= {"streams": streams}
    config |= {"hooks": hooks, "require": list(require), "deny": list(deny)}
    config |= {"scope": dict(scope)} if scope else {}
    config |= {"hot": dict(hot)} if hot is not None else {}
    return start_daemon("tracer", config, journal, wait=False)
