"""Run the tasks of one client node: fork a process for each, which executes the task's operations.

Started inside the node by its path, standard library only. Reads tasks as JSON lines on stdin; writes a line
for each that ends, with times of CLOCK_MONOTONIC, which all nodes of a host share. A crashed task has a line
with the cause. At the end of stdin, running tasks are killed.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from typing import Any

BLOCK = 1 << 20
PR_SET_PDEATHSIG = 1
#: longest wait for the status of a process that closed its pipe [s]
REAP_WITHIN_S = 2.0


class Child:
    """Process of one task, and its partial answer."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid, self.text = name, pid, b""
        self.begin_ns = time.monotonic_ns()

    def answer(self) -> bytes:
        """Its own answer, else one with the cause of its death."""
        how = ended(self.pid)
        if self.text.endswith(b"\n"):
            return self.text
        died = {"task": self.name, "started_ns": self.begin_ns, "ended_ns": time.monotonic_ns()}
        return json.dumps({**died, "operations": [], "error": how}).encode() + b"\n"


def main() -> None:
    """Run tasks until stdin ends."""
    content = os.urandom(BLOCK)
    poller, children, rest = select.poll(), dict[int, Child](), b""
    poller.register(0, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            piece = os.read(fd, 1 << 16)
            if fd in children:
                children[fd].text += piece
                if not piece:
                    poller.unregister(fd)
                    os.close(fd)
                    put(1, children.pop(fd).answer())
            elif piece:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    reads, child = start(json.loads(line), content)
                    children[reads] = child
                    poller.register(reads, select.POLLIN)
            else:
                for child in children.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
                return


def start(task: dict[str, Any], content: bytes) -> tuple[int, Child]:
    """Fork the process of a task; returns the pipe of its answer."""
    reads, writes = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writes)
        return reads, Child(task["task"], pid)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    time.sleep(task.get("launch_s", 0.0))
    answer = {"task": task["task"], "started_ns": time.monotonic_ns(), "operations": []}
    try:
        run(task, content, answer["operations"])
        answer["error"] = ""
    except OSError as error:
        answer["error"] = f"{error.filename or task['task']}: {error.strerror}"
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["ended_ns"] = time.monotonic_ns()
    put(writes, (json.dumps(answer) + "\n").encode())
    os._exit(0)


def ended(pid: int) -> str:
    """End of a process, as text."""
    until = time.monotonic() + REAP_WITHIN_S
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    while not ended_pid and time.monotonic() < until:
        time.sleep(0.005)
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
    if ended_pid and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process {pid} was killed by signal {number} ({signal.Signals(number).name})"
    if ended_pid:
        return f"its process {pid} ended with status {os.waitstatus_to_exitcode(status)}, without an answer"
    return f"its process {pid} died"


def put(fd: int, text: bytes) -> None:
    """Write all bytes."""
    while text:
        text = text[os.write(fd, text) :]


def run(task: dict[str, Any], content: bytes, done: list[tuple[int, int, int]]) -> None:
    """Run the operations of one task in order, and record start and end of each."""
    for number, operation in enumerate(task["operations"]):
        begin = time.monotonic_ns()
        act(operation, task["keep_cache"], content)
        done.append((number, begin, time.monotonic_ns()))


def act(operation: dict[str, Any], keep_cache: bool, content: bytes) -> None:
    """Run one operation. Closing flushes: at its end the store has all writes."""
    op, path = operation["op"], str(operation.get("path"))
    if op == "compute":
        time.sleep(operation["seconds"])
    elif op == "open":
        os.close(os.open(path, os.O_RDONLY))
    elif op == "read":
        fd = os.open(path, os.O_RDONLY)
        with contextlib.closing(os.fdopen(fd, "rb", buffering=0)):
            read(fd, operation["offset_bytes"], operation["size_bytes"], path)
    elif op == "write":
        fd = opened(path)
        try:
            write(fd, operation["offset_bytes"], operation["size_bytes"], content)
            if not keep_cache:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    elif op == "set_xattr":
        if not os.path.exists(path):
            os.close(opened(path))
        for name, value in operation["attributes"].items():
            os.setxattr(path, name, value.encode())


def opened(path: str) -> int:
    """Open a file for writing; creates it and its directory if absent."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    except FileExistsError:  # MooseFS reports this for a concurrent creation by another client
        return os.open(path, os.O_WRONLY)


def read(fd: int, at: int, remaining: int, path: str) -> None:
    """Read all requested bytes; a shorter file is an error."""
    while remaining:
        got = len(os.pread(fd, min(BLOCK, remaining), at))
        if not got:
            raise OSError(0, f"ends at {at} bytes, {remaining} before what is to be read", path)
        at, remaining = at + got, remaining - got


def write(fd: int, at: int, remaining: int, content: bytes) -> None:
    """Write incompressible bytes."""
    while remaining:
        put = os.pwrite(fd, content[: min(BLOCK, remaining)], at)
        at, remaining = at + put, remaining - put


if __name__ == "__main__":
    main()
