"""Process of the collectors of a study.

Started as `python -m penstock.parts.monitoring.collectors.collector_process collect CONFIG.json`.

Collectors may be code of other packages, and their input is arbitrary. In a process of their own they cannot
disturb the runs, and their processor time and memory can be measured. Requests at a socket `start` collectors
on a spool and `stop` them; the process ends with its owner. Each collector has an event loop of its own, so
that one that blocks does not delay the others. A collector that takes longer than `patience_s` is reported as
failed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.processes.control import answering, listen, usual_answer
from penstock.host.processes.daemon import run_daemon, say_ready
from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.experiments.points import Accepted, Batch, Closed, Full
from penstock.parts.monitoring.experiments.spool import Holding, Spool
from penstock.plugins import COLLECTORS

#: limits of one run: points, their bytes, and sources that senders name themselves
MOST_POINTS = 10_000_000
MOST_BYTES = 1 << 30
MOST_SOURCES = 1_000


class Budget:
    """Limit of the data that all collectors of a run store. Threads share it."""

    def __init__(
        self, points: int = MOST_POINTS, bytes_: int = MOST_BYTES, sources: int = MOST_SOURCES
    ) -> None:
        self._most = (points, bytes_, sources)
        self._points = self._bytes = 0
        self._sources: set[str] = set()
        self._lock = threading.Lock()
        #: True if a batch was refused
        self.full = False

    def charge(self, batch: Batch) -> None:
        """Charge a batch. Raises Full if it exceeds the limit; its points are dropped and counted."""
        rows, size = batch.points.num_rows, int(batch.points.nbytes)
        with self._lock:
            sources = self._sources | {batch.source}
            after = (self._points + rows, self._bytes + size, len(sources))
            if rows and any(n > most for n, most in zip(after, self._most, strict=True)):
                self.full = True
                raise Full(
                    f"the collectors of a run store {self._most[0]} points, {self._most[1]} bytes and "
                    f"{self._most[2]} sources at most"
                )
            self._points, self._bytes, self._sources = after[0], after[1], sources


class Budgeted:
    """The sink of one collector: its part of the spool, within the limit of all."""

    def __init__(self, sink: Holding, budget: Budget) -> None:
        self._sink, self._budget = sink, budget

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`; raises Full if the limit is exceeded."""
        self._budget.charge(batch)
        return self._sink.write(batch)

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        return self._sink.next_number(source)


class CollectorSet:
    """Collectors that write to a spool from `start` to `stop`; reusable for other collectors and spools."""

    def __init__(self) -> None:
        self._running: dict[str, Collecting] = {}
        self._sinks: list[Holding] = []
        self._used_ns = 0
        self._budget = Budget()

    def start(
        self, spool: Path, settings: Mapping[str, Mapping[str, Any]], patience_s: float
    ) -> dict[str, Any]:
        """Start collectors.

        Returns `reached`, environment values by listening collector, and `failed`, errors by collector.
        """
        self._used_ns = _cpu_ns()
        directory, self._budget = Spool(spool), Budget()
        budget = self._budget
        self._running, self._sinks = {}, []
        reached: dict[str, Mapping[str, str]] = {}

        def begin(name: str) -> None:
            (collector,) = collectors_of({name: settings[name]}).values()
            sink = directory.hold(name)
            self._sinks.append(sink)
            collecting = Collecting({name: collector}, Budgeted(sink, budget))
            collecting.start()
            self._running[name] = collecting
            addresses = getattr(collector, "reached", None)
            if addresses is not None:
                reached[name] = addresses()

        _, failed = _in_parallel(begin, list(settings), patience_s)
        return {"reached": dict(reached), "failed": failed}

    def stop(self, patience_s: float) -> dict[str, Any]:
        """Stop all; returns `receipts`, `failed`, and the processor time and memory since the start."""

        def end(name: str) -> dict[str, Any]:
            collecting = self._running[name]
            try:
                with contextlib.suppress(Closed):
                    collecting.stop()
            finally:
                receipt = collecting.receipt_of(name)
                if receipt is not None:
                    receipts[name] = receipt.document()
            return receipts.get(name, {})

        receipts: dict[str, dict[str, Any]] = {}
        _, failed = _in_parallel(end, list(self._running), patience_s)
        for sink in self._sinks:
            sink.release()
        self._running = {}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "receipts": dict(receipts),
            "failed": failed,
            "full": self._budget.full,
            "cpu_ns": _cpu_ns() - self._used_ns,
            "peak_memory_bytes": peak,
        }


def _cpu_ns() -> int:
    """Processor time of this process and its ended children [ns]."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(sum(u.ru_utime + u.ru_stime for u in used) * 1e9)


def _in_parallel(
    call: Callable[[str], Any], names: list[str], patience_s: float
) -> tuple[list[str], dict[str, str]]:
    """Call `call` for each name in parallel; returns the names done in time, and the errors of the others."""
    done: list[str] = []
    failed: dict[str, str] = {}

    def run(name: str) -> None:
        try:
            call(name)
            done.append(name)
        except Exception as error:  # an error of one collector must not affect the others
            failed[name] = str(error) or type(error).__name__

    threads = {n: threading.Thread(target=run, args=(n,), daemon=True) for n in names}
    for thread in threads.values():
        thread.start()
    deadline_s = time.monotonic() + patience_s
    for name, thread in threads.items():
        thread.join(max(0.0, deadline_s - time.monotonic()))
        if thread.is_alive():
            failed.setdefault(name, f"it took longer than {patience_s:g} s")
    return list(done), dict(failed)


class _Daemon:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._collectors = CollectorSet()
        self._ending = threading.Event()

    def serve(self, ready_fd: int | None) -> None:
        """Serve until a request to end, or the end of the owner."""
        for kind in self._config["kinds"]:
            COLLECTORS.load(kind)  # imported now, so that no run waits for it
        owner = os.pidfd_open(int(self._config["owner_pid"]))
        listener = listen(Path(self._config["socket"]))
        answering(listener, self._answer)
        say_ready(ready_fd)
        threading.Thread(target=self._end_with_owner, args=(owner,), daemon=True).start()
        self._ending.wait()
        listener.close()

    def _end_with_owner(self, owner: int) -> None:
        select.select([owner], [], [])
        self._ending.set()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        command = request.get("cmd")
        try:
            if command == "start":
                reply = self._collectors.start(
                    Path(request["spool"]), request["collectors"], request["patience_s"]
                )
                return {"ok": True, **reply}
            if command == "stop":
                return {"ok": True, **self._collectors.stop(request["patience_s"])}
        except (PenstockError, OSError) as error:
            return {"ok": False, "error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "error": f"no such request: {error}", "bad_input": True}
        return usual_answer(command, self._ending)


def main(argv: list[str]) -> int:
    """Entry point."""
    return run_daemon(argv, lambda config: _Daemon(config).serve(config.get("ready_fd")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
