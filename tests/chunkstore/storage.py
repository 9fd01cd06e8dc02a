"""A storage server: `python -m tests.chunkstore.storage SETTINGS`, settings as one JSON object.

`dir` contains the chunks; `rate_bps` is the rate of its network card, which serves frames in the order of
their arrival; `service_s` is the time to store a chunk on its only device; `accept_s` the time to accept a
connection; `short_backlog` the bug; `record` the file of its notes.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chunkstore.recorder import Recorder
from tests.chunkstore.server import BACKLOG, serve
from tests.chunkstore.wire import Reader, send, until


class Station:
    """One server with a queue: first come, first served, by deadlines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = 0.0

    def served(self, arrived: float, service_s: float) -> float:
        """Time at which a request that arrived at `arrived` has been served."""
        with self._lock:
            self._free = max(self._free, arrived) + service_s
            return self._free


class Storage:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.dir = Path(settings["dir"])
        self.rate_bps = float(settings["rate_bps"])
        self.service_s = float(settings["service_s"])
        self.node = str(settings["node"])
        self.recorder = Recorder(Path(settings["record"]) if settings.get("record") else None)
        self._card, self._device = Station(), Station()

    def handle(self, link: socket.socket, reader: Reader) -> None:
        """Serve a connection: store chunks, one after the other."""
        while (request := reader.message()) is not None:
            begin_s = received = time.monotonic()
            frames = []
            for size in request["frames"]:
                frames.append(reader.exactly(size))
                received = self._card.served(time.monotonic(), size / self.rate_bps)
            stored = self._device.served(received, self.service_s)
            (self.dir / request["chunk"]).write_bytes(b"".join(frames))
            until(stored)
            send(link, {"stored": request["chunk"]})
            self.recorder.note(
                module="storage",
                operation="write",
                node=self.node,
                trial=request["trial"],
                bytes=sum(request["frames"]),
                begun=begin_s,
                received=received,
                ended=time.monotonic(),
            )


def main() -> None:
    settings = json.loads(sys.argv[1])
    storage = Storage(settings)
    serve(
        storage.handle,
        storage.recorder.write,
        backlog=1 if settings["short_backlog"] else BACKLOG,
        greet=lambda: time.sleep(settings["accept_s"]) if settings["accept_s"] else None,
    )


if __name__ == "__main__":
    main()
