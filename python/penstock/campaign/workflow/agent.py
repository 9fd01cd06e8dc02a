"""What runs on each client node: forks a process for each task, which does the task's operations for real.

Started inside the node by its path, with the standard library alone. Reads tasks as JSON lines on stdin;
writes a line for each that ends: times of CLOCK_MONOTONIC, which all nodes of a host share.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from typing import Any

BLOCK = 1 << 20


def main() -> None:
    """Until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    lock = os.memfd_create("answers")
    content = os.urandom(BLOCK)
    for line in sys.stdin:
        task = json.loads(line)
        if os.fork():
            continue
        answer = {"task": task["task"], "started_ns": time.monotonic_ns(), "operations": []}
        try:
            run(task, content, answer["operations"])
            answer["error"] = ""
        except OSError as error:
            answer["error"] = f"{error.filename or task['task']}: {error.strerror}"
        answer["ended_ns"] = time.monotonic_ns()
        fcntl.lockf(lock, fcntl.LOCK_EX)
        text = (json.dumps(answer) + "\n").encode()
        while text:
            text = text[os.write(1, text) :]
        os._exit(0)


def run(task: dict[str, Any], content: bytes, done: list[tuple[int, int, int]]) -> None:
    """The operations of one task, one after the other, each with its begin and end."""
    for number, operation in enumerate(task["operations"]):
        begin = time.monotonic_ns()
        act(operation, task["keep_cache"], content)
        done.append((number, begin, time.monotonic_ns()))


def act(operation: dict[str, Any], keep_cache: bool, content: bytes) -> None:
    """One operation. What was written is with the store when it ends: closing flushes."""
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
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        except FileExistsError:  # MooseFS says so where another client makes it at the same time
            fd = os.open(path, os.O_WRONLY)
        try:
            write(fd, operation["offset_bytes"], operation["size_bytes"], content)
            if not keep_cache:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read(fd: int, at: int, left: int, path: str) -> None:
    """All the bytes asked for; a file that ends before is an error."""
    while left:
        got = len(os.pread(fd, min(BLOCK, left), at))
        if not got:
            raise OSError(0, f"ends at {at} bytes, {left} before what is to be read", path)
        at, left = at + got, left - got


def write(fd: int, at: int, left: int, content: bytes) -> None:
    """Bytes that nothing can press together."""
    while left:
        put = os.pwrite(fd, content[: min(BLOCK, left)], at)
        at, left = at + put, left - put


if __name__ == "__main__":
    main()
