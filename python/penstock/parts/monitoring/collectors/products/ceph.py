"""Counters of Ceph's daemons, read from their admin sockets without Ceph's programs.

Settings: `sockets` (["/var/run/ceph/*.asok"]), paths or patterns of them, or {path, labels}; `counters`,
patterns of COLLECTION.NAME, or ["all"] (`perf_counters.USUAL`); `labels`, `interval_s` (1), `timeout_s`.
`perf_counters.py` defines the metrics. The label `daemon` is the daemon's name; `process` distinguishes
clients of the same name. Poll k is due at t0 + k x interval; a missed poll is counted, not made up for.
`ceph_success` (0 or 1) is stored for each poll and daemon. Points of a daemon that does not answer are lost;
while it has no socket, it counts as switched off. A socket on which nothing ever listened is reported, and is
not counted as a daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import BadInput, PenstockError, printable
from penstock.parts.monitoring.collectors.collector import (
    FailedError,
    Intake,
    Receipt,
    due,
    ended,
    interval_of,
    only,
    setting,
    timeout_of,
)
from penstock.parts.monitoring.collectors.products.admin_socket import ask
from penstock.parts.monitoring.collectors.products.ceph_daemon import (
    Daemon,
    Row,
    Socket,
    sockets_at,
)
from penstock.parts.monitoring.collectors.products.perf_counters import (
    MOST_COUNTERS,
    USUAL,
    Counters,
    Series,
)
from penstock.parts.monitoring.experiments.points import Account, Closed, Event, Sink, points

SOCKETS = "/var/run/ceph/*.asok"
MOST_PATTERNS, MOST_DAEMONS = 1_000, 1_000
#: maximum number of series of all daemons
MOST_SERIES = 50_000
#: number of concurrent requests
_AT_ONCE = 32
NOBODY = "nothing listens at its socket"


class CephPoller:
    """Polls the daemons of one or several nodes."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("sockets", "counters", "labels", "interval_s", "timeout_s"))
        self.name = name
        labels = setting(name, settings, "labels", Mapping, {})
        self._places = [
            _place(name, spec, labels) for spec in _listed(name, settings, "sockets", [SOCKETS])
        ]
        self._chosen = _listed(name, settings, "counters", USUAL)
        for pattern in self._chosen:
            if not isinstance(pattern, str) or not pattern or not pattern.isprintable():
                raise BadInput(
                    f"{name}: found counter {printable(repr(pattern)[:80])}; expected COLLECTION.NAME, "
                    "a pattern of such, or all"
                )
        self._interval_s = interval_of(name, settings)
        self._timeout_s = timeout_of(name, settings, min(5.0, 0.9 * self._interval_s))
        #: by labels
        self._daemons: dict[str, Daemon] = {}
        #: write of the current poll; its thread cannot be cancelled
        self._keeping: asyncio.Future[None] | None = None
        self._missed = 0
        self._stale_reported = False

    async def start(self, sink: Sink) -> None:
        self.intake = Intake(self.name, sink)
        self._begin_ns = time.time_ns()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> Receipt:
        await ended(self._task)
        if self._keeping is not None:
            await asyncio.gather(self._keeping, return_exceptions=True)
        now = time.time_ns()
        accounts: list[Account] = []
        events: list[Event] = []
        for daemon in self._daemons.values():
            daemon.passed(self.intake.receipt.counted["missed"] - self._missed)
            events += daemon.ended(now)
            accounts += [self._account(m, s, n) for (m, s), n in daemon.expected().items()]
        with contextlib.suppress(Closed):
            await asyncio.to_thread(self.intake.keep, points(metric=[]), accounts, events)
            await asyncio.to_thread(self.intake.ends)
        return self.intake.receipt

    def _account(self, metric: str, labels: str, expected: int | None = None) -> Account:
        # after a restart, polls due before it are unknown: the experiment is counted from its start
        count = None if self.intake.began_anew else expected
        return Account(metric, labels, round(self._interval_s * 1e9), expected=count)

    async def _poll(self) -> None:
        receipt = self.intake.receipt
        async for utc_ns in due(self._interval_s, self.intake):
            sockets, socket_error = await asyncio.to_thread(sockets_at, self._places)
            if socket_error:
                self._add_error(socket_error)
            self._find(sockets)
            daemons = list(self._daemons.values())
            replies = await asyncio.gather(*map(self._read, daemons))
            self._keeping = asyncio.ensure_future(
                asyncio.to_thread(self._store, utc_ns, daemons, replies)
            )
            try:
                await asyncio.shield(self._keeping)
            except PenstockError as error:
                receipt.failed(str(error))
                if isinstance(error, Closed):
                    return

    def _find(self, sockets: Mapping[str, Socket]) -> None:
        for key, socket in sockets.items():
            if key in self._daemons:
                continue
            if len(self._daemons) == MOST_DAEMONS:
                self._add_error(f"found more than {MOST_DAEMONS} daemons")
                break
            self._daemons[key] = daemon = Daemon(socket.labels, self._begin_ns)
            if self.intake.receipt.counted["due"] > 1:
                daemon.came_later()
        for key, daemon in list(self._daemons.items()):
            daemon.set_socket(sockets.get(key))
            if daemon.socket is None and not daemon.heard:
                del self._daemons[key]

    def _add_error(self, message: str) -> None:
        if message not in self.intake.receipt.errors:
            self.intake.receipt.add_error(message)

    async def _read(self, daemon: Daemon) -> Sequence[tuple[Series, float]] | str:
        """Values of a daemon's counters, or an error message."""
        if daemon.socket is None:
            return "its socket is gone"
        try:
            async with self._at_once, asyncio.timeout(self._timeout_s):
                return await self._counted(daemon, daemon.socket.path)
        except TimeoutError:
            return f"no answer in {self._timeout_s:g} s"
        except FailedError as error:
            return str(error)
        except ValueError as error:
            return f"found {error}"
        except ConnectionRefusedError:
            return NOBODY
        except OSError as error:
            return error.strerror or str(error)

    async def _counted(self, daemon: Daemon, path: str) -> Sequence[tuple[Series, float]]:
        counters = daemon.counters or await self._counters(path)
        dump = await ask(path, "perf dump")
        values, new = await asyncio.to_thread(counters.read, dump)
        if new:  # new counters, as of an image that was opened since
            counters = await self._counters(path)
            values, missing = await asyncio.to_thread(counters.read, dump)
            counters.seen |= missing
        daemon.counters = counters
        return values

    async def _counters(self, path: str) -> Counters:
        schema = await ask(path, "perf schema")
        counters = await asyncio.to_thread(Counters, schema, self._chosen)
        if counters.omitted:
            self._add_error(f"{path}: found {counters.omitted} counters more than {MOST_COUNTERS}")
        return counters

    def _store(
        self,
        utc_ns: int,
        daemons: Sequence[Daemon],
        replies: Sequence[Sequence[tuple[Series, float]] | str],
    ) -> None:
        counted = self.intake.receipt.counted
        missed, self._missed = counted["missed"] - self._missed, counted["missed"]
        stale: list[Daemon] = []
        rows: list[Row] = []
        accounts: list[Account] = []
        events: list[Event] = []
        room = MOST_SERIES - sum(len(d.seen) for d in self._daemons.values())
        for daemon, reply in zip(daemons, replies, strict=True):
            if reply == NOBODY and not daemon.heard:
                daemon.came_later()
                stale.append(daemon)
                continue
            if isinstance(reply, str):
                counted["failed"] += daemon.socket is not None
                self._add_error(f"{daemon.name}: {reply}")
            new_rows, new, new_events = daemon.take(utc_ns, reply, missed, room)
            rows += new_rows
            accounts += [self._account(metric, labels) for metric, labels in new]
            events += new_events
            room -= len(new)
        if stale and not self._stale_reported:
            # sockets of programs that were killed, or do not remove theirs
            many = "" if len(stale) == 1 else f", and at {len(stale) - 1} more"
            self._add_error(f"{stale[0].name}: {NOBODY}{many}")
            self._stale_reported = True
        if room <= 0:
            self._add_error(f"found more than {MOST_SERIES} series")
        table = points(
            metric=[r.metric for r in rows],
            labels=[r.labels for r in rows],
            unit=[r.unit for r in rows],
            utc_ns=[utc_ns] * len(rows),
            float=[r.value for r in rows],
        )
        self.intake.keep(table, accounts, events)


def _listed(
    name: str, settings: Mapping[str, Any], key: str, default: Sequence[Any]
) -> Sequence[Any]:
    patterns: Sequence[Any] = setting(name, settings, key, (tuple, list), default)
    if not 0 < len(patterns) <= MOST_PATTERNS:
        raise BadInput(f"{name}: found {len(patterns)} {key}; expected 1 to {MOST_PATTERNS}")
    return patterns


def _place(name: str, spec: Any, labels: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    own = {"path": spec} if isinstance(spec, str) else spec
    if not isinstance(own, Mapping):
        raise BadInput(f"{name}: found socket {printable(repr(spec)[:80])}; expected a path")
    only(name, own, ("path", "labels"))
    path = setting(name, own, "path", str, ...)
    if not path.startswith("/") or not path.isprintable():
        raise BadInput(f"{name}: found socket {printable(repr(path)[:80])}; expected a path from /")
    merged = {**labels, **setting(name, own, "labels", Mapping, {})}
    return path, {str(k): str(v) for k, v in merged.items()}
