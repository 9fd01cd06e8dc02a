"""Run inside the guest: links with netem, read back and measured; the relay. Print one JSON object."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from net_ground import connection, datagrams, namespaces, round_trips

from penstock.emulate.network import Network
from penstock.emulate.network.capabilities import offers
from penstock.host.journal.journal import Journal
from penstock.spec.cluster import Delay, LinkSpec, NetworkSpec

N = 1000
report: dict[str, Any] = {"offers": vars(offers())}
journal = Journal(Path(tempfile.mkdtemp()) / "journal")


def measure_links(engine: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    spec = NetworkSpec(engine=engine)  # type: ignore[arg-type]
    with namespaces(2) as (a, b), Network.up([spec], journal) as network:
        network.attach("a", a, LinkSpec(delay=Delay(0.100), in_delay=Delay(0.050), out_bps=1e6))
        link_b = network.attach("b", b)
        results["engine"] = network.engine("net")
        results["at_first"] = network.read_back("a")
        times = round_trips(*connection(b, a, link_b.address), 20, 0.01)
        results["rtt_s"] = times
        # a change of one parameter does not affect the others
        network.set_link("a", None, {"out_bps": 2e6})
        network.set_link("a", None, {"in_delay": None})
        results["after_two"] = network.read_back("a")
        network.set_link("a", None, {"delay": None, "loss": 0.2})
        results["arrived"] = len(datagrams(a, b, link_b.address, N))
        network.set_link("a", None, {"loss": None, "duplicate": 0.3})
        results["twice"] = len(datagrams(a, b, link_b.address, N))
        network.set_link("a", None, {"duplicate": None, "out_bps": None})
        results["at_last"] = network.read_back("a")
        for name in ("uniform", "normal", "pareto") if engine == "auto" else ():
            delay = {"mean_s": 0.060, "jitter_s": 0.020, "distribution": name}
            constant = {"mean_s": 0.060, "jitter_s": 0.0, "distribution": "constant"}
            times: dict[str, list[float]] = {"constant": [], name: []}
            for _ in range(4):  # interleaved: the guest's own delays affect both alike
                network.set_link("a", None, {"delay": constant})
                times["constant"] += round_trips(*connection(b, a, link_b.address), 30, 0.0)
                results[name] = network.set_link("a", None, {"delay": delay}).actual["delay"]
                times[name] += round_trips(*connection(b, a, link_b.address), 60, 0.0)
            results[f"{name}_s"] = times
    return results


for engine in ("auto", "relay"):
    start = time.monotonic()
    report[engine] = measure_links(engine)
    report[engine]["seconds"] = time.monotonic() - start
report["left"] = len(journal.open_entries())
print("RESULT " + json.dumps(report))
