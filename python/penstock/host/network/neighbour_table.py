"""The kernel's neighbour table (arp(7)): one for all network namespaces of a host, 1,024 entries by default.

A hundred nodes that all communicate need ten thousand. Packets to a neighbour without an entry are dropped,
and only the kernel's log reports it. The two limits, above which the kernel drops entries and above which it
creates none, are raised by the needs of a cluster, and lowered by the same amount when it stops.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.processes.processes import boot_id

_LIMITS = Path("/proc/sys/net/ipv4/neigh/default")
_NAMES = ("gc_thresh3", "gc_thresh2")
#: entries that are available by default, apart from those of the host
ENOUGH = 256


def needed(nodes: Iterable[int], elsewhere: Iterable[int] = itertools.repeat(0)) -> int:
    """Entries if all nodes communicate; `nodes`: number of nodes on each network here, `elsewhere`: on other
    hosts. Each node here needs the others and the host, which needs each node here."""
    return sum(here * (here + far + 1) for here, far in zip(nodes, elsewhere, strict=False))


def lacks_room(entries: int) -> bool:
    """True if N entries are too many and we cannot raise the limits (in a container)."""
    return entries > ENOUGH and not all(os.access(_LIMITS / name, os.W_OK) for name in _NAMES)


def reserve(entries: int, journal: Journal, run: str | None = None) -> list[Entry]:
    """Raise the limits by N entries, if necessary and permitted; returns the entries to release."""
    if entries <= ENOUGH or lacks_room(entries):
        return []
    reserved: list[Entry] = []
    try:
        for name in _NAMES:
            path = _LIMITS / name
            with _locked(path):
                others = _reserved(path, journal)
                before = int(others[0].old) if others else _read(path)
                entry = journal.plan("neighbours", path, run=run, old=before, new=entries)
                reserved.append(entry)
                _write(path, before + sum(int(e.new) for e in [*others, entry]))
                journal.done(entry)
    except BaseException as error:
        for entry in reserved:
            release(entry, journal)
            journal.undone(entry)
        if isinstance(error, OSError):
            raise PenstockError(f"{_LIMITS}: raised by {entries}: {error.strerror}") from error
        raise
    return reserved


def release(entry: Entry, journal: Journal) -> tuple[str, str]:
    """Lower the limits by one reservation; returns the outcome. Other reservations stay.

    It no longer counts from then on, though its entry is closed later.
    """
    path = Path(entry.target)
    if not path.exists():
        return "gone", ""
    with _locked(path):
        journal.done(entry, released=True)
        others = _reserved(path, journal)
        rest = int(entry.old) + sum(int(e.new) for e in others)
        now = _read(path)
        if now == rest:
            return "gone", ""
        if now != rest + int(entry.new):
            return "left", f"another program set it to {now}; penstock had set {rest + entry.new}"
        _write(path, rest)
    return "undone", ""


def _reserved(path: Path, journal: Journal) -> list[Entry]:
    here = boot_id()
    return [
        entry
        for entry in journal.open_entries()
        if (entry.kind, entry.target, entry.owner.boot_id) == ("neighbours", str(path), here)
        and not entry.facts.get("released")
    ]


def _read(path: Path) -> int:
    return int(path.read_text())


def _write(path: Path, value: int) -> None:
    path.write_text(f"{min(value, 2**31 - 1)}\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a limit for reading and setting."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
