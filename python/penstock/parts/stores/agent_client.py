"""Short requests to nodes of a store, answered by a resident program in each node (`node_agent.py`)."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError

_INSIDE = Path(__file__).with_name("node_agent.py")
_PIECE = 1 << 16
#: poll interval of a waiting request for a closed session; longest wait for a killed program [s]
_LOOK_EVERY_S, _END_WITHIN_S = 0.5, 5.0
#: longest JSON reply [bytes]
_MOST_REPLY = 256 << 20


class Sessions:
    """One resident program per contacted node, until this process or the node ends."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], _Session] = {}
        self._lock = threading.Lock()

    def request(self, node: RunningNode, name: str, *arguments: Any, timeout_s: float) -> Any:
        """Reply of `node_agent.py`. PenstockError if it fails, times out or the node is gone."""
        argv = node.enter([sys.executable, "-I", "-S", "-u", "-c", _INSIDE.read_text()])
        key = (node.name, node.start_ticks)  # a restarted node has other start ticks
        with self._lock:
            session = self._open.get(key)
            if session is None or not session.alive:
                session = self._open[key] = _Session(node.name, argv)
        reply = session.request([name, *arguments], timeout_s)
        if "error" in reply:
            raise PenstockError(f"{node.name}: {reply['error']}")
        return reply["result"]

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


class _Session:
    """Program in one node; requests of several threads are serialised."""

    def __init__(self, name: str, argv: list[str]) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closed = False
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """True if it still accepts requests."""
        return self._process.poll() is None

    def request(self, message: list[Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write((json.dumps(message) + "\n").encode())
                self._process.stdin.flush()
                return dict(json.loads(self._line(time.monotonic() + timeout_s)))
            except (OSError, ValueError) as error:
                self.close()
                raise PenstockError(
                    f"{self._name}: what answers inside of it ended: {error}"
                ) from None

    def _line(self, until: float) -> bytes:
        assert self._process.stdout is not None
        fd, text = self._process.stdout.fileno(), bytearray()
        while not text.endswith(b"\n"):
            remaining_s = until - time.monotonic()
            if remaining_s <= 0 or self._closed:
                raise ValueError("no answer in time")
            if not select.select([fd], [], [], min(remaining_s, _LOOK_EVERY_S))[0]:
                continue
            piece = self._process.stdout.read1(_PIECE)  # type: ignore[attr-defined]
            if not piece:
                raise ValueError("it printed nothing more")
            text += piece
            if len(text) > _MOST_REPLY:
                raise ValueError("its answer is too long")
        return bytes(text)

    def close(self) -> None:
        """Kill it in any state; if it waits in the kernel for a dead store, it ends with its mount."""
        assert self._process.stdin is not None
        self._closed = True
        if self.alive:
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
