"""A SIMULATED power distribution unit: SNMPv2c agent of outlets with the power that disks would draw.

    python -m penstock.parts.monitoring.simulated_pdu --disk loop0 --disk loop1

No power is measured. The power of an outlet is 120 W, plus 0.33 W for each percent of its disk's utilisation
in the last second, plus a normal deviate of 1 W that is sampled ten times a second. It prints its loopback
port as one line of JSON, and at its end the number of requests as another. Its name (sysDescr.0) begins with
"simulated".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import BadInput

#: prefix of the OID of the power of outlet n [W/10]; an enterprise number for documentation (RFC 5612)
OUTLET = (1, 3, 6, 1, 4, 1, 32473, 1, 2)
_NAME = (1, 3, 6, 1, 2, 1, 1, 1)
IDLE_W, W_PER_PERCENT, NOISE_W = 120.0, 0.33, 1.0
#: window of a disk's utilisation, and interval of its updates [s]
WINDOW_S, STEP_S = 1.0, 0.1


def power_w(busy_percent: float, deviate: float) -> float:
    """Power of an outlet by the utilisation of its disk."""
    return IDLE_W + W_PER_PERCENT * busy_percent + NOISE_W * deviate


class BusyDisk:
    """Utilisation of a block device in the last second, by its busy time in /sys [ms]."""

    def __init__(self, device: str, sys: Path = Path("/sys")) -> None:
        self._stat = sys / "class" / "block" / device / "stat"
        self._samples: deque[tuple[float, int]] = deque()
        if "/" in device or not self._stat.exists():
            raise BadInput(f"found no block device {device}; expected one of {sys}/class/block")

    def percent(self, now_s: float) -> float:
        """Utilisation [%]; to be called every `STEP_S`."""
        try:
            self._samples.append((now_s, int(self._stat.read_text().split()[9])))
        except (OSError, IndexError, ValueError):  # the device was removed
            return 0.0
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        (begin_s, begin_ms), (_, end_ms) = self._samples[0], self._samples[-1]
        if now_s <= begin_s:
            return 0.0
        return max(0.0, min(100.0, (end_ms - begin_ms) / (10 * (now_s - begin_s))))


class SimulatedPdu:
    """Agent in the current event loop: outlets 0, 1, … with these powers [W]; `requests` counts GETBULKs.

    The powers are read by `draw`.
    """

    def __init__(self, powers_w: Sequence[Callable[[], float]], community: str = "public") -> None:
        from pysnmp.carrier.asyncio.dgram import udp
        from pysnmp.entity import config, engine
        from pysnmp.entity.rfc3413 import cmdrsp, context
        from pysnmp.proto.api.v2c import Integer32, OctetString

        self.engine = engine.SnmpEngine()
        self._transport = udp.UdpTransport().open_server_mode(("127.0.0.1", 0))
        config.add_transport(self.engine, udp.DOMAIN_NAME, self._transport)
        config.add_v1_system(self.engine, "simulated", community)
        config.add_vacm_user(self.engine, 2, "simulated", "noAuthNoPriv", (1, 3, 6))
        served = context.SnmpContext(self.engine)
        builder = served.get_mib_instrum().get_mib_builder()
        scalar, instance = builder.import_symbols("SNMPv2-SMI", "MibScalar", "MibScalarInstance")
        self._powers_w = powers_w
        self._rows = [instance(OUTLET, (n,), Integer32(0)) for n in range(len(powers_w))]
        name = instance(_NAME, (0,), OctetString("simulated power distribution unit"))
        builder.export_symbols(
            "SIMULATED-PDU",
            scalar(OUTLET, Integer32()),
            *self._rows,
            scalar(_NAME, OctetString()),
            name,
        )
        self.requests = 0
        unit = self

        class Bulk(cmdrsp.BulkCommandResponder):  # type: ignore[misc]
            def handle_management_operation(self, *arguments: Any) -> None:
                unit.requests += 1
                super().handle_management_operation(*arguments)

        Bulk(self.engine, served)
        cmdrsp.GetCommandResponder(self.engine, served)
        self.draw()

    def draw(self) -> None:
        """Update the powers."""
        for row, power in zip(self._rows, self._powers_w, strict=True):
            row.setSyntax(row.getSyntax().clone(round(10 * power())))

    async def port(self) -> int:
        """UDP port on which it listens."""
        while self._transport.transport is None:
            await asyncio.sleep(0.01)
        return int(self._transport.transport.get_extra_info("sockname")[1])

    def stop(self) -> None:
        """Stop the agent."""
        self.engine.close_dispatcher()


async def _run(devices: Sequence[str], seed: int) -> None:
    noise = random.Random(seed)
    disks = [BusyDisk(device) for device in devices]

    def power(disk: BusyDisk) -> Callable[[], float]:
        return lambda: power_w(disk.percent(time.monotonic()), noise.gauss(0, 1))

    unit = SimulatedPdu([power(disk) for disk in disks])
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(json.dumps({"simulated": True, "port": await unit.port()}), flush=True)
    while not stopped.is_set():
        unit.draw()
        try:
            async with asyncio.timeout(STEP_S):
                await stopped.wait()
        except TimeoutError:
            continue
    print(json.dumps({"simulated": True, "requests": unit.requests}), flush=True)
    unit.stop()


def main() -> None:
    """Run until SIGTERM."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--disk", action="append", required=True, help="a block device, as loop0")
    options.add_argument("--seed", type=int, default=1, help="of the deviates")
    arguments = options.parse_args()
    asyncio.run(_run(arguments.disk, arguments.seed))


if __name__ == "__main__":
    main()
