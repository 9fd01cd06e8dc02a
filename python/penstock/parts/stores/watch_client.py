"""Starts, asks and stops the process that watches the tags of a store."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import (
    connect,
    start_daemon,
    stop_entirely,
)

#: what runs in the process
_PROCESS = "penstock.parts.stores.watching"


def start_watch(store: str) -> dict[str, Any]:
    """Starts the process that watches a store which outlives this one; returns its address."""
    config = {"outlive_owner": True, "store": store}
    daemon = start_daemon("tags", config, Journal(), module=_PROCESS)
    return {"pid": daemon.pid, "socket": str(daemon.socket_path)}


def ask_watch(place: dict[str, Any]) -> dict[str, Any]:
    """Counts of the process (`TagWatch.told`), or `trouble` where it has ended."""
    daemon = connect("tags", place["pid"], place["socket"])
    try:
        return daemon.call("told", timeout_s=10.0)
    except PenstockError as error:
        return {"trouble": str(error)}
    finally:
        daemon.hang_up()


def stop_watch(place: dict[str, Any]) -> None:
    """Ends the process."""
    with contextlib.suppress(PenstockError):
        stop_entirely(connect("tags", place["pid"], place["socket"]), Journal())
