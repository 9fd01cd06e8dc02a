"""The manager: `python -m tests.chunkstore.manager SETTINGS`, settings as one JSON object.

It stores the location of each chunk of each file. A call takes `service_s` (its journal, which accepts any
number of calls at once) and holds the lock of the metadata briefly; with `coarse_lock`, all the time. `nodes`
is the number of storage servers, `constant_shuffle` the bug in the order of a stripe, `seed` that of random
orders, `record` the file of its records.
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

    def handle(self, link: socket.socket, reader: Reader) -> None:
        """Serve a connection: calls, one after the other."""
        while (request := reader.message()) is not None:
            begin_s = time.monotonic()
            call: Callable[[Message], Message] = getattr(self, f"do_{request['call']}")
            if self.coarse_lock:
                with self._lock:
                    locked_s = time.monotonic()
                    answer = call(request)
                    until(locked_s + self.service_s)
                wait_s = locked_s - begin_s
            else:
                wait_start_s = time.monotonic()
                with self._lock:
                    wait_s = time.monotonic() - wait_start_s
                    answer = call(request)
                until(begin_s + self.service_s)
            send(link, answer)
            self.recorder.record(
                module="manager",
                operation=request["call"],
                trial=request["trial"],
                begun=begin_s,
                ended=time.monotonic(),
                lock_wait=wait_s,
            )

    def do_open(self, request: Message) -> Message:
        return {"chunks": self._files.get(request["file"], [])}

    def do_alloc(self, request: Message) -> Message:
        """Places of `chunks` chunks: the nodes of a stripe, in a new random order for each request."""
        if request["node"] is not None:
            return {"nodes": [request["node"]] * request["chunks"]}
        stripe = sorted((self._next + i) % self.nodes for i in range(request["width"]))
        self._next += request["width"]
        generator = random.Random(1) if self.constant_shuffle else self._random
        generator.shuffle(stripe)
        return {"nodes": [stripe[i % len(stripe)] for i in range(request["chunks"])]}

    def do_commit(self, request: Message) -> Message:
        self._files.setdefault(request["file"], []).extend(request["nodes"])
        return {"committed": True}


def main() -> None:
    manager = Manager(json.loads(sys.argv[1]))
    serve(manager.handle, manager.recorder.write, on_accept=lambda: None)


if __name__ == "__main__":
    main()
