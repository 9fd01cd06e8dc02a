"""Progress of a running trace: on stderr, once a second, with an early first verdict.

On a terminal a table, or one updated line if the command writes to the terminal, too; elsewhere plain lines.
Errors here do not affect the trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from penstock.errors import PenstockError, printable
from penstock.host.processes.daemon import Daemon, connect
from penstock.observe.trace.capture.events import EVENT
from penstock.observe.trace.verdicts.patterns import judge_events, judge_spool, sentence
from penstock.text import size as size_text

_EVERY_S = 1.0
_LOOKS_EVERY_S = 0.25  # interval until the first verdict
_FIRST_AFTER_S, _FIRST_REQUESTS = 1.0, 10_000
_FILES = 3
_LOOKED = 10  # rows of a page
_EVENTS = 20_000  # latest events, evaluated in mode trace
_JUDGED = 32  # minimum number of calls for a verdict
_NAMES = 1 << 16
_PATH = 40

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Sources of the progress: a separate connection to the tracer, its spool and names, a file for
    samples."""

    daemon: Daemon
    mode: str
    spool: Path
    names: Path
    sample: Path


@contextlib.contextmanager
def live_summary(
    source: Source, shown: bool | None, *, quiet: bool = False, named: bool = True
) -> Iterator[None]:
    """Show the records so far, until the block is left.

    `shown`: True always, False never, None if stderr is a terminal. `quiet`: the command's output goes to
    stderr instead of stdout. Unless `named`, files are shown by number.
    """
    if shown is False or (shown is None and not sys.stderr.isatty()):
        yield
        return
    teller = _Teller(source, _output(quiet), _Names(source.names, named))
    teller.start()
    try:
        yield
    finally:
        teller.stop()


class Look:
    """View of a tracer of another process, from its live source (`TraceObserver.live`)."""

    def __init__(self, facts: Mapping[str, Any], sample: Path, *, named: bool = True) -> None:
        daemon = connect("tracer", int(facts["pid"]), str(facts["socket"]))
        places = Path(facts["events"]), Path(facts["names"])
        self._source = Source(daemon, str(facts["mode"]), *places, sample)
        self._names = _Names(places[1], named)

    def look(self) -> tuple[Row, list[Row]]:
        """Counts so far, and the first files with their verdicts. PenstockError if it does not respond."""
        sample = self._source.sample
        status = self._source.daemon.call(
            "status", timeout_s=2.0, top=4 * _FILES, sample=str(sample)
        )
        try:
            return status, verdict_rows(status, _verdicts(self._source), self._names, _LOOKED)
        except OSError as error:
            raise PenstockError(f"{error.filename}: {error.strerror}") from error

    def close(self) -> None:
        """Disconnect from the tracer."""
        self._source.daemon.hang_up()
        self._source.sample.unlink(missing_ok=True)


class _Teller:
    """Thread that requests and writes the progress."""

    def __init__(self, source: Source, output: _Plain, names: _Names):
        self._source = source
        self._output = output
        self._names = names
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        # errors here must not affect the trace
        with contextlib.suppress(Exception):
            try:
                self._tell()
            finally:
                self._output.close()
                self._source.daemon.hang_up()
                self._source.sample.unlink(missing_ok=True)

    def _tell(self) -> None:
        started = time.monotonic()
        due, first = started + _EVERY_S, True
        before: tuple[float, Row] = (started, {"seen": 0, "bytes": 0, "cpu_ns": 0})
        while not self._ended.wait(self._pause_s(due, first)):
            now = time.monotonic()
            if now < due and not (first and self._status(top=0)["kept"] >= _FIRST_REQUESTS):
                continue
            status = self._status(top=4 * _FILES)
            rows = verdict_rows(status, _verdicts(self._source), self._names)
            if first:
                verdict = first_verdict(rows, now - started)
                if verdict is not None:
                    self._output.line(verdict)
                    first = False
            if now >= due:
                self._output.show(summary(status, before, now, now - started), rows)
                before = now, status
                due = now + _EVERY_S

    @staticmethod
    def _pause_s(due: float, first: bool) -> float:
        remaining_s = max(0.01, due - time.monotonic())
        return min(_LOOKS_EVERY_S, remaining_s) if first else remaining_s

    def _status(self, top: int) -> Row:
        return self._source.daemon.call(
            "status", timeout_s=5.0, top=top, sample=str(self._source.sample)
        )


def summary(status: Row, before: tuple[float, Row], now: float, elapsed_s: float) -> str:
    """Elapsed time, counts, rates since `before` (time [s] and answer) and the tracer's CPU, in one line."""
    since_s = max(now - before[0], 1e-6)
    calls, done, cpu = (
        (status[key] - before[1][key]) / since_s for key in ("seen", "bytes", "cpu_ns")
    )
    return (
        f"{elapsed_s:.1f} s: seen {status['seen']}, kept {status['kept']}, lost {status['lost']}; "
        f"{calls:.0f} calls/s, {size_text(done)}/s; tracer {cpu / 1e7:.1f} % CPU"
    )


