"""A storage server: `python -m tests.chunkstore.storage SETTINGS`, settings as one JSON object.

`dir` contains the chunks; `rate_bps` is the rate of its network card, which serves frames in the order of
their arrival; `service_s` is the time to store a chunk on its only device; `accept_s` the time to accept a
connection; `short_backlog` the bug; `record` the file of its records.
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
    """A single-server queue, first come first served, by deadlines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = 0.0

    def complete(self, arrival_s: float, service_s: float) -> float:
        """Completion time of a request that arrived at `arrived`."""
        with self._lock:
            self._free = max(self._free, arrival_s) + service_s
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
            begin_s = received_s = time.monotonic()
            frames = []
            for size in request["frames"]:
                frames.append(reader.exactly(size))
                received_s = self._card.complete(time.monotonic(), size / self.rate_bps)
            complete_s = self._device.complete(received_s, self.service_s)
            (self.dir / request["chunk"]).write_bytes(b"".join(frames))
            until(complete_s)
            send(link, {"stored": request["chunk"]})
            self.recorder.record(
                module="storage",
                operation="write",
                node=self.node,
                trial=request["trial"],
                bytes=sum(request["frames"]),
                begun=begin_s,
                received=received_s,
                ended=time.monotonic(),
            )


def main() -> None:
    settings = json.loads(sys.argv[1])
    storage = Storage(settings)
    serve(
        storage.handle,
        storage.recorder.write,
        backlog=1 if settings["short_backlog"] else BACKLOG,
        on_accept=lambda: time.sleep(settings["accept_s"]) if settings["accept_s"] else None,
    )


if __name__ == "__main__":
    main()
