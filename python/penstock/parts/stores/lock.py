"""The lock of the stores of a host."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from typing import IO

from penstock.errors import PenstockError
from penstock.state import closed, runtime_dir


@contextlib.contextmanager
def changing(patience_s: float | None = None) -> Iterator[None]:
    """Exclude other commands that start or stop stores.

    PenstockError if another one holds the lock for more than `patience_s`.
    """
    with open(runtime_dir() / "stores.lock", "w", opener=closed) as lock:
        if patience_s is None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        else:
            _locked_within(lock, patience_s)
        yield


def _locked_within(lock: IO[str], patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise PenstockError(
                    f"another command has been changing stores for {patience_s:g} s"
                ) from None
            time.sleep(0.01)