def first_verdict(rows: list[Row], elapsed_s: float) -> str | None:
    """One line about the file with most time of those with a verdict; None while there is none."""
    for row in rows:
        verdict = row["verdict"]
        if verdict is not None and verdict["class"] not in ("insufficient", "counted"):
            return (
                f"so far, after {elapsed_s:.1f} s: {row['path']}, {row['direction']}: "
                f"{sentence(verdict)}"
            )
    return None


def verdict_rows(
    status: Row, verdicts: dict[tuple[int, str], Row], names: _Names, most: int = _FILES
) -> list[Row]:
    """First files of an answer, with path and the verdict on their latest requests, None without one.

    Files with too few calls for a verdict are omitted if there are others.
    """
    rows = [row for row in status["top"] if row["calls"] >= _JUDGED] or status["top"][:1]
    paths = names.read()
    return [
        row
        | {
            "path": _shown(paths.get(row["file_id"]) or f"file {row['file_id']}"),
            "verdict": verdicts.get((row["file_id"], row["direction"])),
        }
        for row in rows[:most]
    ]


def _verdicts(source: Source) -> dict[tuple[int, str], Row]:
    if source.mode == "pattern":
        judged, _ = judge_spool(source.sample)
    elif source.mode == "trace":
        judged = judge_events(_latest_events(source.spool))
    else:
        return {}
    # calls before faults, if a file has both
    judged.sort(key=lambda row: row["basis"] == "calls")
    return {(row["file_id"], row["direction"]): row["together"] for row in judged}


def _latest_events(spool: Path) -> Any:
    """Last events of the spool, by start time, without an incomplete one."""
    with open(spool, "rb") as file:
        count = file.seek(0, 2) // EVENT.itemsize
        file.seek(max(0, count - _EVENTS) * EVENT.itemsize)
        raw = file.read(min(count, _EVENTS) * EVENT.itemsize)
    events = np.frombuffer(raw[: len(raw) // EVENT.itemsize * EVENT.itemsize], EVENT)
    return events[np.argsort(events["t_ns"], kind="stable")]


class _Names:
    """Paths by number of file, read incrementally."""

    def __init__(self, path: Path, named: bool):
        self._path = path
        self._named = named
        self._read = 0
        self._by_number: dict[int, str] = {}

    def read(self) -> dict[int, str]:
        """Paths read so far."""
        if self._named and len(self._by_number) < _NAMES:
            with open(self._path, "rb") as lines:
                lines.seek(self._read)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    row = json.loads(line)
                    if "file_id" in row and row.get("path_hex"):
                        path = os.fsdecode(bytes.fromhex(row["path_hex"]))
                        self._by_number.setdefault(row["file_id"], path)
        return self._by_number


def _shown(path: str) -> str:
    text = printable(path)
    return text if len(text) <= _PATH else "…" + text[1 - _PATH :]


def _row_text(row: Row) -> str:
    verdict = row["verdict"]
    kind = verdict["class"] if verdict else "not evaluated"
    time_s = f" in {row['time_ns'] / 1e9:.3g} s" if row["time_ns"] else ""
    return f"{row['path']} {row['direction']} {kind}, {row['calls']} calls{time_s}"


def _output(quiet: bool) -> _Plain:
    if not sys.stderr.isatty():
        return _Plain(sys.stderr)
    if sys.stdout.isatty() or quiet:
        return _OneLine(sys.stderr)
    return _Table(sys.stderr)


class _Plain:
    """Lines without control characters."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def line(self, text: str) -> None:
        """Write a permanent line."""
        print(f"penstock: {text}", file=self._stream, flush=True)

    def show(self, counts: str, rows: list[Row]) -> None:
        self.line("; ".join([counts, *map(_row_text, rows)]))

    def close(self) -> None:
        """Restore the terminal."""


class _OneLine(_Plain):
    """One line, updated in place, for a terminal that the command may write to."""

    _CLEAR = "\r\x1b[K"

    def _clear(self) -> None:
        # bypass the escaping of control characters
        getattr(self._stream, "rich_proxied_file", self._stream).write(self._CLEAR)

    def line(self, text: str) -> None:
        self._clear()
        super().line(text)

    def show(self, counts: str, rows: list[Row]) -> None:
        text = "; ".join([counts, *map(_row_text, rows[:1])])
        width = shutil.get_terminal_size().columns - 1
        self._clear()
        self._stream.write(text[:width])
        self._stream.flush()

    def close(self) -> None:
        self._clear()
        self._stream.flush()


class _Table(_Plain):
    """A table, updated in place, for a terminal without other output."""

    def __init__(self, stream: TextIO):
        from rich.live import Live

        from penstock.console import Console

        super().__init__(stream)
        self._console = Console(file=stream)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._live.start()

    def line(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(f"penstock: {text}"))

    def show(self, counts: str, rows: list[Row]) -> None:
        from rich.text import Text

        self._live.update(Text("\n".join([counts, *map(_row_text, rows)])), refresh=True)

    def close(self) -> None:
        self._live.stop()
