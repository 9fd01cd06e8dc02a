"""Scheduled calls: one thread for all, punctual to a millisecond on an idle host."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from penstock.errors import PenstockError


class Timetable:
    """Call functions in order of time; at equal times in order of registration."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._change = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="timetable", daemon=True)
        self._thread.start()

    def at(self, at_ns: int, what: Callable[[], None]) -> None:
        """Call `what` at `at_ns` (CLOCK_MONOTONIC), or at once if that is past."""
        with self._change:
            heapq.heappush(self._due, (at_ns, next(self._order), what))
            self._change.notify()

    def stop(self) -> None:
        """Drop pending calls."""
        with self._change:
            self._ended = True
            self._change.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._ended:
                    wait_s = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else None
                    if wait_s is not None and wait_s <= 0:
                        break
                    self._change.wait(wait_s)
                if self._ended:
                    return
                _, _, what = heapq.heappop(self._due)
            try:
                what()
            except (PenstockError, OSError) as error:
                logging.getLogger(__name__).error("a scheduled change failed: %s", error)
