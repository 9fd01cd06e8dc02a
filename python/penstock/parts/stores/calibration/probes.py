"""Measurement programs inside nodes: start, query, stop."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError

#: TCP between two nodes
NETWORK = Path(__file__).with_name("netprobe.py")
#: a node's disk
DISK = Path(__file__).with_name("diskprobe.py")
_TIMEOUT_S = 60.0
_LEAVE_WITHIN_S = 5.0


@contextlib.contextmanager
def serving(node: RunningNode, address: str) -> Iterator[str]:
    """Port of the network probe in a node, for the duration of the block."""
    argv = [sys.executable, "-I", "-u", "-c", NETWORK.read_text(), "serve", address]
    server = subprocess.Popen(
        node.enter(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = server.stdout.readline().decode().strip()
        if not port:
            raise PenstockError(f"{node.name}: nothing could be started to measure its link")
        yield port
    finally:
        server.stdin.close()
        server.stdout.close()
        try:
            server.wait(_LEAVE_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def ask(node: RunningNode, probe: Path, *arguments: str) -> str:
    """Output of a probe in a node. PenstockError with its last line if it fails."""
    done = subprocess.run(
        node.enter([sys.executable, "-I", "-c", probe.read_text(), *arguments]),
        capture_output=True,
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise PenstockError(f"{node.name}: {' '.join(last) or 'a probe gave no answer'}")
    return done.stdout.decode()
