"""Power of outlets and other numbers by SNMPv2c: one GETBULK for all numbers of a device and poll.

Settings: `host`, `port` (161), `community` (public), `interval_s` (1), `timeout_s`, and `outlets`, a list of
{oid, metric, labels, unit, scale}. Poll k is due at t0 + k x interval; a missed poll is counted, not made up
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.numerals import plain_number
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

MOST_OUTLETS = 100


def before(oid: tuple[int, ...]) -> tuple[int, ...]:
    """Identifier to request by GETBULK: its successor is `oid` in every agent that has `oid`."""
    return (*oid[:-1], oid[-1] - 1) if oid[-1] > 0 else oid[:-1]


def number_of(value: Any) -> float | None:
    """Number of an SNMP value: an integer of any type, or a string with a decimal number.

    None for everything else, such as an address of four bytes that happen to be digits.
    """
    from pysnmp.proto.api import v2c

    counts = (v2c.Counter32, v2c.Counter64, v2c.Gauge32, v2c.Unsigned32, v2c.TimeTicks)
    if isinstance(value, (v2c.Integer32, *counts)):
        return float(int(value))
    if isinstance(value, v2c.OctetString) and not isinstance(value, (v2c.IpAddress, v2c.Opaque)):
        with contextlib.suppress(ValueError):
            number = plain_number(bytes(value).decode("ascii").strip())
            return number if math.isfinite(number) else None
    return None


class SnmpPoller:
    """Polls one device."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        allowed = ("host", "port", "community", "interval_s", "timeout_s", "outlets")
        only(name, settings, allowed)
        self.name = name
        self._at = (
            setting(name, settings, "host", str, ...),
            setting(name, settings, "port", int, 161),
        )
        self._community = setting(name, settings, "community", str, "public")
        self._interval_s = interval_of(name, settings)
        self._timeout_s = timeout_of(name, settings, min(5.0, self._interval_s))
        outlets = setting(name, settings, "outlets", list, ...)
        if not 0 < len(outlets) <= MOST_OUTLETS:
            raise BadInput(f"{name}: found {len(outlets)} outlets; expected 1 to {MOST_OUTLETS}")
        self._oids: list[tuple[int, ...]] = []
        self._series: list[tuple[str, str, str, float]] = []
        for outlet in outlets:
            if not isinstance(outlet, Mapping):
                raise BadInput(f"{name}: found outlet {outlet!r}; expected {{oid, metric}}")
            only(name, outlet, ("oid", "metric", "labels", "unit", "scale"))
            text = setting(name, outlet, "oid", str, ...)
            parts = text.strip(".").split(".")
            if len(parts) < 3 or not all(
                w.isascii() and w.isdigit() and len(w) < 11 for w in parts
            ):
                raise BadInput(
                    f"{name}: found oid {text!r}; expected numbers, as 1.3.6.1.2.1.1.3.0"
                )
            self._oids.append(tuple(map(int, parts)))
            labels = setting(name, outlet, "labels", Mapping, {})
            self._series.append(
                (
                    setting(name, outlet, "metric", str, ...),
                    canonical_labels(labels),
                    setting(name, outlet, "unit", str, ""),
                    float(setting(name, outlet, "scale", (int, float), 1.0)),
                )
            )
        #: number of requests sent
        self.requests = 0

    async def start(self, sink: Sink) -> None:
        from pysnmp.hlapi.v3arch.asyncio import SnmpEngine, UdpTransportTarget

        self.intake = Intake(self.name, sink)
        self._engine = SnmpEngine()
        try:
            self._target = await UdpTransportTarget.create(
                self._at, timeout=self._timeout_s, retries=0
            )
        except Exception as error:  # pysnmp has no exception of its own for an invalid address
            raise PenstockError(f"{self.name}: {self._at[0]}: {error}") from None
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> Receipt:
        polls = self.intake.due()
        await ended(self._task)
        self._engine.close_dispatcher()
        interval_ns = round(self._interval_s * 1e9)
        accounts = [
            Account(m, s, interval_ns, expected=polls, since_ns=self.intake.begun_ns)
            for m, s, _, _ in self._series
        ]
        await asyncio.to_thread(self.intake.ends, accounts)
        return self.intake.receipt

    async def _poll(self) -> None:
        receipt = self.intake.receipt
        async for utc_ns in due(self._interval_s, self.intake):
            try:
                await self._store(utc_ns, await self._values())
            except PenstockError as error:
                receipt.failed(str(error))
                if isinstance(error, Closed):
                    return

    async def _values(self) -> list[float | None]:
        """Value by outlet, None if the device has none. PenstockError if it does not answer."""
        from pysnmp.hlapi.v3arch.asyncio import (
            CommunityData,
            ContextData,
            ObjectIdentity,
            ObjectType,
            bulk_cmd,
        )

        self.requests += 1
        requested = [ObjectType(ObjectIdentity(before(oid))) for oid in self._oids]
        failed, status, _, bound = await bulk_cmd(
            self._engine,
            CommunityData(self._community, mpModel=1),
            self._target,
            ContextData(),
            len(requested),
            0,
            *requested,
            lookupMib=False,
        )
        if failed or status:
            raise PenstockError(f"{self._at[0]}: {failed or status}")
        numbers = {tuple(name): number_of(value) for name, value in bound}
        return [numbers.get(oid) for oid in self._oids]

    async def _store(self, utc_ns: int, values: list[float | None]) -> None:
        scaled = [
            (series, value * series[3])
            for series, value in zip(self._series, values, strict=True)
            if value is not None
        ]
        rows = [(series, value) for series, value in scaled if math.isfinite(value)]
        self.intake.receipt.counted["without a value"] += len(values) - len(rows)
        table = points(
            metric=[s[0] for s, _ in rows],
            labels=[s[1] for s, _ in rows],
            unit=[s[2] for s, _ in rows],
            utc_ns=[utc_ns] * len(rows),
            float=[value for _, value in rows],
        )
        await asyncio.to_thread(self.intake.keep, table)
