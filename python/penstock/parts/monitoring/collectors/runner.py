"""Runner of collectors, in an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.collector import Collector, Receipt
from penstock.parts.monitoring.experiments.points import Sink
from penstock.plugins import COLLECTORS

T = TypeVar("T")


def collectors_of(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, Collector]:
    """Collectors by name, from settings by name; the kind is the setting `type`, by default the name.

    BadInput for an unknown kind and for invalid settings.
    """
    collectors: dict[str, Collector] = {}
    for name, settings in specs.items():
        if not isinstance(settings, Mapping):
            raise BadInput(f"collector {name}: found {settings!r}; expected its settings")
        rest = {key: value for key, value in settings.items() if key != "type"}
        collectors[name] = COLLECTORS.load(str(settings.get("type", name)))(name, rest)
    return collectors


class _Counting(ThreadPoolExecutor):
    """Thread pool that counts its processor time."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="collecting")
        self.used_ns = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def counted() -> T:
            before = time.thread_time_ns()
            try:
                return fn(*args, **kwargs)
            finally:
                with self._lock:
                    self.used_ns += time.thread_time_ns() - before

        return super().submit(counted)


class Collecting:
    """Runs collectors that write to one sink:

        with Collecting(collectors_of({"graphite": {"port": 2003}}), sink) as collecting:
            …
        collecting.receipts["graphite"].stored

    If a collector cannot start, the started ones are stopped, and its error is raised.
    """

    def __init__(self, collectors: Mapping[str, Collector], sink: Sink) -> None:
        self.collectors = dict(collectors)
        self.receipts: dict[str, Receipt] = {}
        self._sink = sink
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="collectors", daemon=True
        )
        self._started: list[str] = []
        self._threads = _Counting()
        self._loop_ns = 0

    def cpu_ns(self) -> int:
        """Processor time of its threads, without child processes [ns]."""
        if self._thread.is_alive() and self._thread.ident is not None:
            with contextlib.suppress(OSError):
                clock = time.pthread_getcpuclockid(self._thread.ident)
                self._loop_ns = time.clock_gettime_ns(clock)
        return self._loop_ns + self._threads.used_ns

    def receipt_of(self, name: str) -> Receipt | None:
        """Counts of a collector, so far or final; None if it has none before its stop."""
        intake = getattr(self.collectors[name], "intake", None)
        return self.receipts.get(name) or getattr(intake, "receipt", None)

    def start(self) -> Collecting:
        """Start all collectors."""
        self._loop.set_default_executor(self._threads)
        self._thread.start()
        try:
            for name, collector in self.collectors.items():
                self._do(collector.start(self._sink))
                self._started.append(name)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> dict[str, Receipt]:
        """Stop all collectors and return their receipts. The first error is raised after all have stopped."""
        failed: list[BaseException] = []
        while self._started:
            name = self._started.pop()
            try:
                self.receipts[name] = self._do(self.collectors[name].stop())
            except Exception as error:
                failed.append(error)
        self.cpu_ns()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        if failed:
            raise failed[0]
        return self.receipts

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> Collecting:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
