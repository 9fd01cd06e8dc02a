"""Command lines of penstock, run in a fork of a process that has the libraries loaded.

`run` takes the place of `subprocess.run`: it hands a line that starts penstock to the fork server, and any
other line, or options that the fork server does not know, to `subprocess.run`. The forked command is a
process of its own with the given environment, directory and descriptors, but not a child of this one: a test
that needs the parent, the control group or the namespaces of a real start uses `subprocess`.
PENSTOCK_TEST_REAL_START=1 makes every call a real start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.fork_server import receive, send

#: beginnings of a line that starts penstock
STARTS: tuple[tuple[str, ...], ...] = (
    (sys.executable, "-m", "penstock"),
    (sys.executable, "-c", "from penstock.cli import main; main()"),
    (str(Path(sys.executable).with_name("penstock")),),
)
#: options of `subprocess.run` that the fork server knows
_KNOWN = {"capture_output", "check", "cwd", "env", "input", "start_new_session", "stderr"}
_KNOWN |= {"stdin", "stdout", "text", "timeout"}

#: beginnings of environment variables that are read while an interpreter and its libraries start
_INTERPRETER = ("PYTHON", "LD_", "OPENBLAS", "OMP_", "MPL")

#: processor seconds of the commands that have ended, their descendants included
cpu_s = 0.0

_lock = threading.Lock()
_server: tuple[int, str, Any] | None = None  # owner's pid, address, keeps the pipe open


def run(line: Sequence[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a line as `subprocess.run` does, with the same options, result and exceptions."""
    words = [os.fsdecode(w) if isinstance(w, os.PathLike | bytes) else str(w) for w in line]
    start = next((s for s in STARTS if tuple(words[: len(s)]) == s), None)
    forkable = (
        start is not None and options.keys() <= _KNOWN and _same_interpreter(options.get("env"))
    )
    if start is None or not forkable or os.environ.get("PENSTOCK_TEST_REAL_START"):
        return subprocess.run(line, **options)  # type: ignore[call-overload]
    return _forked(line, words[len(start) :], **options)


def _same_interpreter(environment: Mapping[str, str] | None) -> bool:
    """False if the environment would give a real start another interpreter (PYTHONPATH, LD_PRELOAD)."""
    if environment is None:
        return True
    names = [n for n in {*environment, *os.environ} if str(n).startswith(_INTERPRETER)]
    return all(environment.get(name) == os.environ.get(name) for name in names)


def penstock(*argv: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `penstock ARGV` with its output captured as text."""
    return run([*STARTS[0], *argv], **{"capture_output": True, "text": True, **options})


def _forked(
    line: Sequence[object],
    argv: list[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    cwd: Any = None,
    env: Any = None,
    input: Any = None,
    start_new_session: bool = False,
    stderr: Any = None,
    stdin: Any = None,
    stdout: Any = None,
    text: bool = False,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[Any]:
    global cpu_s
    if capture_output:
        stdout = stderr = subprocess.PIPE
    theirs, opened = [], []
    readers: dict[int, threading.Thread] = {}
    collected: dict[int, bytes] = {}
    threads = []
    for number, given in enumerate(
        (subprocess.PIPE if input is not None else stdin, stdout, stderr)
    ):
        if given is None:
            theirs.append(number)
        elif given == subprocess.STDOUT:
            theirs.append(theirs[1])
        elif given == subprocess.DEVNULL:
            theirs.append(os.open(os.devnull, os.O_RDWR))
            opened.append(theirs[-1])
        elif given == subprocess.PIPE:
            read_end, write_end = os.pipe()
            theirs.append(read_end if number == 0 else write_end)
            opened.append(theirs[-1])
            if number == 0:
                content = input.encode() if isinstance(input, str) else input or b""
                threads.append(threading.Thread(target=_write, args=(write_end, content)))
            else:
                arguments = (number, read_end, collected)
                readers[number] = threading.Thread(target=_read, args=arguments, daemon=True)
        else:
            theirs.append(given if isinstance(given, int) else given.fileno())
    request = {
        "argv": argv,
        "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
        "env": {
            os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()
        },
        "new_session": start_new_session,
    }
    end = None if timeout is None else time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_address())
        send(connection, request, tuple(theirs))
        for descriptor in opened:
            os.close(descriptor)
        pid = receive(connection)[0]["pid"]
        for thread in (*threads, *readers.values()):
            thread.start()
        connection.settimeout(timeout)
        try:
            ended = receive(connection)[0]
            # as subprocess does: output counts until its last holder has closed it
            for thread in readers.values():
                thread.join(None if end is None else max(0.0, end - time.monotonic()))
                if thread.is_alive():
                    raise TimeoutError
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            for thread in readers.values():
                thread.join(5)
            out, err = collected.get(1), collected.get(2)
            raise subprocess.TimeoutExpired(line, timeout or 0, out, err) from None  # type: ignore[arg-type]
    cpu_s += ended["cpu_s"]
    out, err = (collected[n] if n in readers else None for n in (1, 2))
    if text:
        out, err = (None if o is None else o.decode().replace("\r\n", "\n") for o in (out, err))  # type: ignore[assignment]
    done = subprocess.CompletedProcess(line, ended["status"], out, err)
    if check:
        done.check_returncode()
    return done


def _read(number: int, descriptor: int, collected: dict[int, bytes]) -> None:
    with open(descriptor, "rb") as stream:
        collected[number] = stream.read()


def _write(descriptor: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb") as stream:
        stream.write(content)


def _address() -> str:
    """The address of this process's server, started if there is none."""
    global _server
    with _lock:
        if _server is None or _server[0] != os.getpid():
            _server = _started()
        return _server[1]


def _started() -> tuple[int, str, Any]:
    # in a directory that no other user may enter: who reaches the socket runs commands as this user
    directory = tempfile.mkdtemp(prefix="penstock-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    address = f"{directory}/s"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        # in a session of its own: signals to the tests' group are not for the commands under test
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(listener.fileno())],
            cwd=Path(__file__).parents[2],
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the fork server did not start"
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return os.getpid(), address, server
