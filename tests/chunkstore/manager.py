"""The manager: `python -m tests.chunkstore.manager SETTINGS`, settings as one JSON object.

It keeps which chunk of which file is where. A call takes `service_s` (its journal, which takes any number of
calls at once) and, for a moment, the lock of the metadata; with `coarse_lock` it holds that all the time.
`nodes` is how many storage servers there are, `constant_shuffle` the bug in the order of a stripe, `seed`
what orders are drawn from, `record` a file for what it notes.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chunkstore.recorder import Recorder
from tests.chunkstore.server import serve
from tests.chunkstore.wire import Message, Reader, send, until


class Manager:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.service_s = float(settings["service_s"])
        self.nodes = int(settings["nodes"])
        self.coarse_lock = bool(settings["coarse_lock"])
        self.constant_shuffle = bool(settings["constant_shuffle"])
        self.recorder = Recorder(Path(settings["record"]) if settings.get("record") else None)
        self._lock = threading.Lock()
        self._files: dict[str, list[int]] = {}
        self._next = 0
        self._random = random.Random(settings["seed"])

    def one(self, link: socket.socket, reader: Reader) -> None:
        """A connection: calls, one after the other."""
        while (asked := reader.message()) is not None:
            begun = time.monotonic()
            call: Callable[[Message], Message] = getattr(self, f"do_{asked['call']}")
            if self.coarse_lock:
                with self._lock:
                    locked = time.monotonic()
                    answer = call(asked)
                    until(locked + self.service_s)
                waited = locked - begun
            else:
                before = time.monotonic()
                with self._lock:
                    waited = time.monotonic() - before
                    answer = call(asked)
                until(begun + self.service_s)
            send(link, answer)
            self.recorder.note(
                module="manager",
                operation=asked["call"],
                trial=asked["trial"],
                begun=begun,
                ended=time.monotonic(),
                lock_wait=waited,
            )

    def do_open(self, asked: Message) -> Message:
        return {"chunks": self._files.get(asked["file"], [])}

    def do_alloc(self, asked: Message) -> Message:
        """Places for so many chunks: the nodes of a stripe, in an order of its own for each request."""
        if asked["node"] is not None:
            return {"nodes": [asked["node"]] * asked["chunks"]}
        stripe = sorted((self._next + i) % self.nodes for i in range(asked["width"]))
        self._next += asked["width"]
        draw = random.Random(1) if self.constant_shuffle else self._random
        draw.shuffle(stripe)
        return {"nodes": [stripe[i % len(stripe)] for i in range(asked["chunks"])]}

    def do_commit(self, asked: Message) -> Message:
        self._files.setdefault(asked["file"], []).extend(asked["nodes"])
        return {"committed": True}


def main() -> None:
    manager = Manager(json.loads(sys.argv[1]))
    serve(manager.one, manager.recorder.write, greet=lambda: None)


if __name__ == "__main__":
    main()
