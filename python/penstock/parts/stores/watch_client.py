"""Start, status and stop of the process that watches the tags of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import (
    connect,
    start_daemon,
    stop_entirely,
)

#: module of the process
_PROCESS = "penstock.parts.stores.watching"


def start_watch(store: str) -> dict[str, Any]:
    """Start the watch of a store that outlives this process; returns its address."""
    config = {"outlive_owner": True, "store": store}
    daemon = start_daemon("tags", config, Journal(), module=_PROCESS)
    return {"pid": daemon.pid, "socket": str(daemon.socket_path)}


def ask_watch(place: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of the process (`TagWatch.report`), or `trouble` if it has ended."""
    daemon = connect("tags", place["pid"], place["socket"])
    try:
        return daemon.call("told", timeout_s=10.0)
    except PenstockError as error:
        return {"trouble": str(error)}
    finally:
        daemon.hang_up()


def stop_watch(place: Mapping[str, Any]) -> None:
    """End the process."""
    with contextlib.suppress(PenstockError):
        stop_entirely(connect("tags", place["pid"], place["socket"]), Journal())
