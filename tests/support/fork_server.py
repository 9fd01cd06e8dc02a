"""A process that has penstock's libraries loaded and forks itself for each command line.

A fresh interpreter spends a second or more on imports, and the tests start several hundred of them.
`python -m tests.support.fork_server SOCKET_FD KIND` preloads once; of the kind `libraries`, for other copies
of penstock, it preloads no module of penstock. `tests.support.commands` sends it a request (argument vector,
directory, environment and the three standard descriptors). The server forks, the child runs
`penstock.cli.main()`, or the code after `-c`, and the server answers with the child's pid, then with its exit
status as `subprocess` reports it (negative for a signal).

The server has one thread, so that a fork copies all of its state. Start-up itself is tested with real starts.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, NoReturn

#: libraries that most verbs load; none of them starts a thread while it is imported
LIBRARIES = (
    "numpy pandas pyarrow pyarrow.parquet pyarrow.compute duckdb scipy.stats scipy.optimize matplotlib "
    "matplotlib.figure pydantic ruamel.yaml sqlalchemy jinja2 pyroute2 rich.table rich.progress typer "
    "fastapi uvicorn"
).split()
#: modules that verbs load during their work
MODULES = (
    "penstock.api",
    "penstock.campaign.run",
    "penstock.campaign.analysis",
    "penstock.study_prediction.predict",
    "penstock.report.html",
    "penstock.observe.sampler.monitor",
    "penstock.parts.server.app",
)
#: bytes before each message: its length
_LENGTH = struct.Struct("!I")
#: signal dispositions of a fresh interpreter, independent of those of the shell that started the tests
_DEFAULTS = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1)


def send(connection: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
    """Send a JSON message; descriptors are attached to its length."""
    text = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([_LENGTH.pack(len(text))], rights if descriptors else [])
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Receive a message and its descriptors; EOFError if the peer has gone."""
    descriptors = array.array("i")
    head, rights, _, _ = connection.recvmsg(
        _LENGTH.size, socket.CMSG_SPACE(3 * descriptors.itemsize)
    )
    for level, kind, content in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content)
    if len(head) < _LENGTH.size:
        raise EOFError
    text = bytearray()
    (length,) = _LENGTH.unpack(head)
    while len(text) < length:
        part = connection.recv(length - len(text))
        if not part:
            raise EOFError
        text += part
    return json.loads(text.decode()), list(descriptors)


def preload(with_penstock: bool) -> None:
    """Import the libraries and penstock's own modules, then freeze the heap, which the children share."""
    for name in LIBRARIES:
        importlib.import_module(name)
    if with_penstock:
        _preload_penstock()
    if threading.active_count() != 1:
        raise RuntimeError(f"threads were started by imports: {threading.enumerate()}")
    gc.collect()
    gc.freeze()


def _preload_penstock() -> None:
    package = importlib.import_module("penstock.cli")
    for module in pkgutil.walk_packages(package.__path__, "penstock.cli."):
        importlib.import_module(module.name)
    for name in MODULES:
        importlib.import_module(name)
    plugins = importlib.import_module("penstock.plugins")
    for table in (plugins.RUN_PLACES, plugins.STUDY_FINDINGS, plugins.ANALYSIS_STEPS):
        for name in table.own:
            table.load(name)


def _child(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Turn this process into a fresh `penstock ARGV`, as far as a program can observe."""
    for number in _DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
    os.closerange(3, 1024)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    packages = request["env"].get("PYTHONPATH", "")
    if packages != os.environ.get("PYTHONPATH", ""):
        sys.path[1:1] = [folder for folder in packages.split(os.pathsep) if folder]
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    status = 1
    try:
        _run(request["argv"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # the observable steps of an interpreter's exit
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


def _run(argv: list[str]) -> None:
    """Run the code after `-c`, which is not an option of penstock, or a command line."""
    if argv[:1] == ["-c"]:
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv = ["penstock", *argv]
    from penstock.cli import main

    main()


def serve(listener: socket.socket, with_penstock: bool) -> None:
    """Fork for each request until the process that started the server ends."""
    preload(with_penstock)
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)  # the parent's end of a pipe: closed when it ends
    waiting: dict[int, tuple[int, socket.socket]] = {}  # pidfd: pid, connection
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                os._exit(0)  # libraries warn about leaked resources when an interpreter ends
            if key.fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setblocking(True)
                try:
                    request, descriptors = receive(connection)
                except (EOFError, OSError):
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    _child(request, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                send(connection, {"pid": pid})
                pidfd = os.pidfd_open(pid)
                waiting[pidfd] = pid, connection
                selector.register(pidfd, selectors.EVENT_READ)
                continue
            pid, connection = waiting.pop(key.fd)
            selector.unregister(key.fd)
            os.close(key.fd)
            _, status, usage = os.wait4(pid, 0)
            cpu_s = usage.ru_utime + usage.ru_stime
            with contextlib.suppress(OSError):
                send(connection, {"status": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s})
            connection.close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2] != "libraries")
