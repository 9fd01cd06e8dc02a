"""Receipts of what was fetched of servers elsewhere: lines while an experiment runs, then in its manifest.

A line `begun` pins a window and the number of its first batch before anything of it is written; `kept` says
that all of it was, `failed` that the server did not give it, `dropped` that it is not missed. So whoever is
killed in between asks for the same window again, and its batches, of the same numbers, double nothing.
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
#: windows of one metric that a receipt tells apart
_MOST_RANGES = 1_000


def lines_of(live: Path) -> list[Receipt]:
    """What the directory of a running experiment has, line by line."""
    try:
        return read_lines(live / FILE)
    except FileNotFoundError:
        return []


def append(live: Path, line: Mapping[str, Any]) -> None:
    """Keeps a line. Closed where the experiment has ended, PenstockError where there is no room."""
    try:
        append_line(live / FILE, line)
    except FileNotFoundError:
        raise Closed("the experiment has ended") from None
    except OSError as error:
        raise PenstockError(f"{live}: {error.strerror}; the receipt was not kept") from error


def receipts(lines: list[Receipt]) -> list[Receipt]:
    """One receipt for each source, of all its lines."""
    found: dict[str, Receipt] = {}
    opened: dict[str, Receipt] = {}
    for line in lines:
        source, state = line["source"], line["state"]
        opened.pop(source, None)
        if state == "begun":
            opened[source] = line
        elif state == "failed":
            found.setdefault(source, {**line["asked"], "source": source})["error"] = line["error"]
        elif state == "kept":
            one = found.setdefault(source, {})
            one.update(line["asked"], source=source, sent=line["sent"])
            one.pop("error", None)
            for key in ("requests", "points", "batches"):
                one[key] = one.get(key, 0) + line[key]
            one["ranges"] = [*one.get("ranges", []), *line["ranges"]][-_MOST_RANGES:]
    for source, line in opened.items():
        one = found.setdefault(source, {**line["asked"], "source": source})
        one["error"] = "it was not read to its end"
    return list(found.values())


def window(lines: list[Receipt], start_ns: int) -> tuple[int, int, tuple[int, int, int] | None]:
    """Of one source: from when on and with which number it goes on, and the window that is pinned."""
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
    """Of an experiment that runs, or that has ended."""
    with contextlib.suppress(FileNotFoundError):
        if experiment.live.is_dir():
            return receipts(lines_of(experiment.live))
    try:
        found: list[Receipt] = Bundle.open(experiment.path).manifest.get("fetched", [])
    except PenstockError:
        return []
    return found


def missing(found: list[Receipt]) -> str:
    """Why not all of it is there, in a sentence; empty where it is."""
    failed = [f"{r['metric']} of {r['server']} ({r['error']})" for r in found if "error" in r]
    return f"not fetched: {'; '.join(failed[:5])}" if failed else ""


@contextlib.contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Held by who fetches for an experiment. Closed where its directory is gone."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Closed("the experiment has ended") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
