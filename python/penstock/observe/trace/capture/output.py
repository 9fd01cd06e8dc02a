"""Stdout of a traced command: passed to ours, and copied to a file of the bundle."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 16
_ORPHANS_WITHIN_S = 2.0


@dataclass(frozen=True)
class PassThrough:
    """Stdout without a copy: to `sink`, None for ours."""

    sink: int | None
    unwritten: str | None = None


class Output:
    """Copy the data of `sink` to the file descriptor `onward` and to the file `log`.

    If the log cannot be written, the copy ends, and `unwritten` has the reason; the command is not affected.
    """

    def __init__(self, log: Path, onward: int):
        self.unwritten: str | None = None
        self._path = log
        self._log: int | None = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._onward: int | None = onward
        self._source, self.sink = os.pipe()
        self._taken = self._passed = 0
        self._copier = threading.Thread(target=self._copy, daemon=True)
        self._copier.start()

    def finish(self, *, orphans: bool) -> None:
        """Wait until all output is passed on; with orphaned children, 2 s for their output.

        Output that has arrived by then is waited for however slow the reader is, except after a
        KeyboardInterrupt.
        """
        os.close(self.sink)
        with contextlib.suppress(KeyboardInterrupt):
            self._copier.join(_ORPHANS_WITHIN_S if orphans else None)
            goal = self._taken + self._waiting()
            while self._copier.is_alive() and self._passed < goal:
                self._copier.join(0.05)

    def _waiting(self) -> int:
        """Bytes in the pipe."""
        try:
            raw = fcntl.ioctl(self._source, termios.FIONREAD, bytes(4))
        except OSError:  # closed: the copying thread is done
            return 0
        return int(struct.unpack("i", raw)[0])

    def _copy(self) -> None:
        try:
            while chunk := os.read(self._source, _CHUNK):
                self._taken += len(chunk)
                self._keep(chunk)
                self._pass_on(chunk)
                self._passed += len(chunk)
        finally:
            os.close(self._source)
            self._close_log()

    def _keep(self, chunk: bytes) -> None:
        if self._log is None:
            return
        try:
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[os.write(self._log, unwritten) :]
        except OSError as error:
            self.unwritten = f"{self._path.name}: {error.strerror}"
            self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.close(self._log)
            self._log = None

    def _pass_on(self, chunk: bytes) -> None:
        """Write all of it, also to a slow reader or a non-blocking file; nothing if the reader is gone."""
        unsent = memoryview(chunk)
        while unsent and self._onward is not None:
            try:
                unsent = unsent[os.write(self._onward, unsent) :]
            except BlockingIOError:
                poller = select.poll()
                poller.register(self._onward, select.POLLOUT)
                poller.poll()
            except OSError:
                self._onward = None


@contextlib.contextmanager
def copied(log: Path, onward: int, orphans: Callable[[], bool]) -> Iterator[Output]:
    """An Output while a command runs; `orphans` reports afterwards if children of it still run."""
    output = Output(log, onward)
    try:
        yield output
    finally:
        output.finish(orphans=orphans())
