"""The poller of power outlets against the simulated power distribution unit in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.snmp import SnmpPoller, before
from penstock.parts.monitoring.simulated_pdu import OUTLET, BusyDisk, SimulatedPdu, power_w
from penstock.testing import MemorySink


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
    assert polls <= requests <= polls + 1, "one GETBULK a poll, the last may be cut"
    assert poller.requests == requests
    # an outlet that it has not is no point, and counted
    assert poller.intake.receipt.counted["without a value"] == polls


def test_a_unit_that_does_not_answer_is_counted_and_wrong_settings_are_told() -> None:
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
    assert poller.intake.receipt.told
    for wrong in ({"oid": "1.x.3"}, {"oid": "1.3"}, {"oid": "1.3.6", "power": 1}, {"metric": "m"}):
        with pytest.raises(BadInput):
            SnmpPoller("unit", {"host": "h", "outlets": [{"metric": "m", **wrong}]})


def test_what_a_getbulk_asks_for_is_right_before() -> None:
    assert before((1, 3, 6, 5)) == (1, 3, 6, 4)
    assert before((1, 3, 6, 0)) == (1, 3, 6)


def test_the_simulated_power_follows_the_disk(tmp_path: Path) -> None:
    (tmp_path / "class" / "block" / "d").mkdir(parents=True)
    stat = tmp_path / "class" / "block" / "d" / "stat"
    disk = None
    found = []
    for tenth in range(40):
        # idle for two seconds, then busy for half of each
        busy_ms = max(0, tenth - 20) * 50
        stat.write_text(" ".join(["0"] * 9 + [str(busy_ms)] + ["0"] * 7))
        disk = disk or BusyDisk("d", tmp_path)
        found.append(disk.percent(tenth / 10))
    assert found[20] == 0
    assert found[-1] == pytest.approx(50)
    assert max(found) <= 51
    assert power_w(50, -1) == pytest.approx(120 + 16.5 - 1)
    with pytest.raises(BadInput):
        BusyDisk("none", tmp_path)
