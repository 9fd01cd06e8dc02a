"""Receipts of data fetched from remote servers: lines while an experiment runs, then in its manifest.

A line `begun` pins a window and the number of its first batch before any of it is written; `kept` records
that all of it was written, `failed` that the server did not return it, `dropped` that it is not missed. So a
process killed in between requests the same window again, and its batches, with the same numbers, are
duplicates.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.parts.monitoring.experiments.points import Closed
from penstock.parts.monitoring.outbox.lines import append_line, read_lines

if TYPE_CHECKING:
    from penstock.parts.monitoring.experiments.experiment import Experiment

FILE = "fetched.jsonl"
Receipt = dict[str, Any]
#: windows of one metric that a receipt lists at most
_MOST_RANGES = 1_000


def lines_of(live: Path) -> list[Receipt]:
    """Lines of the directory of a running experiment."""
    try:
        return read_lines(live / FILE)
    except FileNotFoundError:
        return []


def append(live: Path, line: Mapping[str, Any]) -> None:
    """Store a line. Raises Closed if the experiment has ended, PenstockError if there is no room."""
    try:
        append_line(live / FILE, line)
    except FileNotFoundError:
        raise Closed("the experiment has ended") from None
    except OSError as error:
        raise PenstockError(f"{live}: {error.strerror}; the receipt was not stored") from error


def receipts(lines: list[Receipt]) -> list[Receipt]:
    """One receipt for each source, of all its lines."""
    by_source: dict[str, Receipt] = {}
    opened: dict[str, Receipt] = {}
    for line in lines:
        source, state = line["source"], line["state"]
        opened.pop(source, None)
        if state == "begun":
            opened[source] = line
        elif state == "failed":
            by_source.setdefault(source, {**line["asked"], "source": source})["error"] = line[
                "error"
            ]
        elif state == "kept":
            one = by_source.setdefault(source, {})
            one.update(line["asked"], source=source, sent=line["sent"])
            one.pop("error", None)
            for key in ("requests", "points", "batches"):
                one[key] = one.get(key, 0) + line[key]
            one["ranges"] = [*one.get("ranges", []), *line["ranges"]][-_MOST_RANGES:]
    for source, line in opened.items():
        one = by_source.setdefault(source, {**line["asked"], "source": source})
        one["error"] = "it was not read to its end"
    return list(by_source.values())


def window(lines: list[Receipt], start_ns: int) -> tuple[int, int, tuple[int, int, int] | None]:
    """Next start and next batch number of one source, and its pinned window, if any."""
    number, pinned = 0, None
    for line in lines:
        if line["state"] == "kept":
            number, start_ns, pinned = line["next_number"], line["next_ns"], None
        elif line["state"] == "begun":
            pinned = (line["start_ns"], line["end_ns"], line["number"])
        elif not line.get("again"):
            pinned = None
    return start_ns, number, pinned


def receipts_of(experiment: Experiment) -> list[Receipt]:
    """Receipts of an experiment, running or ended."""
    with contextlib.suppress(FileNotFoundError):
        if experiment.live.is_dir():
            return receipts(lines_of(experiment.live))
    try:
        stored: list[Receipt] = Bundle.open(experiment.path).manifest.get("fetched", [])
    except PenstockError:
        return []
    return stored


def missing(fetched: list[Receipt]) -> str:
    """Reason of missing data, in a sentence; empty if nothing is missing."""
    failed = [f"{r['metric']} of {r['server']} ({r['error']})" for r in fetched if "error" in r]
    return f"not fetched: {'; '.join(failed[:5])}" if failed else ""


@contextlib.contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Lock of a process that fetches for an experiment. Raises Closed if its directory is gone."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Closed("the experiment has ended") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
