"""The process of the collectors of a study.

It is `python -m penstock.parts.monitoring.collectors.collector_process collect CONFIG.json`.

Collectors are programs of others, and what is sent to them can be anything. Here none of it is in the way of
who makes the runs, and what it takes is known. It is asked at a socket to `start` collectors on a spool and
to `stop` them, and ends with its owner. Each collector has an event loop of its own: one that blocks hinders
no other. What one does within `patience_s` is told, what it does later is not waited for.
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

#: of one run: points, bytes of them, and sources that senders name themselves
MOST_POINTS = 10_000_000
MOST_BYTES = 1 << 30
MOST_SOURCES = 1_000


class Room:
    """How much all collectors of a run may keep together. Threads share it."""

    def __init__(
        self, points: int = MOST_POINTS, bytes_: int = MOST_BYTES, sources: int = MOST_SOURCES
    ) -> None:
        self._most = (points, bytes_, sources)
        self._points = self._bytes = 0
        self._sources: set[str] = set()
        self._lock = threading.Lock()
        #: whether anything was turned away
        self.full = False

    def take(self, batch: Batch) -> None:
        """For a batch. Full where there is none left: what is collected then is dropped, and counted."""
        rows, size = batch.points.num_rows, int(batch.points.nbytes)
        with self._lock:
            sources = self._sources | {batch.source}
            after = (self._points + rows, self._bytes + size, len(sources))
            if rows and any(n > most for n, most in zip(after, self._most, strict=True)):
                self.full = True
                raise Full(
                    f"the collectors of a run keep {self._most[0]} points, {self._most[1]} bytes and "
                    f"{self._most[2]} sources at most"
                )
            self._points, self._bytes, self._sources = after[0], after[1], sources


class InRoom:
    """The sink of one collector: its part of the spool, within the room of all."""

    def __init__(self, sink: Holding, room: Room) -> None:
        self._sink, self._room = sink, room

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`; Full where there is no room."""
        self._room.take(batch)
        return self._sink.write(batch)

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        return self._sink.next_number(source)


class Beside:
    """Collectors on a spool, from `start` to `stop`; then others on another one."""

    def __init__(self) -> None:
        self._at_work: dict[str, Collecting] = {}
        self._held: list[Holding] = []
        self._used_ns = 0
        self._room = Room()

    def start(
        self, spool: Path, wanted: Mapping[str, Mapping[str, Any]], patience_s: float
    ) -> dict[str, Any]:
        """Gives `reached`, what a command is to know of those that listen, and of others what `failed`."""
        self._used_ns = _cpu_ns()
        place, self._room = Spool(spool), Room()
        room = self._room
        self._at_work, self._held = {}, []
        reached: dict[str, Mapping[str, str]] = {}

        def begin(name: str) -> None:
            (collector,) = collectors_of({name: wanted[name]}).values()
            sink = place.hold(name)
            self._held.append(sink)
            one = Collecting({name: collector}, InRoom(sink, room))
            one.start()
            self._at_work[name] = one
            told = getattr(collector, "reached", None)
            if told is not None:
                reached[name] = told()

        _, failed = _together(begin, list(wanted), patience_s)
        return {"reached": dict(reached), "failed": failed}

    def stop(self, patience_s: float) -> dict[str, Any]:
        """Gives `receipts`, of others what `failed`, and what it took since the start."""

        def end(name: str) -> dict[str, Any]:
            one = self._at_work[name]
            try:
                with contextlib.suppress(Closed):
                    one.stop()
            finally:
                receipt = one.receipt_of(name)
                if receipt is not None:
                    told[name] = receipt.document()
            return told.get(name, {})

        told: dict[str, dict[str, Any]] = {}
        _, failed = _together(end, list(self._at_work), patience_s)
        for sink in self._held:
            sink.release()
        self._at_work = {}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "receipts": dict(told),
            "failed": failed,
            "full": self._room.full,
            "cpu_ns": _cpu_ns() - self._used_ns,
            "peak_memory_bytes": peak,
        }


def _cpu_ns() -> int:
    """What this process and those that it started and that have ended took."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(sum(u.ru_utime + u.ru_stime for u in used) * 1e9)


def _together(
    do: Callable[[str], Any], names: list[str], patience_s: float
) -> tuple[list[str], dict[str, str]]:
    """Does something for each name, all at once; which were done in time, and what went wrong with others."""
    done: list[str] = []
    failed: dict[str, str] = {}

    def one(name: str) -> None:
        try:
            do(name)
            done.append(name)
        except Exception as error:  # a collector's own mistake is no reason to lose the others
            failed[name] = str(error) or type(error).__name__

    threads = {n: threading.Thread(target=one, args=(n,), daemon=True) for n in names}
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + patience_s
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            failed.setdefault(name, f"it took longer than {patience_s:g} s")
    return list(done), dict(failed)


class _Daemon:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._beside = Beside()
        self._ending = threading.Event()

    def serve(self, ready_fd: int | None) -> None:
        """Until it is told to end, or its owner has ended."""
        for kind in self._config["kinds"]:
            COLLECTORS.load(kind)  # no run is to wait for that
        owner = os.pidfd_open(int(self._config["owner_pid"]))
        listener = listen(Path(self._config["socket"]))
        answering(listener, self._answer)
        say_ready(ready_fd)
        threading.Thread(target=self._outlived, args=(owner,), daemon=True).start()
        self._ending.wait()
        listener.close()

    def _outlived(self, owner: int) -> None:
        select.select([owner], [], [])
        self._ending.set()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = request.get("cmd")
        try:
            if asked == "start":
                told = self._beside.start(
                    Path(request["spool"]), request["collectors"], request["patience_s"]
                )
                return {"ok": True, **told}
            if asked == "stop":
                return {"ok": True, **self._beside.stop(request["patience_s"])}
        except (PenstockError, OSError) as error:
            return {"ok": False, "error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "error": f"no such request: {error}", "bad_input": True}
        return usual_answer(asked, self._ending)


def main(words: list[str]) -> int:
    """Entry point."""
    return run_daemon(words, lambda config: _Daemon(config).serve(config.get("ready_fd")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
