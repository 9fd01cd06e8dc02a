"""State of one of Ceph's daemons: its socket, the polls due, and its silence."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

from penstock.errors import printable
from penstock.parts.monitoring.collectors.products.perf_counters import Counters, Series
from penstock.parts.monitoring.experiments.points import Event, canonical_labels

SUCCESS = "ceph_success"
#: sockets of one pattern; events of one daemon and poll
MOST_SOCKETS, _MOST_EVENTS = 1_000, 100
#: CLUSTER-NAME.asok; NAME is followed by the process of a client, or of any daemon if so configured
_NAME = re.compile(
    r"^(?:.*?-)?(?P<name>(?P<kind>osd|mon|mds|mgr|client)\.(?:\d+|.+?))(?:\.(?P<process>\d+(?:\.\d+)?))?$"
)


class Socket(NamedTuple):
    """An admin socket; `identity` changes when the daemon restarts."""

    path: str
    labels: Mapping[str, str]
    identity: tuple[int, int, int]


class Row(NamedTuple):
    """A point without timestamp."""

    metric: str
    labels: str
    unit: str
    value: float


def labels_of(path: str) -> dict[str, str]:
    """Label `daemon` by the path of a socket; for clients, which may share a name, also `process`."""
    stem = os.path.basename(path).removesuffix(".asok")
    match = _NAME.match(stem)
    if match is None:
        return {"daemon": stem}
    process = {"process": match["process"]} if match["process"] else {}
    return {"daemon": match["name"], **(process if match["kind"] == "client" else {})}


def sockets_at(places: Sequence[tuple[str, Mapping[str, str]]]) -> tuple[dict[str, Socket], str]:
    """Sockets by labels, for patterns with additional labels, and an error message or "".

    If a daemon has several, the newest one is used: a daemon that is killed leaves its socket behind.
    """
    sockets: dict[str, Socket] = {}
    error = ""
    for pattern, labels in places:
        paths = list(islice(glob.iglob(pattern), MOST_SOCKETS + 1))
        if not paths:
            error = error or f"{pattern}: found no socket"
        if len(paths) > MOST_SOCKETS:
            error = f"{pattern}: found more than {MOST_SOCKETS} sockets"
        for path in paths[:MOST_SOCKETS]:
            try:
                status = os.stat(path)
            except OSError:
                continue
            if not stat.S_ISSOCK(status.st_mode) or not path.isprintable():
                error = f"{printable(path)}: found no socket"
                continue
            socket = Socket(
                path,
                {**labels, **labels_of(path)},
                (status.st_mtime_ns, status.st_ino, status.st_dev),
            )
            previous = sockets.setdefault(canonical_labels(socket.labels), socket)
            if previous.identity < socket.identity:
                sockets[canonical_labels(socket.labels)] = socket
    return sockets, error


@dataclass
class Daemon:
    """State of one daemon; `begin_ns` is the start of collection.

    `_polls` counts polls since its discovery, including missed ones; `_due` those while its socket existed.
    """

    labels: Mapping[str, str]
    begin_ns: int
    socket: Socket | None = None
    counters: Counters | None = None
    #: by series: polls due before its first point
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    _due: int = 0
    _polls: int = 0
    _heard_ns: int | None = None
    _began_anew: bool = False
    _identity: tuple[int, int, int] | None = None
    _quiet: tuple[Literal["gap", "disabled"], int, str] | None = None
    _last: dict[tuple[str, str], float] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name in messages."""
        own = [self.labels[k] for k in ("host", "daemon", "process") if k in self.labels]
        return printable(" ".join(own))

    @property
    def heard(self) -> bool:
        """True if it has answered before."""
        return self._heard_ns is not None

    def set_socket(self, socket: Socket | None) -> None:
        """Set the current socket, None if there is none."""
        self.socket = socket
        if socket is None or socket.identity == self._identity:
            return
        self.counters, self._identity = None, socket.identity
        self._began_anew = self._heard_ns is not None

    def came_later(self) -> None:
        """Record that the daemon did not exist until now."""
        self._quiet = ("disabled", self.begin_ns, "it did not exist before")

    def passed(self, polls: int) -> None:
        """Count polls that are due, including missed ones."""
        self._polls += polls
        self._due += polls * (self.socket is not None)

    def take(
        self, utc_ns: int, reply: Sequence[tuple[Series, float]] | str, missed: int, room: int
    ) -> tuple[list[Row], list[tuple[str, str]], list[Event]]:
        """Rows, new series (at most `room`), and events of a poll.

        `reply`: values, or an error message. `missed`: missed polls before it.
        """
        self.passed(1 + missed)
        values = [] if isinstance(reply, str) else reply
        rows = [Row(SUCCESS, self._text(""), "", float(not isinstance(reply, str)))]
        rows += [Row(s.metric, self._text(s.entity), s.unit, value) for s, value in values]
        new = [(r.metric, r.labels) for r in rows if (r.metric, r.labels) not in self.seen]
        if len(new) > (room := max(0, room)):
            omitted = set(new[room:])
            rows = [r for r in rows if (r.metric, r.labels) not in omitted]
            del new[room:]
        events = list(self._changed(utc_ns, reply))
        if values:
            events += self._of_values(utc_ns, values, new)
            self._heard_ns = utc_ns
        self.seen |= {key: (self._polls if key[0] == SUCCESS else self._due) - 1 for key in new}
        return rows, new, events

    def expected(self) -> dict[tuple[str, str], int]:
        """Number of points due, by series."""
        return {
            (metric, labels): (self._polls if metric == SUCCESS else self._due) - before
            for (metric, labels), before in self.seen.items()
        }

    def ended(self, utc_ns: int) -> list[Event]:
        """Events at the end of collection."""
        return list(self._back(utc_ns))

    def _text(self, entity: str) -> str:
        text = self._texts.get(entity)
        if text is None:
            own = {"entity": entity} if entity else {}
            text = self._texts[entity] = canonical_labels({**self.labels, **own})
        return text

    def _changed(self, utc_ns: int, reply: Sequence[tuple[Series, float]] | str) -> Iterator[Event]:
        """Update the state of silence; yields events when it ends."""
        kind: Literal["gap", "disabled"] | None = None
        if isinstance(reply, str):
            kind = "disabled" if self.socket is None else "gap"
        if self._quiet is not None and kind != self._quiet[0]:
            yield from self._back(utc_ns)
            since_ns = utc_ns
        else:
            since_ns = self._heard_ns if self._heard_ns is not None else self.begin_ns
        if kind is not None and self._quiet is None:
            self._quiet = (kind, since_ns, str(reply))

    def _back(self, utc_ns: int) -> Iterator[Event]:
        if self._quiet is None:
            return
        kind, since_ns, reason = self._quiet
        self._quiet = None
        for text in islice(self._texts.values(), _MOST_EVENTS):
            yield Event(kind, since_ns, utc_ns, labels=text, detail=f"{self.name}: {reason}")

    def _of_values(
        self,
        utc_ns: int,
        values: Sequence[tuple[Series, float]],
        new: Sequence[tuple[str, str]],
    ) -> Iterator[Event]:
        """Events of restarts, of counters that decreased, and of new series."""
        grown = {(s.metric, self._text(s.entity)): v for s, v in values if s.grows}
        if self._began_anew:
            for text in islice(self._texts.values(), _MOST_EVENTS):
                yield Event("restart", utc_ns, labels=text, detail=f"{self.name} was restarted")
        else:
            back = [k for k, v in grown.items() if v < self._last.get(k, v)]
            for metric, text in back[:_MOST_EVENTS]:
                was = f"{self._last[metric, text]:g} to {grown[metric, text]:g}"
                detail = f"{self.name}: {metric} went back from {was}"
                yield Event("reset", utc_ns, metric=metric, labels=text, detail=detail)
        self._began_anew = False
        self._last = grown
        if self._heard_ns is not None:
            for metric, text in new[:_MOST_EVENTS]:
                detail = f"{self.name}: it did not exist before"
                yield Event("disabled", self.begin_ns, utc_ns, metric, text, detail)
