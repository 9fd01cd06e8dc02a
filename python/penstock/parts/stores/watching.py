"""Process that watches the tags of a store after its command has ended (`tag_watch.py`)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.processes.control import answering, listen, usual_answer
from penstock.host.processes.daemon import (
    leave_no_trace,
    run_daemon,
    say_ready,
)
from penstock.parts.stores.store import Store
from penstock.parts.stores.tag_watch import TagWatch

_LOOK_EVERY_S = 0.25


class _Daemon:
    """Answers on its socket; ends on request or with its store."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._name: str = config["store"]
        self._watch = TagWatch(lambda: Store.find(self._name))
        self._ending = threading.Event()
        self._socket = Path(config["socket"])

    def serve(self, ready_fd: int | None) -> None:
        """Serve until it ends."""
        about = Store.find(self._name).cluster.home / "store.json"
        self._watch.hold()
        listener = listen(self._socket)
        answering(listener, self._answer)
        say_ready(ready_fd)
        changed = 0
        while not self._ending.wait(_LOOK_EVERY_S):
            try:
                now = about.stat().st_mtime_ns
            except FileNotFoundError:
                break
            if now != changed:
                changed = now
                with contextlib.suppress(PenstockError):
                    self._watch.hold()
        listener.close()
        self._watch.close()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("cmd") == "told":
            return {"ok": True, **self._watch.report()}
        return usual_answer(request.get("cmd"), self._ending)


def main(argv: list[str]) -> int:
    """Entry point: `python -m penstock.parts.stores.watching tags CONFIG.json`."""

    def serve(config: dict[str, Any]) -> None:
        _Daemon(config).serve(config.get("ready_fd"))
        leave_no_trace()

    return run_daemon(argv, serve)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
