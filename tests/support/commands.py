"""Command lines of penstock, run in a fork of a process that has the libraries loaded.

`run` and `popen` take the places of `subprocess.run` and `subprocess.Popen`: they hand a line that starts
penstock, or code after `CODE`, to the fork server, and any other line, or options that the fork server does
not know, to `subprocess`. The forked command is a separate process with the given environment, directory
and descriptors, but not a child of this one: a test that needs the parent, the control group or the
namespaces of a real start, or reads its environment or command line in /proc, uses `subprocess`.
PENSTOCK_TEST_REAL_START=1 makes every call a real start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.scratch import Scratch
from tests.support.fork_server import receive, send

#: prefixes of command lines that start penstock
STARTS: tuple[tuple[str, ...], ...] = (
    (sys.executable, "-m", "penstock"),
    (sys.executable, "-c", "from penstock.cli import main; main()"),
    (str(Path(sys.executable).with_name("penstock")),),
)
#: prefix of command lines with code that may run with preloaded modules; other code lacks `-P`
CODE = (sys.executable, "-P", "-c")
#: additional packages of a forked command, by PYTHONPATH
PLUGINS = Path(__file__).parents[1] / "plugins"
#: options of `subprocess.Popen` that the fork server supports
_KNOWN = {"bufsize", "cwd", "encoding", "env", "errors", "start_new_session"}
_KNOWN |= {"stderr", "stdin", "stdout", "text", "universal_newlines"}

#: prefixes of environment variables that an interpreter and its libraries read at their start
_INTERPRETER = ("PYTHON", "LD_", "OPENBLAS", "OMP_", "MPL")

#: processor seconds of the commands that have ended, their descendants included
cpu_s = 0.0

_lock = threading.Lock()
#: by kind of server: owner's pid, address, and objects that must live as long as it runs
_servers: dict[str, tuple[int, str, Any]] = {}


def popen(line: Sequence[object], **options: Any) -> subprocess.Popen[Any]:
    """Start a line as `subprocess.Popen` does, with the same options and interface."""
    argv = _argv_after_start(line, options)
    return subprocess.Popen(line, **options) if argv is None else Forked(line, argv, **options)  # type: ignore[call-overload,no-any-return]


def run(line: Sequence[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a line as `subprocess.run` does, with the same options, result and exceptions."""
    popen_options = dict(options)
    content, timeout, check = (
        popen_options.pop(name, None) for name in ("input", "timeout", "check")
    )
    if popen_options.pop("capture_output", False):
        popen_options["stdout"] = popen_options["stderr"] = subprocess.PIPE
    if content is not None:
        popen_options["stdin"] = subprocess.PIPE
    argv = _argv_after_start(line, popen_options)
    if argv is None:
        return subprocess.run(line, **options)  # type: ignore[call-overload,no-any-return]
    with Forked(line, argv, **popen_options) as process:
        try:
            out, err = process.communicate(content, timeout)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                with contextlib.suppress(subprocess.TimeoutExpired):  # a descendant has the output
                    error.output, error.stderr = process.communicate(timeout=5)
            raise
    result = subprocess.CompletedProcess(line, process.returncode, out, err)
    if check:
        result.check_returncode()
    return result


def _argv_after_start(line: Sequence[object], options: Mapping[str, Any]) -> list[str] | None:
    """The arguments after a start of penstock, from `-c` for code; None if the line needs a real start."""
    argv = [os.fsdecode(w) if isinstance(w, os.PathLike | bytes) else str(w) for w in line]
    start = next((s for s in (*STARTS, CODE) if tuple(argv[: len(s)]) == s), None)
    forkable = options.keys() <= _KNOWN and _same_interpreter(options.get("env"))
    if start is None or not forkable or os.environ.get("PENSTOCK_TEST_REAL_START"):
        return None
    arguments = argv[len(start) :]
    return ["-c", *arguments] if start == CODE else arguments


def _same_interpreter(environment: Mapping[str, str] | None) -> bool:
    """False if the environment would give a real start another interpreter (PYTHONPATH, LD_PRELOAD)."""
    if environment is None:
        return True
    names = {n for n in {*environment, *os.environ} if str(n).startswith(_INTERPRETER)}
    if _kind(environment) != "penstock":
        names.discard("PYTHONPATH")
    return all(environment.get(name) == os.environ.get(name) for name in names)


def _kind(environment: Mapping[str, str] | None) -> str:
    """The kind of server for an environment, by the modules that it preloads.

    `penstock`; `plugins`: penstock with the packages of PLUGINS, whose rows are known when it is imported;
    `libraries`: none of penstock's modules, where PYTHONPATH is the folder of another copy of it.
    """
    folder = str((os.environ if environment is None else environment).get("PYTHONPATH", ""))
    if folder == str(PLUGINS):
        return "plugins"
    return "libraries" if folder and Path(folder, "penstock/__init__.py").exists() else "penstock"


def penstock(*argv: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `penstock ARGV` with its output captured as text."""
    return run([*STARTS[0], *argv], **{"capture_output": True, "text": True, **options})


class Forked(subprocess.Popen[Any]):
    """A forked `penstock ARGV` with the interface of `subprocess.Popen`."""

    def __init__(self, line: Sequence[object], argv: list[str], **options: Any) -> None:
        self._argv = argv
        self._status = socket.socket(socket.AF_UNIX)
        super().__init__(list(line), **options)  # type: ignore[call-overload]

    def _execute_child(self, *arguments: Any) -> None:
        cwd, env, start_new_session = arguments[5], arguments[6], arguments[-2]
        ends = arguments[10:16]
        request = {
            "argv": self._argv,
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "env": {
                os.fsdecode(k): os.fsdecode(v)
                for k, v in (os.environ if env is None else env).items()
            },
            "new_session": start_new_session,
        }
        child_ends = (ends[0], ends[3], ends[5])
        try:
            self._status.connect(_address(_kind(env)))
            descriptors = (number if end == -1 else end for number, end in enumerate(child_ends))
            send(self._status, request, tuple(descriptors))
            self.pid: int = receive(self._status)[0]["pid"]
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        self._child_created = True

    def __del__(self, *_: object) -> None:
        # the fork server waits for it; `Popen` would poll it again at its next start, with a closed socket
        self._status.close()

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._receive_status(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._receive_status(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _receive_status(self, timeout: float | None) -> bool:
        """False if the process has not ended after `timeout` seconds."""
        global cpu_s
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._status, select.POLLIN)
                if not poll.poll(None if timeout is None else max(0, 1000 * timeout)):
                    return False
                ended = receive(self._status)[0]
                self._status.close()
                self.returncode = ended["status"]
                cpu_s += ended["cpu_s"]
        return True


def _address(kind: str) -> str:
    """Return the address of this process's server of a kind; start it if there is none."""
    with _lock:
        if kind not in _servers or _servers[kind][0] != os.getpid():
            _servers[kind] = _start_server(kind)
        return _servers[kind][1]


def _start_server(kind: str) -> tuple[int, str, Any]:
    # in a private directory: any client of the socket runs commands as this user
    scratch = Scratch("tests")
    address = f"{scratch.path}/s"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    if kind == "plugins":
        environment["PYTHONPATH"] = str(PLUGINS)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        # in its own session: signals to the tests' group must not reach the commands under test
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(listener.fileno()), kind],
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
    return os.getpid(), address, (scratch, server)
