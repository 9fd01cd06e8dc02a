"""Bandwidth of the devices of Swift's object servers, as reported by their filter `swift_bandwidth.py`.

Settings: `servers`, a list of {url, labels} such as {url: "http://127.0.0.1:6210"}, `interval_s` (1),
`timeout_s`, `token`. The rate of each device in the last second becomes a point of `swift_bandwidth`, with
the labels `host` (default: that of the address) and `device`. Poll k is due at t0 + k x interval; a missed
poll is counted, not made up for.
"""

from __future__ import annotations

import asyncio
import json
import math
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.collectors.collector import (
    Intake,
    Receipt,
    due,
    ended,
    interval_of,
    only,
    setting,
    timeout_of,
)
from penstock.parts.monitoring.experiments.points import (
    Account,
    Closed,
    Sink,
    canonical_labels,
    points,
)

METRIC = "swift_bandwidth"
MOST_SERVERS, MOST_DEVICES = 200, 256
_MOST_BYTES = 1 << 20


def rates(content: bytes) -> dict[str, float]:
    """Rate of each device of a `bwinfo` in the last second [MB/s]. BadInput for other content."""
    try:
        rows = list(json.loads(content).items())[:MOST_DEVICES]
        return {str(d): float(v["insta"]) for d, v in rows if v["insta"] is not None}
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        reason = str(error)[:100] or type(error).__name__
        raise BadInput(f"found an answer that is no bwinfo ({reason}); expected devices") from None


class SwiftPoller:
    """Polls object servers concurrently."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("servers", "interval_s", "timeout_s", "token"))
        self.name = name
        self._interval_s = interval_of(name, settings)
        default_s = min(5.0, self._interval_s)
        self._timeout_s = timeout_of(name, settings, default_s)
        self._token = setting(name, settings, "token", str, "")
        servers = setting(name, settings, "servers", list, ...)
        if not 0 < len(servers) <= MOST_SERVERS:
            raise BadInput(f"{name}: found {len(servers)} servers; expected 1 to {MOST_SERVERS}")
        self._servers: list[tuple[str, dict[str, str]]] = []
        for server in servers:
            if not isinstance(server, Mapping):
                raise BadInput(f"{name}: found server {server!r}; expected {{url}}")
            only(name, server, ("url", "labels"))
            url = setting(name, server, "url", str, ...)
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise BadInput(f"{name}: found url {url!r}; expected http://HOST:PORT")
            labels = {"host": parts.netloc, **setting(name, server, "labels", Mapping, {})}
            self._servers.append((f"{url.rstrip('/')}/bwinfo", labels))
        self._seen: set[str] = set()
        # ignore proxies of the environment
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    async def start(self, sink: Sink) -> None:
        self.intake = Intake(self.name, sink)
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> Receipt:
        interval_ns, polls = round(self._interval_s * 1e9), self.intake.due()
        await ended(self._task)
        accounts = [
            Account(METRIC, s, interval_ns, expected=polls, since_ns=self.intake.begun_ns)
            for s in sorted(self._seen)
        ]
        await asyncio.to_thread(self.intake.ends, accounts)
        return self.intake.receipt

    async def _poll(self) -> None:
        receipt = self.intake.receipt
        async for utc_ns in due(self._interval_s, self.intake):
            answers = await asyncio.gather(
                *(asyncio.to_thread(self._get, url) for url, _ in self._servers)
            )
            try:
                await asyncio.to_thread(self._store, utc_ns, answers)
            except Closed as error:
                receipt.errors.append(str(error))
                return
            except PenstockError as error:
                receipt.failed(str(error))

    def _get(self, url: str) -> dict[str, float] | str:
        """Rate of each device [MB/s], or an error message."""
        headers = {"X-Penstock-Token": self._token} if self._token else {}
        try:
            request = urllib.request.Request(url, headers=headers)
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return rates(answer.read(_MOST_BYTES))
        except (OSError, HTTPException, BadInput) as error:
            return f"{url}: {str(error) or type(error).__name__}"[:200]

    def _store(self, utc_ns: int, answers: list[dict[str, float] | str]) -> None:
        labels: list[str] = []
        values: list[float] = []
        receipt = self.intake.receipt
        for (_, own), answer in zip(self._servers, answers, strict=True):
            if isinstance(answer, str):
                receipt.failed(answer)
                continue
            for device, rate in answer.items():
                if not device.isprintable() or len(device) > 200 or not math.isfinite(rate):
                    self.intake.refuse("malformed", f"device {device[:50]!r}")
                    continue
                labels.append(canonical_labels({**own, "device": device}))
                values.append(rate)
        self._seen.update(labels)
        if values:
            times = [utc_ns] * len(values)
            table = points(metric=METRIC, labels=labels, unit="MB/s", utc_ns=times, float=values)
            self.intake.keep(table)
