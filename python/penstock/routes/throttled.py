"""Periodically computed values with limited cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: maximum share of a processor's time that one value uses
_CPU_SHARE = 0.015


class Throttled:
    """A value that is computed every `every_s` seconds; less often if this exceeds `_CPU_SHARE`."""

    def __init__(self, compute: Callable[[], Any], every_s: float) -> None:
        self._compute = compute
        self._every_s = every_s
        self._due = 0.0
        self.value: Any = None

    def refresh(self) -> bool:
        """Compute the value if it is due. True if it was."""
        now = time.monotonic()
        if now < self._due:
            return False
        before = time.thread_time()
        self.value = self._compute()
        self._due = now + max(self._every_s, (time.thread_time() - before) / _CPU_SHARE)
        return True
