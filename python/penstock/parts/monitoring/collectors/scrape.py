"""Scraper of exporters (Prometheus text format, OpenMetrics), each target at its own interval.

Scrape k of a target is due at t0 + k x interval; the first ones are spread over an interval. A scrape that
cannot begin in its interval is counted as missed, not made up for. Each scrape has three series of its own,
`scrape_success` (0 or 1), `scrape_duration_seconds` and `scrape_lateness_seconds`, with the label `instance`.
The timestamp of points is the beginning of their scrape.

If a target's own labels conflict with `instance` or another label that is added here, they are renamed to
`exported_instance`, as by Prometheus; with `honor_labels` they take precedence instead. OpenMetrics without a
final `# EOF` is a failed scrape.

Settings: `targets`, a list of URLs or of {url, interval_s, timeout_s, instance, labels, honor_labels};
`interval_s` (1, at least 0.01), `timeout_s`, `own_times` (false), `honor_labels` (false); `keep` and `drop`,
patterns of series to store and to drop. Certificates of `https` targets are verified by the host's
authorities or those of the file `ca`; `token_from` names the environment variable with the bearer token.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import h11
import pyarrow as pa

from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.collectors.collector import (
    FailedError,
    Intake,
    Receipt,
    due_at_the_end,
    interval_of,
    only,
    setting,
    timeout_of,
)
from penstock.parts.monitoring.collectors.columns import table_of, unit_of
from penstock.parts.monitoring.collectors.filters import OWN, Choice
from penstock.parts.monitoring.collectors.http_get import HttpConnection
from penstock.parts.monitoring.experiments.points import MOST_SERIES, Account, Closed, Sink

native: Any = importlib.import_module("penstock._native")

_SETTINGS = tuple(
    "targets interval_s timeout_s own_times honor_labels keep drop ca token_from".split()
)
_OF_TARGET = ("url", "interval_s", "timeout_s", "instance", "labels", "honor_labels")
_LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,199}")
#: the shortest interval [s]
SHORTEST_S = 0.01
#: time for which points are buffered before they are stored [s]
GATHERED_S = 0.2
MOST_TARGETS = 10_000
#: maximum number of series of all targets
MOST_SHOWN_SERIES = 2_000_000
_TYPED = re.compile(
    rb"^[ \t]*#[ \t]+TYPE[ \t]+([^\s]{1,500})[ \t]+(counter|histogram|summary)\s*$", re.MULTILINE
)
#: headers of every request, in addition to Host
_HEADERS = (
    ("User-Agent", "penstock"),
    ("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4"),
)
#: number of targets whose first scrapes are spread over one second
_A_SECOND = 1000


@dataclass(frozen=True)
class Seen:
    """A series of a target: scrapes due before its first point, when that was due, True for a counter.

    Points of series in the first answer of a target are expected from its first scrape on.
    """

    before: int
    since_ns: int
    counter: bool


@dataclass
class Target:
    """A target, and counts of its scrapes."""

    host: str
    port: int
    instance: str
    interval_s: float
    timeout_s: float
    secure: bool
    path: str
    #: labels of all series of the target, including `instance`
    labels: dict[str, str]
    honor_labels: bool = False
    due: int = 0
    missed: int = 0
    failed: int = 0
    late: int = 0
    succeeded: int = 0
    #: time of the first scrape
    begun_ns: int = 0
    #: True if a scrape had points of an earlier one: with its own times, they are not one per scrape
    repeats: bool = False
    #: series by metric and labels
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    connection: HttpConnection | None = None
    #: set when the collector starts
    request: h11.Request | None = None

    @property
    def loopback(self) -> bool:
        """True if the target is named by a loopback address, so that its traffic crosses no network."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Scraper:
    """Scrapes its targets."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, _SETTINGS)
        self.name = name
        self._choice = Choice(name, settings)
        self._own_times = setting(name, settings, "own_times", bool, False)
        raw = setting(name, settings, "targets", list, ...)
        if not 0 < len(raw) <= MOST_TARGETS:
            raise BadInput(f"{name}: found {len(raw)} targets; expected 1 to {MOST_TARGETS}")
        self.targets = [self._target(raw_target, settings) for raw_target in raw]
        self._ca = setting(name, settings, "ca", str, None)
        self._token_from = setting(name, settings, "token_from", str, None)
        if self._token_from and not all(t.secure or t.loopback for t in self.targets):
            raise BadInput(
                f"{name}: found token_from with a target of http; expected https for all, "
                "but for loopback addresses"
            )

    def _target(self, raw_target: Any, settings: Mapping[str, Any]) -> Target:
        own = {"url": raw_target} if isinstance(raw_target, str) else raw_target
        if not isinstance(own, Mapping):
            raise BadInput(f"{self.name}: found target {raw_target!r}; expected a URL")
        only(self.name, own, _OF_TARGET)
        merged = {**settings, **own}
        url = setting(self.name, own, "url", str, ...)
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            secure = parts.scheme == "https"
            host, port = parts.hostname, parts.port or (443 if secure else 80)
        except ValueError:
            host, port, secure, parts = None, 0, False, urlsplit("")
        if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
            raise BadInput(
                f"{self.name}: found target {url!r}; expected http://HOST:PORT/PATH or https"
            )
        interval_s = interval_of(self.name, merged, least_s=SHORTEST_S)
        timeout_s = timeout_of(self.name, merged, min(10.0, max(1.0, interval_s)))
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        instance = setting(self.name, own, "instance", str, _authority(host, port))
        if not f"{host}{path}".isascii():
            raise BadInput(f"{self.name}: found target {url!r}; expected it in ASCII, or encoded")
        labels = setting(self.name, own, "labels", Mapping, {})
        for name, value in labels.items():
            if not isinstance(name, str) or not _LABEL.fullmatch(name) or name == "__name__":
                raise BadInput(f"{self.name}: found label {name!r}; expected letters, digits, `_`")
            if not isinstance(value, str) or not value.isprintable() or len(value) > 500:
                raise BadInput(f"{self.name}: found label {name}={value!r}; expected a short text")
        return Target(
            host,
            port,
            instance,
            interval_s,
            timeout_s,
            secure,
            path,
            {"instance": instance, **labels},
            setting(self.name, merged, "honor_labels", bool, False),
        )

    async def start(self, sink: Sink) -> None:
        self._tls = self._verifying() if any(t.secure for t in self.targets) else None
        token = self._authorization()
        for target in self.targets:
            host = ("Host", _authority(target.host, target.port))
            headers = [host, *_HEADERS, *token]
            target.request = h11.Request(method="GET", target=target.path, headers=headers)
        self.intake = Intake(self.name, sink, unit=unit_of)
        self._reader: Any = native.PointReader(most_series=MOST_SHOWN_SERIES)
        self._accounted = 0
        #: accounts of new series, written with their first points so that gaps are seen after a kill
        self._new: list[Account] = []
        self._stopping, self._ending = False, asyncio.Event()
        # one offset for all timestamps, so that they do not follow steps of the host's clock
        self._utc_ns = time.time_ns() - time.monotonic_ns()
        begin, number = asyncio.get_running_loop().time(), len(self.targets)
        self._tasks = []
        for index, target in enumerate(self.targets):
            over_s = min(target.interval_s, max(1.0, number / _A_SECOND))
            t0 = begin + over_s * index / number
            self._tasks.append(asyncio.create_task(self._scrape(target, t0)))
        self._storing = asyncio.create_task(self._store())

    async def stop(self) -> Receipt:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ended_ns = time.time_ns()
        self._ending.set()
        await self._storing
        counted = self.intake.receipt.counted
        for target in self.targets:
            target.close()
            counted["due"] += target.due
            counted["missed"] += target.missed
            counted["failed"] += target.failed
            counted["late"] += target.late
        return self.intake.receipt

    def _verifying(self) -> ssl.SSLContext:
        """TLS context that verifies certificates. BadInput for a file without authorities."""
        try:
            return ssl.create_default_context(cafile=self._ca)
        except OSError as error:
            raise BadInput(f"{self.name}: found ca {self._ca} ({error}); expected PEM") from None

    def _authorization(self) -> list[tuple[str, str]]:
        """The header with the token. BadInput if the environment has none."""
        if self._token_from is None:
            return []
        token = os.environ.get(self._token_from, "")
        if not token.isascii() or not token.isprintable() or not token:
            raise BadInput(f"{self.name}: found no token in ${self._token_from}; expected one")
        return [("Authorization", f"Bearer {token}")]

    async def _scrape(self, target: Target, t0: float) -> None:
        loop = asyncio.get_running_loop()
        k = 0
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
            if not target.begun_ns:
                target.begun_ns = utc_ns
                if self.intake.begun_ns is None:
                    self.intake.begins(utc_ns)
            success = 0
            try:
                # not wait_for, which may mistake a cancellation for a timeout
                async with asyncio.timeout(target.timeout_s):
                    body, open_metrics = await self._get(target)
                self._take(target, body, utc_ns, open_metrics, self._own_times)
                success = 1
                target.succeeded += 1
            except asyncio.CancelledError:
                due_by_now = due_at_the_end(target.due, t0, target.interval_s, loop.time())
                target.missed += due_by_now - (target.due - 1)
                target.due = due_by_now
                raise
            except (FailedError, OSError, TimeoutError) as error:
                target.close()
                target.failed += 1
                message = str(error) or type(error).__name__
                self._add_error(f"{target.instance}: {message}")
            took_s = loop.time() - began
            own = (
                f"scrape_success {success}\nscrape_duration_seconds {took_s!r}\n"
                f"scrape_lateness_seconds {late_s!r}\n"
            )
            self._take(target, own.encode(), utc_ns)
            # deadlines that passed meanwhile are missed
            next_k = max(k + 1, int((loop.time() - t0) / target.interval_s))
            if (loop.time() - t0) > next_k * target.interval_s + target.interval_s / 2:
                next_k += 1
            skipped = next_k - k - 1
            target.missed += skipped
            target.due += skipped
            k = next_k

    def _add_error(self, message: str) -> None:
        receipt = self.intake.receipt
        if message not in receipt.errors:
            receipt.add_error(message)

    def _take(
        self,
        target: Target,
        text: bytes,
        utc_ns: int,
        open_metrics: bool = False,
        own_times: bool = False,
    ) -> None:
        try:
            summary = self._reader.exposition(
                text, utc_ns, open_metrics, own_times, target.labels, target.honor_labels
            )
        except ValueError as error:
            raise FailedError(f"found {error}") from None
        receipt = self.intake.receipt
        for reason, count in summary["refused"]:
            receipt.refused[reason] += count
            receipt.received += count
            target.repeats |= own_times and reason == "duplicate"
        for line, problem in summary["told"][:1]:
            self._add_error(f"{target.instance}: line {line}: found {problem}")
        if self._reader.known > self._accounted:
            counters = _counters(text)
            later = target.succeeded > 0
            before, since_ns = (target.due - 1, utc_ns) if later else (0, target.begun_ns)
            for metric, labels in self._reader.known_from(self._accounted):
                if metric.isprintable() and labels.isprintable() and self._choice(metric, labels):
                    seen = Seen(before, since_ns, metric in counters)
                    target.seen[metric, labels] = seen
                    self._new.append(_account(target, metric, labels, seen))
            self._accounted = self._reader.known

    async def _store(self) -> None:
        waiting: list[pa.Table] = []
        while True:
            ending, pause_s = self._ending.is_set(), GATHERED_S
            try:
                if not waiting:
                    # points wait here while the sink fails, then in the reader, which is bounded
                    waiting = await asyncio.to_thread(self._tables, self._reader.take())
                while waiting:
                    new = tuple(self._new)
                    await asyncio.to_thread(self.intake.keep, waiting[0], new)
                    del waiting[0], self._new[: len(new)]
                if ending:
                    await asyncio.to_thread(self.intake.ends, self._accounts(), self._ended_ns)
                    return
            except Closed:  # the intake counted the points of the first
                for table in waiting[1:]:
                    self.intake.refuse("after the end", "found scrapes after the end", len(table))
                waiting.clear()
                if ending:
                    return
            except PenstockError:
                self.intake.receipt.counted["not stored at first"] += 1
                if ending:
                    raise
                pause_s = 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()

    def _tables(self, columns: Mapping[str, Any]) -> list[pa.Table]:
        """Columns as tables of points, each with no more series than a batch may have."""
        table, unprintable = table_of(columns, unit_of)
        if unprintable.any():
            message = "found a name or label that cannot be printed"
            self.intake.refuse("malformed", message, int(unprintable.sum()))
        stored = self._choice.of(table)
        if len(stored) < len(table):
            self.intake.receipt.counted["not chosen"] += len(table) - len(stored)
        table = stored
        return [table.slice(at, MOST_SERIES) for at in range(0, table.num_rows, MOST_SERIES)]

    def _accounts(self) -> tuple[Account, ...]:
        return tuple(
            self._last_account(target, metric, labels, seen)
            for target in self.targets
            for (metric, labels), seen in target.seen.items()
        )

    def _last_account(self, target: Target, metric: str, labels: str, seen: Seen) -> Account:
        account = replace(_account(target, metric, labels, seen), late=target.late)
        if target.repeats and metric not in OWN:
            # as of a federation: the interval of its points is inferred from them
            return replace(account, interval_ns=None)
        # after a restart, scrapes due before it are unknown: the experiment is counted from its start
        expected = None if self.intake.began_anew else target.due - seen.before
        return replace(account, expected=expected)

    async def _get(self, target: Target) -> tuple[bytes, bool]:
        """The metrics of a target, and True if they are OpenMetrics. The connection stays open."""
        response = None
        assert target.request is not None
        if target.connection is not None and target.connection.reusable:
            # it may have been closed between two scrapes
            with contextlib.suppress(EOFError, ConnectionError):
                response = await target.connection.get(target.request)
        if response is None:
            target.close()
            tls = self._tls if target.secure else None
            target.connection = await HttpConnection.open(target.host, target.port, tls)
            try:
                response = await target.connection.get(target.request)
            except EOFError:
                raise FailedError("found a connection that was closed") from None
        if response.status != 200:
            raise FailedError(f"found HTTP status {response.status}; expected 200")
        if response.content_type.startswith("text/html"):
            raise FailedError("found a page in HTML; expected metrics")
        if not response.bounded and response.body and not response.body.endswith(b"\n"):
            raise FailedError("found an answer without a length that breaks off in a line")
        return response.body, "openmetrics" in response.content_type


def _authority(host: str, port: int) -> str:
    """Host and port as in a URL, in which an IPv6 address has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _account(target: Target, metric: str, labels: str, seen: Seen) -> Account:
    interval_ns = round(target.interval_s * 1e9)
    return Account(metric, labels, interval_ns, since_ns=seen.since_ns, counter=seen.counter)


def _counters(text: bytes) -> set[str]:
    """Names of the counters of an exposition, by its `# TYPE` lines."""
    names: set[str] = set()
    for name, kind in _TYPED.findall(text):
        base = name.decode("utf-8", "replace")
        names |= {base, f"{base}_total"} if kind == b"counter" else set()
        if kind in (b"histogram", b"summary"):
            names |= {f"{base}_{part}" for part in ("count", "sum", "bucket")}
    return names
