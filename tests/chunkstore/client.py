"""A client: opens and writes files, chunk by chunk, each over its own connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from tests.chunkstore.recorder import Recorder
from tests.chunkstore.wire import Message, Reader, send, until

#: attempts to send a chunk to a server that resets the connection
_TRIES = 5


class Client:
    """One client. `rate_bps` is the rate of its network card, which sends frames of `frame_bytes`."""

    def __init__(
        self,
        name: str,
        manager: int,
        storage: Sequence[int],
        *,
        rate_bps: float,
        chunk_bytes: int,
        frame_bytes: int,
        recorder: Recorder,
        token: str,
    ) -> None:
        self.name = name
        self.trial = ""
        self._storage = list(storage)
        self._rate_bps = rate_bps
        self._frames = [frame_bytes] * (chunk_bytes // frame_bytes)
        if rest := chunk_bytes % frame_bytes:
            self._frames.append(rest)
        self._data = memoryview(bytes(max(self._frames)))
        self._recorder = recorder
        self._token = token
        self._link = socket.create_connection(("127.0.0.1", manager))
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader(self._link)

    def open(self, file: str) -> None:
        begin_s = time.monotonic()
        self._call({"call": "open", "file": file})
        self._record("open", begin_s)

    def write(self, file: str, chunks: int, *, width: int, node: int | None = None) -> None:
        """Request places, send each chunk and wait until it is stored, then inform the manager."""
        begin_s = time.monotonic()
        allocation = self._call({"call": "alloc", "chunks": chunks, "width": width, "node": node})
        for i, target in enumerate(allocation["nodes"]):
            self._store_with_retries(f"{file}.{i}", target)
        self._call({"call": "commit", "file": file, "nodes": allocation["nodes"]})
        self._record("write", begin_s)

    def close(self) -> None:
        self._reader.close()
        self._link.close()

    def _store_with_retries(self, chunk: str, node: int) -> None:
        """Send a chunk, again if the server's kernel dropped the connection because its queue was full."""
        begin_s = time.monotonic()
        for remaining in reversed(range(_TRIES)):
            try:
                self._store(chunk, node, begin_s)
            except ConnectionResetError:
                if not remaining:
                    raise
            else:
                break

    def _store(self, chunk: str, node: int, begin_s: float) -> None:
        with socket.create_connection(("127.0.0.1", self._storage[node])) as link:
            connected_s = time.monotonic()
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = Reader(link)
            request = {"chunk": chunk, "frames": self._frames}
            send(link, {**request, "trial": self.trial, "token": self._token})
            deadline_s = connected_s
            for size in self._frames:
                deadline_s += size / self._rate_bps
                until(deadline_s)
                link.sendall(self._data[:size])
            answer = reader.message()
            reader.close()
        if answer is None or answer["stored"] != chunk:
            raise ConnectionError(f"{chunk} was not stored")
        self._recorder.record(
            module="client", operation="write", trial=self.trial, connect=connected_s - begin_s
        )

    def _call(self, message: Message) -> Message:
        send(self._link, {**message, "trial": self.trial, "token": self._token})
        answer = self._reader.message()
        if answer is None:
            raise ConnectionError(f"the manager has left {self.name}")
        return answer

    def _record(self, operation: str, begin_s: float) -> None:
        self._recorder.record(
            module="client",
            operation=operation,
            trial=self.trial,
            begun=begin_s,
            ended=time.monotonic(),
        )
