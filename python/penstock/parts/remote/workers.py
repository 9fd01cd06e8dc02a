"""Dask workers on several hosts, connected to a scheduler here over TLS with certificates of both sides."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from penstock.errors import PenstockError
from penstock.host.probe.clock_offset import Exchange, Offset, offset_of
from penstock.host.probe.clocks import clock_row
from penstock.host.processes.dask_cluster import NO_DASHBOARD, NO_PAGES
from penstock.host.processes.launch import last_line
from penstock.parts.remote.tls import Authority, security
from penstock.scratch import Scratch
from penstock.spec.study import Worker

T = TypeVar("T")
_UP_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.05
_ENDS_WITHIN_S = 15.0
_CLOCK_TRIES = 15
#: an end within some 10 s if a host is lost, no messages of ssh in the output; options before them win
_SSH_OPTIONS = tuple(
    word
    for option in (
        "ConnectTimeout=10",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=2",
        "LogLevel=ERROR",
    )
    for word in ("-o", option)
)


@dataclass
class WorkerProcess:
    """The worker of a host; `address`: in Dask, once it is connected."""

    worker: Worker
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    address: str = ""


class WorkerPool:
    """Workers of one campaign or cluster; a context manager that starts and stops them.

    `logs`: directory of their output. Raises PenstockError with the last message of a worker that does not
    start; with `partial`, such workers are in `failed`.
    """

    def __init__(
        self,
        name: str,
        listen: str,
        workers: Sequence[Worker],
        logs: Path,
        *,
        partial: bool = False,
    ) -> None:
        self._authority = Authority(name)
        self._listen = listen
        self._workers = workers
        self._logs = logs
        self._partial = partial
        self._stack = contextlib.ExitStack()
        self._running: dict[str, WorkerProcess] = {}
        #: last message of each worker that did not start
        self.failed: dict[str, str] = {}
        self.client: Any = None

    def __enter__(self) -> WorkerPool:
        with contextlib.ExitStack() as stack:
            scheduler = self._open(stack)
            stack.callback(self._end_all)
            for worker in self._workers:
                self._start(worker, scheduler)
            self._await()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> dict[str, str]:
        """Address of the worker of each host that is up."""
        return {name: one.address for name, one in self._running.items()}

    def is_alive(self, name: str, connected: Mapping[str, Any]) -> bool:
        """True if the worker's process runs and the scheduler is connected to it."""
        one = self._running[name]
        return one.address in connected and one.process.poll() is None

    def connected(self) -> Mapping[str, Any]:
        """Workers of the scheduler, by address."""
        # not `scheduler_info`, whose result a periodic update replaces by one without workers
        identity = self.client.sync(self.client.scheduler.identity, n_workers=-1)
        return identity["workers"]  # type: ignore[no-any-return]

    def submit(self, name: str, function: Callable[..., T], *arguments: Any, **options: Any) -> Any:
        """Start a call on a host; returns Dask's future."""
        return self.client.submit(
            function,
            *arguments,
            workers=[self._running[name].address],
            allow_other_workers=False,
            retries=0,
            pure=False,
            **options,
        )

    def call_all(
        self, function: Callable[..., T], arguments: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Call a function on several hosts at once; returns results and messages of failures, by host."""
        futures = {name: self.submit(name, function, *own) for name, own in arguments.items()}
        results: dict[str, T] = {}
        failures: dict[str, str] = {}
        for name, future in futures.items():
            while not future.done():
                if not self.is_alive(name, self.connected()):
                    code = self._running[name].process.poll()
                    how = "disconnected" if code is None else f"ended with status {code}"
                    failures[name] = f"its worker {how}: {self.last_message(name)}"
                    break
                time.sleep(_LOOK_EVERY_S)
            else:
                try:
                    results[name] = future.result()
                except PenstockError as error:
                    failures[name] = str(error)
                except Exception as error:
                    at = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{Path(at.filename).name}, line {at.lineno}"
                    failures[name] = f"{type(error).__name__}: {error} ({where})"
        return results, failures

    def clock_offset(self, name: str, *, realtime: bool = False) -> Offset:
        """Monotonic clock of a host − that of this process; with `realtime`, of the clocks of the day."""
        address = self._running[name].address
        begin_ns = time.time_ns() - time.monotonic_ns() if realtime else 0
        key = "realtime_ns" if realtime else "monotonic_ns"
        exchanges = []
        for _ in range(_CLOCK_TRIES):
            before = begin_ns + time.monotonic_ns()
            clocks = self.client.run(_read_clock, workers=[address])[address]
            after = begin_ns + time.monotonic_ns()
            read = int(clocks[key]), after, int(clocks["offset_bound_ns"])
            exchanges.append(Exchange(before, *read))
        return offset_of(exchanges)

    def interrupt(self, function: Callable[[], None], names: Sequence[str]) -> None:
        """Call a function on hosts whose workers are busy; hosts that do not respond are ignored."""
        with contextlib.suppress(Exception):
            addresses = [self._running[name].address for name in names if name in self._running]
            self.client.run(function, workers=addresses, on_error="ignore")

    def last_message(self, name: str) -> str:
        """Last line that a worker printed."""
        return last_line(self._log(name)) or "none"

    def end(self, name: str) -> None:
        """Stop a worker by closing its input; kill it after 15 s."""
        self._end([name])

    def _end_all(self) -> None:
        self._end(list(self._running))

    def _end(self, names: Sequence[str]) -> None:
        ending = [self._running.pop(name) for name in names]
        for one in ending:
            if one.process.stdin is not None:
                with contextlib.suppress(OSError):
                    one.process.stdin.close()
        until = time.monotonic() + _ENDS_WITHIN_S
        for one in ending:
            try:
                one.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.log.close()

    def _open(self, stack: contextlib.ExitStack) -> str:
        """Start the scheduler and connect to it; returns its address."""
        import dask
        from distributed import Client, LocalCluster

        place = stack.enter_context(Scratch("tls"))
        secure = security(self._authority.identity("conductor").write(place))
        with dask.config.set(NO_PAGES):
            cluster = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=0,
                host=self._listen,
                protocol="tls://",
                security=secure,
                dashboard_address=None,
                scheduler_kwargs=NO_DASHBOARD,
                silence_logs=logging.CRITICAL,  # True means level 1: all messages
            )
        stack.enter_context(cluster)
        client = Client(cluster, security=secure, set_as_default=False)  # type: ignore[no-untyped-call]
        self.client = stack.enter_context(client)
        return str(cluster.scheduler_address)

    def _log(self, name: str) -> Path:
        return self._logs / f"host-{name}.log"

    def _start(self, worker: Worker, scheduler: str) -> None:
        identity = self._authority.identity(worker.name)
        log = open(self._log(worker.name), "wb")  # noqa: SIM115 - closed with the worker
        process = subprocess.Popen(
            start_argv(worker),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._running[worker.name] = WorkerProcess(worker, process, log)
        settings = {
            "scheduler": scheduler,
            "name": worker.name,
            "authority": identity.authority,
            "certificate": identity.certificate,
            "key": identity.key,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()

    def _await(self) -> None:
        until = time.monotonic() + _UP_WITHIN_S
        while True:
            by_name = {w["name"]: address for address, w in self.connected().items()}
            missing = [n for n in self._running if n not in by_name]
            if not missing:
                break
            for name in missing:
                if self._running[name].process.poll() is None and time.monotonic() < until:
                    continue
                message = self.last_message(name)
                if not self._partial:
                    raise PenstockError(f"host {name} did not start; its last message: {message}")
                self.failed[name] = message
                self.end(name)
            time.sleep(_LOOK_EVERY_S)
        for name, one in self._running.items():
            one.address = by_name[name]


def start_argv(worker: Worker) -> list[str]:
    """The command that starts the worker process on its host."""
    return python_on(worker, "penstock.parts.remote.worker")


def python_on(worker: Worker, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of penstock on a host, with the state directory of that host."""
    argv = [worker.python or sys.executable, "-m", module, *arguments]
    if worker.state is not None:
        state = [f"PENSTOCK_STATE={worker.state}", f"PENSTOCK_RUNTIME={worker.state}/run"]
        argv = ["env", *state, *argv]
    return on_host(worker, argv)


def on_host(worker: Worker, argv: Sequence[str]) -> list[str]:
    """The command that runs another one on a host, with our standard input and output."""
    if worker.netns is not None:
        path = worker.netns if "/" in worker.netns else f"/run/netns/{worker.netns}"
        return ["nsenter", f"--net={path}", "--", *argv]
    if worker.ssh is not None:
        options = ["-o", "BatchMode=yes", *worker.ssh_options, *_SSH_OPTIONS]
        return ["ssh", *options, "--", worker.ssh, shlex.join(argv)]  # a shell reads it there
    return list(argv)


def _read_clock() -> dict[str, int | str]:
    return clock_row("host")
