"""One command in several nodes at once; output lines are prefixed with the node's name."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from penstock.emulate.cluster.cluster import RunningNode


def run_in(
    nodes: Sequence[RunningNode],
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
) -> int:
    """Run a command in these nodes at the same time; returns the highest status.

    A single node gets our standard input and output; several get none, and their lines are printed as they
    arrive. Raises PenstockError, before anything runs, for a node that cannot run it.
    """
    lines = [node.enter(argv, env=env, cwd=cwd, user=user) for node in nodes]
    if len(nodes) == 1:
        return exit_status(subprocess.Popen(lines[0]))
    width = max(len(node.name) for node in nodes)
    printing = threading.Lock()
    running, readers = [], []
    for node, line in zip(nodes, lines, strict=True):
        child = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        running.append(child)
        for source, sink in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            assert source is not None
            prefix = f"{node.name:<{width}} | "
            reader = threading.Thread(target=_copy, args=(source, sink, prefix, printing))
            reader.start()
            readers.append(reader)
    for reader in readers:
        reader.join()
    return max(exit_status(child) for child in running)


def _copy(source: IO[bytes], sink: IO[str], prefix: str, printing: threading.Lock) -> None:
    for line in source:
        with printing:
            sink.write(prefix + line.decode(errors="replace").rstrip("\n") + "\n")
            sink.flush()


def exit_status(child: subprocess.Popen[bytes]) -> int:
    """Exit status of a child at its end, as a shell has it: 128 and the signal that killed it."""
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the command received it as well: wait for its end
            continue
        return code if code >= 0 else 128 - code
