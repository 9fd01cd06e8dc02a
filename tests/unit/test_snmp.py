"""The poller of power outlets with the simulated power distribution unit of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.snmp import SnmpPoller, before, number_of
from penstock.parts.monitoring.conformance import Ledger, Sent, check_receiver
from penstock.parts.monitoring.simulated_pdu import OUTLET, BusyDisk, SimulatedPdu, power_w
from penstock.testing import MemorySink
from tests.support.waiting import until


def outlets(*numbers: int) -> list[dict[str, Any]]:
    name = ".".join(map(str, OUTLET))
    return [
        {
            "oid": f"{name}.{n}",
            "metric": "simulated_power",
            "labels": {"outlet": str(n)},
            "unit": "W",
            "scale": 0.1,
        }
        for n in numbers
    ]


def test_three_outlets_of_a_simulated_unit_are_one_request_a_poll() -> None:
    sink = MemorySink()

    async def polled() -> tuple[SnmpPoller, int]:
        unit = SimulatedPdu([lambda n=n: 120.0 + n for n in range(3)])  # type: ignore[misc]
        settings = {"host": "127.0.0.1", "port": await unit.port(), "interval_s": 0.2}
        poller = SnmpPoller("unit", {**settings, "timeout_s": 20, "outlets": outlets(2, 0, 1, 7)})
        await poller.start(sink)
        while len(sink.rows()) < 9:
            await asyncio.sleep(0.05)
        await poller.stop()
        unit.stop()
        return poller, unit.requests

    poller, requests = asyncio.run(asyncio.wait_for(polled(), 120))
    rows = sink.rows()
    values = {(r["labels"], round(float(str(r["float"])), 9), r["unit"], r["metric"]) for r in rows}
    assert values == {(f'{{"outlet":"{n}"}}', 120.0 + n, "W", "simulated_power") for n in range(3)}
    polls = len({r["utc_ns"] for r in rows})
    assert polls <= requests <= polls + 1, (
        "one GETBULK for each poll; the last one may be cancelled"
    )
    assert poller.requests == requests
    # a missing outlet gives no point, and is counted
    assert poller.intake.receipt.counted["without a value"] == polls


def test_failed_polls_are_counted_and_wrong_settings_are_reported() -> None:
    sink = MemorySink()

    async def polled() -> SnmpPoller:
        settings = {"host": "127.0.0.1", "port": 9, "interval_s": 0.2, "timeout_s": 0.2}
        poller = SnmpPoller("unit", {**settings, "outlets": outlets(0)})
        await poller.start(sink)
        while poller.intake.receipt.counted["failed"] < 2:
            await asyncio.sleep(0.05)
        await poller.stop()
        return poller

    poller = asyncio.run(asyncio.wait_for(polled(), 120))
    assert poller.intake.receipt.stored == 0
    assert poller.intake.receipt.errors
    for wrong in ({"oid": "1.x.3"}, {"oid": "1.3"}, {"oid": "1.3.6", "power": 1}, {"metric": "m"}):
        with pytest.raises(BadInput):
            SnmpPoller("unit", {"host": "h", "outlets": [{"metric": "m", **wrong}]})


def values_of_agents() -> list[tuple[Any, float | None]]:
    """Values of every SNMP type, each with the number to store; None for values that are no number."""
    from pysnmp.proto.api import v2c

    return [
        *((v2c.Integer32(n), float(n)) for n in (-(2**31), -1, 0, 2**31 - 1)),
        *((v2c.Gauge32(n), float(n)) for n in (0, 2**32 - 1)),
        (v2c.Unsigned32(2**32 - 1), 2.0**32 - 1),
        (v2c.Counter32(2**32 - 1), 2.0**32 - 1),
        (v2c.Counter64(2**53), 2.0**53),
        (v2c.TimeTicks(7), 7.0),
        *((v2c.OctetString(text), number) for text, number in (("7.5", 7.5), (" -1e3 ", -1000.0))),
        *((v2c.OctetString(text), None) for text in ("", "off", "nan", "inf", "1e999", "1_000")),
        (v2c.OctetString("7,5"), None),
        (v2c.OctetString(bytes((255, 0, 49))), None),
        (v2c.IpAddress("49.50.51.52"), None),
        (v2c.Opaque(b"5"), None),
        (v2c.ObjectIdentifier("1.3.6.1"), None),
    ]


def test_only_numbers_of_an_agent_are_numbers() -> None:
    for value, number in values_of_agents():
        assert number_of(value) == number, repr(value)


class Agent:
    """A simulated unit with these values at its outlets, in its own event loop."""

    def __init__(self, values: list[Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.unit, self.port = asyncio.run_coroutine_threadsafe(
            self._start(values), self._loop
        ).result(60)

    async def _start(self, values: list[Any]) -> tuple[SimulatedPdu, int]:
        unit = SimulatedPdu([lambda: 0.0 for _ in values])
        for row, value in zip(unit._rows, values, strict=True):
            row.setSyntax(value)
        return unit, await unit.port()

    async def _stop(self) -> None:
        self.unit.stop()

    def stop(self) -> int:
        """Stop responding; return the number of requests that had a response."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        return self.unit.requests

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def test_values_of_an_agent_balance() -> None:
    """For every outlet, answered polls equal stored points; other values are counted."""
    values = values_of_agents()
    agent = Agent([value for value, _ in values])
    name = ".".join(map(str, OUTLET))
    settings = {
        "host": "127.0.0.1",
        "port": agent.port,
        "interval_s": 0.1,
        "timeout_s": 10,
        # the last one does not exist
        "outlets": [{"oid": f"{name}.{n}", "metric": f"m{n}"} for n in range(len(values) + 1)],
    }
    stored = {f"m{n}": number for n, (_, number) in enumerate(values) if number is not None}
    pollers: list[SnmpPoller] = []

    def send(poller: Any) -> Ledger:
        pollers.append(poller)
        first_ns = time.time_ns()
        until(lambda: poller.intake.receipt.stored >= 3 * len(stored))
        answered = agent.stop()
        # the poll after the last answered one
        until(lambda: poller.intake.receipt.counted["failed"] >= 1)
        return Ledger([Sent(m, {}, first_ns + k) for k in range(answered) for m in stored])

    try:
        recorded = check_receiver(SnmpPoller, settings, send)
    finally:
        agent.close()
    series = {row["series_id"]: row["metric"] for row in recorded.series.to_pylist()}
    points = recorded.points.to_pylist()
    assert {(series[p["series_id"]], p["float"]) for p in points} == set(stored.items())
    polls = len(points) // len(stored)
    without_value = (len(values) + 1 - len(stored)) * polls
    assert pollers[0].intake.receipt.counted["without a value"] == without_value


def test_a_getbulk_starts_at_the_preceding_oid() -> None:
    assert before((1, 3, 6, 5)) == (1, 3, 6, 4)
    assert before((1, 3, 6, 0)) == (1, 3, 6)


def test_the_simulated_power_follows_the_disk(tmp_path: Path) -> None:
    (tmp_path / "class" / "block" / "d").mkdir(parents=True)
    stat = tmp_path / "class" / "block" / "d" / "stat"
    disk = None
    percentages = []
    for tenth in range(40):
        # idle for two seconds, then busy for half of the time
        busy_ms = max(0, tenth - 20) * 50
        stat.write_text(" ".join(["0"] * 9 + [str(busy_ms)] + ["0"] * 7))
        disk = disk or BusyDisk("d", tmp_path)
        percentages.append(disk.percent(tenth / 10))
    assert percentages[20] == 0
    assert percentages[-1] == pytest.approx(50)
    assert max(percentages) <= 51
    assert power_w(50, -1) == pytest.approx(120 + 16.5 - 1)
    with pytest.raises(BadInput):
        BusyDisk("none", tmp_path)
