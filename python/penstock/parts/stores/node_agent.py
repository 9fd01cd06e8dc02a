"""Agent in a node that answers short requests about files of a store without starting a process for each.

Runs inside the node, standard library only. Reads requests as JSON lines on stdin, writes one line for each:
`{"result": …}` or `{"error": "…"}`. Ends with its stdin.
"""

import base64
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

#: a listing of some hundred thousand files
MOST_OUTPUT = 64 << 20


def run(
    argv: list[str], timeout_s: float, stdin: str = "", env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Status (None: killed after a timeout) and output of a command; `stdin`: its input, in base64.

    `too_long`: more than MOST_OUTPUT was printed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as content:
        content.write(base64.b64decode(stdin))
        content.seek(0)
        process = subprocess.Popen(
            argv,
            stdin=content,
            stdout=out,
            stderr=out,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        out.seek(0)
        raw = out.read(MOST_OUTPUT + 1)
        output = raw.decode(errors="replace")  # fewer characters than bytes
        return {"status": status, "output": output, "too_long": len(raw) > MOST_OUTPUT}


def kind(path: str) -> list[Any] | None:
    """`file` or `directory`, and its bytes, of the target of a link; None if absent."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return ["directory" if stat.S_ISDIR(status.st_mode) else "file", status.st_size]


def make(path: str) -> None:
    """Create an empty file and its directory, if absent."""
    if os.path.lexists(path):  # not opened: `--watch` intercepts opens of files with tags
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # MooseFS reports to one of two concurrent creators that the file exists
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def attributes(path: str) -> dict[str, str]:
    """Attributes of users, `user.…`."""
    names = [n for n in os.listxattr(path) if n.startswith("user.")]
    return {n: os.getxattr(path, n).decode("utf-8", "replace") for n in names}


def set_attributes(path: str, pairs: dict[str, str]) -> None:
    """Set some, new or not."""
    for name, value in pairs.items():
        os.setxattr(path, name, value.encode())


REQUESTS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (run, kind, make, attributes, set_attributes)
}


def main() -> None:
    """Serve requests until stdin ends."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        reply: dict[str, Any] = {}
        try:
            reply["result"] = REQUESTS[name](*arguments)
        except OSError as error:
            reply["error"] = f"{error.filename or name}: {error.strerror}"
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
