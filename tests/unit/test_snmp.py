"""The poller of power outlets against a simulated power distribution unit: an SNMP agent in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.observe.monitor.collectors.snmp import SnmpPoller, before
from penstock.testing import MemorySink

#: of the simulated unit: power of outlet n, as units in racks number them
OUTLET = (1, 3, 6, 1, 4, 1, 99999, 1, 2)


class SimulatedUnit:
    """Three outlets of 120, 121 and 122 W, in tenths; counts the requests that reach it."""

    def __init__(self) -> None:
        from pysnmp.carrier.asyncio.dgram import udp
        from pysnmp.entity import config, engine
        from pysnmp.entity.rfc3413 import cmdrsp, context

        self.engine = engine.SnmpEngine()
        transport = udp.UdpTransport().open_server_mode(("127.0.0.1", 0))
        config.add_transport(self.engine, udp.DOMAIN_NAME, transport)
        self.transport = transport
        config.add_v1_system(self.engine, "simulated", "public")
        config.add_vacm_user(self.engine, 2, "simulated", "noAuthNoPriv", (1, 3, 6))
        served = context.SnmpContext(self.engine)
        builder = served.get_mib_instrum().get_mib_builder()
        scalar, instance = builder.import_symbols("SNMPv2-SMI", "MibScalar", "MibScalarInstance")
        from pysnmp.proto.api.v2c import Integer32

        column = scalar(OUTLET, Integer32())
        rows = [instance(OUTLET, (n,), Integer32(1200 + 10 * n)) for n in range(3)]
        builder.export_symbols("SIMULATED-UNIT", column, *rows)
        self.requests = 0
        unit = self

        class Bulk(cmdrsp.BulkCommandResponder):  # type: ignore[misc]
            def handle_management_operation(self, *words: Any) -> None:
                unit.requests += 1
                super().handle_management_operation(*words)

        Bulk(self.engine, served)

    async def port(self) -> int:
        await asyncio.sleep(0.1)
        return int(self.transport.transport.get_extra_info("sockname")[1])

    def stop(self) -> None:
        self.engine.close_dispatcher()


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
        unit = SimulatedUnit()
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
