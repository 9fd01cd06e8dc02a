"""Operations on a complete store: collection of garbage, verification, usage. It may be mounted or not."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from penstock.errors import BadInput, PenstockError
from penstock.parts.dedup.mounts import DedupMount, find
from penstock.parts.dedup.options import DEFAULT_FAMILY, native

Operation = Literal["collect", "verify", "usage"]
#: called with the operation, completed steps and all steps
Progress = Callable[[str, int, int], None]
_MOST_S = 7 * 86400.0
_POLL_S = 0.3


def run(
    operation: Operation, path: Path, *, family: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Result of an operation on the store at `path`, or the store that is mounted there.

    `family` is the rule of families if the store is not mounted. Raises BadInput if there is no store, or if
    a client of another host uses it; PenstockError if it is damaged so that garbage cannot be collected.
    """
    served = _served(path)
    if served is None:
        try:
            answer = native.dedup_store(str(path), operation, family or DEFAULT_FAMILY)
        except ValueError as error:
            raise BadInput(str(error)) from None
        except RuntimeError as error:
            raise PenstockError(str(error)) from None
        return dict(json.loads(answer))
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(served, operation, progress, ended))
    if progress is not None:
        watcher.start()
    try:
        return served.daemon.call(operation, timeout_s=_MOST_S)
    finally:
        ended.set()
        if progress is not None:
            watcher.join()
        served.daemon.hang_up()


def _served(path: Path) -> DedupMount | None:
    with contextlib.suppress(BadInput):
        return find(path)
    return None


def _watch(
    served: DedupMount, operation: str, progress: Progress | None, ended: threading.Event
) -> None:
    """Report the server's progress over a second connection."""
    assert progress is not None
    other = find(served.mount).daemon
    try:
        while not ended.wait(_POLL_S):
            with contextlib.suppress(PenstockError):
                step = other.call("progress", timeout_s=5.0)
                progress(operation, step["done"], step["all"])
    finally:
        other.hang_up()
