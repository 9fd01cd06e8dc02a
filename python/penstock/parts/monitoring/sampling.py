"""Samples of this host between `penstock monitor start` and `stop`.

    sampling = Sampling.opened(None, 1.0)      # a process that outlives this command
    sampling.begin("x#1", None)                # start to record
    ended = finish(None, "x")                  # in another command: store the last samples, then end

The process also ends with its experiment, at the experiment's `timeout` or after a day, and before the disk
of its spool is full; the samples until then are stored. Its spool is a directory of the undo journal, owned
by the process and with the experiment as its run, by which `finish` selects it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal
from penstock.host.journal.undo import put_back
from penstock.host.probe.clock_offset import Offset
from penstock.host.processes.control import answering, listen, usual_answer
from penstock.host.processes.daemon import (
    Daemon,
    connect,
    leave_no_trace,
    run_daemon,
    say_ready,
    start_daemon,
    stop_entirely,
)
from penstock.host.processes.processes import TOKEN_VARIABLE
from penstock.observe.sampler.monitor import Monitor, interval_ns_of
from penstock.parts.monitoring.experiments.experiment import Taken
from penstock.parts.monitoring.experiments.experiments import experiments_home
from penstock.parts.monitoring.experiments.points import Batch, Closed
from penstock.parts.monitoring.experiments.timestamps import name_and_repeat
from penstock.parts.monitoring.outbox.client import Client, clocks, opened, patiently
from penstock.parts.monitoring.outbox.delivery import PATIENCE_S
from penstock.parts.monitoring.outbox.sampled import SOURCES
from penstock.parts.monitoring.outbox.sending import Sending
from penstock.state import runtime_dir, state_dir

_KIND = "record"
#: timeout for computing and writing the last samples of an experiment [s]
_FINISH_S = 900.0
#: interval at which the process checks if its experiment has ended [s]
_POLL_S = 0.5
#: time limit of an experiment without `timeout` [s]
_MOST_S = 86_400.0
#: free space on the disk of the spool below which sampling ends [bytes]
_LEAST_FREE = 1 << 30


@dataclass(frozen=True)
class Finished:
    """End of sampling: receipts for the experiment, and messages for its user."""

    receipts: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


class Sampling:
    """A process that is ready to sample. PenstockError if this host cannot be sampled."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @classmethod
    def opened(cls, server: str | None, interval_s: float) -> Sampling:
        """Start the process; `server` as for `outbox.client.opened`."""
        interval_ns_of(interval_s)
        config = {"outlive_owner": True, "interval_s": interval_s, "server": _url(server)}
        return cls(start_daemon(_KIND, config, Journal(), module=__name__))

    def begin(self, experiment: str, timeout_s: float | None) -> None:
        """Start to record into an experiment, NAME#n."""
        self._daemon.call("begin", experiment=experiment, most_s=timeout_s)
        self._daemon.hang_up()

    def stop(self) -> None:
        """End a process that has no experiment."""
        self._daemon.stop()


def finish(server: str | None, name: str) -> Finished:
    """Store the last samples of an experiment that is about to end, then end its sampling."""
    journal, finished = Journal(), Finished()
    for spool in _spools(journal, server, name):
        token = spool.target.rpartition("-")[2]
        if not spool.owner.alive:
            for entry in journal.open_entries():
                if entry.owner == spool.owner:
                    put_back(entry, journal)
            finished.messages.append("its sampler ended before it; later samples are missing")
            continue
        daemon = connect(_KIND, spool.owner.pid, runtime_dir() / f"{_KIND}-{token}.sock")
        try:
            reply = daemon.call("finish", timeout_s=_FINISH_S)
            finished.receipts.update(reply["receipts"])
            finished.messages.extend(reply["messages"])
        except PenstockError as error:
            finished.messages.append(str(error))
        stop_entirely(daemon, journal)
    return finished


def _url(server: str | None) -> str | None:
    return server or os.environ.get("PENSTOCK_SERVER") or None


def _key(server: str | None, experiment: str) -> str:
    return f"{experiment} of {_url(server) or experiments_home()}"


def _spools(journal: Journal, server: str | None, name: str) -> list[Entry]:
    """Journal entries of the spools of an experiment; for a name without repeat, of the running one."""
    name, repeat = name_and_repeat(name)
    begin, end = f"{name}#", _key(server, "")
    spools = []
    for entry in journal.open_entries():
        run = entry.run or ""
        if entry.kind == "directory" and run.startswith(begin) and run.endswith(end):
            number = run.removesuffix(end).removeprefix(begin)
            if number.isdigit() and repeat in (None, int(number)):
                spools.append(entry)
    return spools


