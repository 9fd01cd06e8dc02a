"""Processes of a job in a node: what the programs that run jobs there share (`node_script`).

Runs inside the node, standard library only.
"""

import contextlib
import os
import signal
import time

#: variable in the environment of all processes of a job
MARK = "PENSTOCK_JOB"
#: most bytes of an output that are retained: half from its beginning, half from its end
MOST_OUTPUT = 64 * 1024
#: most bytes of one read, and reads of a pipe after the end of its program: the largest pipe
_PIECE, _DRAINED = 1 << 16, 64


def new_mark() -> str:
    """A value of `MARK` that no other job has."""
    return os.urandom(8).hex()


def kill(pid: int) -> None:
    """Kill a process, unless it has ended."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def kill_job(leader: int, mark: str) -> None:
    """Kill all processes of a job: those of its session, also in groups of their own (timeout(1), job
    control), and those that left it (setsid(1)) with the job's mark in their environment.

    `leader`: leader of the session, whose number must not be free yet.
    """
    variable = f"{MARK}={mark}".encode()
    for _ in range(100):  # a process may fork meanwhile
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        pids = [pid for pid in numbers if _belongs(pid, leader, variable)]
        if not pids:
            return
        for pid in pids:
            kill(pid)
        time.sleep(0.001)


def _belongs(pid: int, leader: int, variable: bytes) -> bool:
    """True for a process that has not ended, of this session or with this variable."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", "rb") as facts:
            state, _, _, session = facts.read().rpartition(b")")[2].split()[:4]
        if state in (b"Z", b"X"):
            return False
        return int(session) == leader or has_variable(pid, variable)
    return False


def has_variable(pid: int, variable: bytes) -> bool:
    """True for a process with `NAME=value` in its environment; a zombie has none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
        return variable in environment.read().split(b"\0")
    return False


class Output:
    """Output of a job, read from a pipe while it runs: its beginning and its end."""

    def __init__(self, fd: int) -> None:
        self.fd, self._head, self._tail, self._dropped = fd, b"", b"", 0

    def take(self) -> bool:
        """Read a piece, at most what is there; False at the end."""
        piece, half = os.read(self.fd, _PIECE), MOST_OUTPUT // 2
        more = bool(piece)
        fits = half - len(self._head)
        self._head, piece = self._head + piece[:fits], piece[fits:]
        tail = self._tail + piece
        self._dropped += max(0, len(tail) - half)
        self._tail = tail[-half:]
        return more

    def drain(self) -> None:
        """Read what a program that has ended left in the pipe."""
        os.set_blocking(self.fd, False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_DRAINED):  # a process that was not killed may write for ever
                if not self.take():
                    return

    def text(self) -> str:
        """The retained output, with a note of what is not."""
        if not self._dropped:  # the border may be inside a character
            return (self._head + self._tail).decode(errors="replace")
        gap = f"\n[{self._dropped} bytes omitted]\n"
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")
