"""Processes of a job in a node: what the programs that run jobs there share (`node_script`).

Runs inside the node, standard library only.
"""

import contextlib
import os
import signal
import time

#: variable in the environment of all processes of a job
MARK = "PENSTOCK_JOB"


def new_mark() -> str:
    """A value of `MARK` that no other job has."""
    return os.urandom(8).hex()


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
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _belongs(pid: int, leader: int, variable: bytes) -> bool:
    """True for a process that has not ended, of this session or with this variable."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", "rb") as facts:
            state, _, _, session = facts.read().rpartition(b")")[2].split()[:4]
        if state in (b"Z", b"X"):
            return False
        if int(session) == leader:
            return True
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return variable in environment.read().split(b"\0")
    return False