class _Recording:
    """Transfer of the samples of one experiment from the sampler to the store."""

    def __init__(
        self, monitor: Monitor, client: Client, journal: Journal, key: str, name: str
    ) -> None:
        self._monitor, self._client, self._journal, self._name = monitor, client, journal, name
        place = state_dir() / f"{_KIND}-{os.environ[TOKEN_VARIABLE]}"
        self._spool = make_directory(place, journal, run=key)
        self._offsets: list[tuple[int, Offset]] = []
        #: set when the experiment accepts no more samples
        self.over = threading.Event()
        self._compare_clocks()
        shift_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        monitor.start(None, None, place)
        self._sending = Sending(self._write, monitor.interval_ns, shift_ns, report=print)
        self._sending.follow(Path(monitor.live()["spool"]))

    def finish(self) -> Finished:
        """Store the samples that were not sent yet."""
        self._sending.end()
        result = self._monitor.stop()
        receipt, messages = result.receipt, []
        due = (receipt["end_ns"] - receipt["start_ns"]) // receipt["used_ns"]
        self._compare_clocks()
        try:
            for batch in self._sending.rest(result.tables, int(due)):
                patiently(lambda batch=batch: self._write(batch), PATIENCE_S)  # type: ignore[misc]
            if self._offsets:
                self._write(clocks(self._offsets, SOURCES))
        except PenstockError as error:
            messages.append(f"not all samples were stored: {error}")
        if receipt.get("died"):
            messages.append("the sampler was killed; later samples are missing")
        self.close()
        return Finished({"monitor": receipt}, messages)

    def close(self) -> None:
        """Remove the spool."""
        self._monitor.drop()
        remove_directory(self._spool, self._journal)

    def _write(self, batch: Batch) -> None:
        try:
            self._client.write(self._name, batch)
        except (BadInput, Closed, Taken):
            self.over.set()
            raise

    def _compare_clocks(self) -> None:
        with contextlib.suppress(PenstockError):
            if (offset := self._client.clock()) is not None:
                self._offsets.append((time.time_ns(), offset))


class _Daemon:
    """The sampling process: answers on its socket until a request, its experiment or a timeout ends it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._journal = Journal()
        self._server: str | None = config["server"]
        self._socket = Path(config["socket"])
        self._monitor = Monitor(self._journal, None, round(config["interval_s"] * 1e9))
        self._client = opened(self._server)
        self._recording: _Recording | None = None
        self._until = float("inf")
        self._ending = threading.Event()
        self._one = threading.Lock()

    def serve(self, ready_fd: int | None) -> None:
        with self._monitor:
            listener = listen(self._socket)
            answering(listener, self._answer)
            say_ready(ready_fd)
            while not self._ending.wait(_POLL_S):
                if self._recording is not None and self._recording.over.is_set():
                    break
                if time.monotonic() > self._until or self._full():
                    self._finish()
                    break
            listener.close()
            with self._one:
                if self._recording is not None:
                    self._recording.close()

    def _full(self) -> bool:
        return self._recording is not None and disk_usage(state_dir()).free < _LEAST_FREE

    def _finish(self) -> Finished:
        with self._one:
            recording, self._recording = self._recording, None
            return Finished() if recording is None else recording.finish()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        command = request.get("cmd")
        try:
            if command == "begin":
                name = str(request["experiment"])
                key = _key(self._server, name)
                with self._one:
                    self._recording = _Recording(
                        self._monitor, self._client, self._journal, key, name
                    )
                most_s = request["most_s"]
                self._until = time.monotonic() + (_MOST_S if most_s is None else float(most_s))
                return {"ok": True}
            if command == "finish":
                return {"ok": True, **vars(self._finish())}
        except (PenstockError, OSError) as error:
            return {"ok": False, "error": str(error)}
        return usual_answer(command, self._ending)


def main(arguments: list[str]) -> int:
    """Entry point: `python -m penstock.parts.monitoring.sampling record CONFIG.json`."""

    def serve(config: dict[str, Any]) -> None:
        _Daemon(config).serve(config.get("ready_fd"))
        leave_no_trace()

    return run_daemon(arguments, serve)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
