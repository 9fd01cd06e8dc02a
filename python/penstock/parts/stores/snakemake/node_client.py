"""The program in a node that runs jobs (`node_jobs.py`), as seen from this process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.node_script import node_script
from penstock.parts.stores.snakemake.node_jobs import Line, Request

AGENT = Path(__file__).with_name("node_jobs.py")
_END_WITHIN_S = 10.0

#: node, and its line; None when its program has ended
Heard = Callable[[str, Line | None], None]


class NodeClient:
    """Program of one node; ends with this process, and the node's jobs with it."""

    def __init__(self, node: RunningNode, heard: Heard) -> None:
        """Start it. Raises PenstockError if the node is not up."""
        self._name, self._heard = node.name, heard
        argv = [sys.executable, "-I", "-S", "-u", "-c", node_script(AGENT)]
        self._process = subprocess.Popen(
            node.enter(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # a partial line: the program died while writing
                self._heard(self._name, json.loads(line))
        self._heard(self._name, None)

    def send(self, request: Request) -> None:
        """Send a request. Raises PenstockError if the node has died."""
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise PenstockError(f"node {self._name} cannot run further jobs: {error}") from None

    def close(self) -> None:
        """End it; its jobs are killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # with its child, the program in the node
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._listener.join(_END_WITHIN_S)
