"""A scraper of what exporters show (Prometheus text, OpenMetrics), each target at its own interval.

Scrape k of a target is due at t0 + k x interval. One that cannot begin in its interval is counted as missed
and never made up for. Of each scrape three series say how it went: `scrape_success` (0 or 1),
`scrape_duration_seconds` and `scrape_lateness_seconds`, with the label `instance`; points bear the time when
their scrape began.

Settings: `targets`, a list of URLs or of {url, interval_s, instance}; `interval_s` (1, from 0.01 on),
`timeout_s`, `own_times` (false).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import pyarrow as pa

from penstock.errors import BadInput, PenstockError
from penstock.observe.monitor.collectors.collector import (
    Intake,
    Receipt,
    only,
    setting,
    table_of,
    unit_of,
)
from penstock.observe.monitor.points import (
    Account,
    Closed,
    Sink,
    canonical_labels,
    points,
)

native: Any = importlib.import_module("penstock._native")

#: the shortest interval [s]
SHORTEST_S = 0.01
#: how long points are gathered before they are kept [s], and how many while they cannot be
GATHERED_S = 0.2
MOST_WAITING = 2_000_000
#: what one target may show [bytes]
MOST_SHOWN = 16 << 20
MOST_TARGETS = 10_000
#: metrics of a scrape itself, with their units
_OWN = (
    ("scrape_success", ""),
    ("scrape_duration_seconds", "s"),
    ("scrape_lateness_seconds", "s"),
)


class _FailedError(Exception):
    """Why a scrape gave nothing."""


@dataclass
class Target:
    """What is scraped, and how it went."""

    host: str
    port: int
    path: str
    instance: str
    interval_s: float
    timeout_s: float
    reader: Any = None
    due: int = 0
    missed: int = 0
    failed: int = 0
    late: int = 0
    #: series by metric and labels, and how many scrapes had been due when each was first seen
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter, h11.Connection] | None = None

    def close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self.connection[1].close()
            self.connection = None


class Scraper:
    """Scrapes targets of its own."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("targets", "interval_s", "timeout_s", "own_times"))
        self.name = name
        self._own_times = setting(name, settings, "own_times", bool, False)
        asked = setting(name, settings, "targets", list, ...)
        if not 0 < len(asked) <= MOST_TARGETS:
            raise BadInput(f"{name}: found {len(asked)} targets; expected 1 to {MOST_TARGETS}")
        self.targets = [self._target(one, settings) for one in asked]
        self._tables: list[pa.Table] = []
        self._waiting = 0

    def _target(self, one: Any, settings: Mapping[str, Any]) -> Target:
        own = {"url": one} if isinstance(one, str) else one
        if not isinstance(own, Mapping):
            raise BadInput(f"{self.name}: found target {one!r}; expected a URL")
        only(self.name, own, ("url", "interval_s", "timeout_s", "instance"))
        both = {**settings, **own}
        url = setting(self.name, own, "url", str, ...)
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        if parts.scheme != "http" or not host or not url.isprintable() or " " in url:
            raise BadInput(f"{self.name}: found target {url!r}; expected http://HOST:PORT/PATH")
        interval_s = float(setting(self.name, both, "interval_s", (int, float), 1.0))
        if not SHORTEST_S <= interval_s <= 86400:
            raise BadInput(
                f"{self.name}: found interval_s {interval_s:g}; expected {SHORTEST_S:g} to 86400"
            )
        timeout_s = float(
            setting(self.name, both, "timeout_s", (int, float), min(10.0, max(1.0, interval_s)))
        )
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        instance = setting(self.name, own, "instance", str, f"{host}:{port}")
        return Target(host, port, path, instance, interval_s, timeout_s)

    async def start(self, sink: Sink) -> None:
        self.intake = Intake(self.name, sink, unit=unit_of)
        self._ending = self._stopping = False
        # one clock for all: a step of the host's does not reach the points
        self._utc_ns = time.time_ns() - time.monotonic_ns()
        for target in self.targets:
            target.reader = native.PointReader()
        self._tasks = [asyncio.create_task(self._scrape(target)) for target in self.targets]
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> Receipt:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ending = True
        await self._keeping
        counted = self.intake.receipt.counted
        for target in self.targets:
            target.close()
            counted["due"] += target.due
            counted["missed"] += target.missed
            counted["failed"] += target.failed
            counted["late"] += target.late
        return self.intake.receipt

    async def _scrape(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        t0, k = loop.time(), 0
        while not self._stopping:
            due = t0 + k * target.interval_s
            wait = due - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            began = loop.time()
            target.due += 1
            late_s = max(0.0, began - due)
            target.late += late_s > target.interval_s / 2
            utc_ns = time.monotonic_ns() + self._utc_ns
            try:
                # not wait_for, which may take a cancellation for its own
                async with asyncio.timeout(target.timeout_s):
                    body, open_metrics = await self._get(target)
                columns = target.reader.exposition(
                    body, utc_ns, open_metrics, self._own_times, {"instance": target.instance}
                )
                self._take(target, columns)
                success = 1
            except (_FailedError, OSError, TimeoutError, h11.ProtocolError) as error:
                target.close()
                target.failed += 1
                success = 0
                what = str(error) or type(error).__name__
                self._tell(f"{target.instance}: {what}")
            finally:
                took_s = loop.time() - began
            self._own_series(target, utc_ns, success, took_s, late_s)
            # deadlines that passed meanwhile are missed
            next_k = max(k + 1, int((loop.time() - t0) / target.interval_s))
            if (loop.time() - t0) > next_k * target.interval_s + target.interval_s / 2:
                next_k += 1
            skipped = next_k - k - 1
            target.missed += skipped
            target.due += skipped
            k = next_k

    def _tell(self, what: str) -> None:
        told = self.intake.receipt.told
        if len(told) < 20 and what not in told:
            told.append(what)

    def _take(self, target: Target, columns: Mapping[str, Any]) -> None:
        table, odd = table_of(columns, unit_of)
        receipt = self.intake.receipt
        for why, count in columns["refused"]:
            receipt.refused[why] += count
            receipt.received += count
        receipt.refused["malformed"] += odd
        for line, what in columns["told"][:1]:
            self._tell(f"{target.instance}: line {line}: found {what}")
        self._add(target, table)

    def _own_series(
        self, target: Target, utc_ns: int, success: int, took_s: float, late_s: float
    ) -> None:
        table = points(
            metric=[metric for metric, _ in _OWN],
            labels=canonical_labels({"instance": target.instance}),
            utc_ns=[utc_ns] * 3,
            float=[float(success), took_s, late_s],
            unit=[unit for _, unit in _OWN],
        )
        self._add(target, table)

    def _add(self, target: Target, table: pa.Table) -> None:
        if self._waiting + table.num_rows > MOST_WAITING:
            self.intake.refuse("no room", "found no room for a scrape", table.num_rows)
            return
        self._waiting += table.num_rows
        self._tables.append(table)
        for pair in zip(table["metric"].to_pylist(), table["labels"].to_pylist(), strict=True):
            if pair not in target.seen:
                target.seen[pair] = target.due - 1

    async def _keep(self) -> None:
        while True:
            ending = self._ending
            if self._tables or ending:
                tables, self._tables, self._waiting = self._tables, [], 0
                accounts = self._accounts() if ending else ()
                while True:
                    try:
                        await asyncio.to_thread(self._keep_all, tables, accounts)
                        break
                    except Closed:
                        self.intake.refuse(
                            "after the end", "found scrapes after the experiment's end"
                        )
                        break
                    except PenstockError:
                        self.intake.receipt.counted["not kept at first"] += 1
                        if self._ending:
                            raise
                        await asyncio.sleep(1.0)
            if ending:
                return
            if not self._ending:
                await asyncio.sleep(GATHERED_S)

    def _keep_all(self, tables: list[pa.Table], accounts: tuple[Account, ...]) -> None:
        whole = pa.concat_tables(tables) if tables else points(metric=[])
        self.intake.keep(whole.unify_dictionaries().combine_chunks(), accounts)

    def _accounts(self) -> tuple[Account, ...]:
        return tuple(
            Account(
                metric,
                labels,
                round(target.interval_s * 1e9),
                expected=target.due - before,
                late=target.late,
            )
            for target in self.targets
            for (metric, labels), before in target.seen.items()
        )

    async def _get(self, target: Target) -> tuple[bytes, bool]:
        """What a target shows, and whether that is OpenMetrics; the connection is kept for the next time."""
        again = target.connection is not None
        try:
            return await self._ask(target)
        except (OSError, h11.RemoteProtocolError, EOFError):
            target.close()
            if not again:
                raise _FailedError("found a connection that was closed") from None
            # it was closed between two scrapes
            try:
                return await self._ask(target)
            except EOFError:
                raise _FailedError("found a connection that was closed") from None

    async def _ask(self, target: Target) -> tuple[bytes, bool]:
        if target.connection is None:
            reader, writer = await asyncio.open_connection(target.host, target.port)
            target.connection = (reader, writer, h11.Connection(h11.CLIENT))
        reader, writer, talk = target.connection
        headers = [
            ("host", f"{target.host}:{target.port}"),
            (
                "accept",
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4",
            ),
            ("user-agent", "penstock"),
        ]
        asked = h11.Request(method="GET", target=target.path, headers=headers)
        writer.write((talk.send(asked) or b"") + (talk.send(h11.EndOfMessage()) or b""))
        status, kind, body = 0, "", bytearray()
        while True:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(1 << 18)
                if not data and not status:
                    raise EOFError
                talk.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                kind = dict(event.headers).get(b"content-type", b"").decode("latin-1").lower()
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_SHOWN:
                    raise _FailedError(f"found more than {MOST_SHOWN} bytes")
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError
        if talk.our_state is h11.DONE and talk.their_state is h11.DONE:
            talk.start_next_cycle()
        else:
            target.close()
        if status != 200:
            raise _FailedError(f"found HTTP status {status}; expected 200")
        if kind.startswith("text/html"):
            raise _FailedError("found a page in HTML; expected metrics")
        return bytes(body), "openmetrics" in kind
