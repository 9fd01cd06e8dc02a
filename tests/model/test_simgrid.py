"""The simulator compared with SimGrid on the exported platform (optional).

SimGrid's flows share a link fairly and arrive continuously; penstock's frames queue and are forwarded as a
unit. Both use a busy link fully, so the makespans agree if one link is the bottleneck: single flows and
incast, within 5 %. In other cases they differ by tens of percent, in both directions, and only the order of a
workload's configurations is compared:

- in SimGrid, a transfer counts as arrived only at its end, so that neither a disk nor a chain of replicas
  works before (so configurations with more replicas are excluded);
- a small control message passes a long transfer in SimGrid, and waits behind it in a FIFO;
- chunks that meet at one receiver in FIFO order leave other receivers idle; shares do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from bench.simulation import scenarios as s
from bench.simulation import simgrid

pytestmark = pytest.mark.skipif(simgrid.missing() is not None, reason=str(simgrid.missing()))

WITHIN = 0.05
SIZE = 10 * s.MIB


@dataclass(frozen=True)
class Scenario:
    workload: dict[str, Any]
    network: dict[str, Any]
    alike: bool = False  # the network is the bottleneck and both models apply: within 5 %


def platform(nodes: int, **options: Any) -> dict[str, Any]:
    return s.platform(nodes, **({"shuffle": "none", "out_bps": 12.5e6} | options))


def apart(clients: int, **options: Any) -> dict[str, Any]:
    """`clients` clients, one storage host and a manager."""
    return platform(clients + 2, clients=tuple(range(clients)), storage=(clients,), **options)


SCENARIOS: dict[str, Scenario] = {
    "flows: one": Scenario(s.writers((0,), SIZE), apart(1), True),
    "flows: one, ten times the data": Scenario(s.writers((0,), 10 * SIZE), apart(1), True),
    "flows: one, 1 ms away": Scenario(s.writers((0,), SIZE), apart(1, latency_s=1e-3), True),
    "flows: one, read": Scenario(s.reader(SIZE, 0), apart(1), True),
    "flows: incast of 2": Scenario(s.writers((0, 1), SIZE), apart(2), True),
    "flows: incast of 5": Scenario(s.writers((0, 1, 2, 3, 4), SIZE), apart(5), True),
    "pipeline: striped": Scenario(s.pipeline(5, SIZE, pinned=True), platform(6)),
    "pipeline: local": Scenario(s.pipeline(5, SIZE, 3, True, pinned=True), platform(6)),
    "reduce: striped": Scenario(s.reduce(5, SIZE, False, pinned=True), platform(6)),
    "reduce: collocated": Scenario(s.reduce(5, SIZE, True, pinned=True), platform(6)),
    "broadcast: width 1": Scenario(s.broadcast(5, SIZE, pinned=True), platform(6, stripe_width=1)),
    "broadcast: width 2": Scenario(s.broadcast(5, SIZE, pinned=True), platform(6, stripe_width=2)),
    "broadcast: striped": Scenario(s.broadcast(5, SIZE, pinned=True), platform(6)),
}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> simgrid.SimGrid:
    return simgrid.SimGrid(tmp_path_factory.mktemp("simgrid"))


@pytest.fixture(scope="module")
def simgrid_s(peer: simgrid.SimGrid) -> dict[str, float]:
    return {n: peer.simulate(c.workload, c.network).makespan_s for n, c in SCENARIOS.items()}


@pytest.fixture(scope="module")
def penstock_s() -> dict[str, float]:
    from bench.simulation.penstock_engine import Simulator

    return {
        n: float(Simulator(c.workload).simulate(c.network)["makespan_s"])
        for n, c in SCENARIOS.items()
    }


def swapped(a: Mapping[str, float], b: Mapping[str, float]) -> list[tuple[str, str]]:
    """Pairs of one workload that are more than 5 % apart in both, and in opposite order."""
    return [
        (x, y)
        for x, y in combinations(a, 2)
        if x.split(":")[0] == y.split(":")[0]
        and min(abs(a[x] / a[y] - 1), abs(b[x] / b[y] - 1)) > WITHIN
        and (a[x] < a[y]) != (b[x] < b[y])
    ]


@pytest.mark.parametrize("name", [n for n, c in SCENARIOS.items() if c.alike])
def test_flows_and_incast_agree(
    name: str, penstock_s: dict[str, float], simgrid_s: dict[str, float]
) -> None:
    assert simgrid_s[name] == pytest.approx(penstock_s[name], rel=WITHIN)


def test_the_order_of_configurations_agrees(
    penstock_s: dict[str, float], simgrid_s: dict[str, float]
) -> None:
    assert len(SCENARIOS) >= 10
    assert swapped(penstock_s, simgrid_s) == []
    for better, worse in (
        ("pipeline: local", "pipeline: striped"),
        ("reduce: collocated", "reduce: striped"),
        ("broadcast: striped", "broadcast: width 2"),
        ("broadcast: width 2", "broadcast: width 1"),
    ):
        assert penstock_s[better] < penstock_s[worse]
        assert simgrid_s[better] < simgrid_s[worse]


def test_a_wrongly_exported_platform_is_detected(
    peer: simgrid.SimGrid, penstock_s: dict[str, float]
) -> None:
    """Planted: SimGrid's links are 10 % slower than penstock's."""
    case = SCENARIOS["flows: incast of 5"]
    wrong = peer.simulate(case.workload, case.network, on=apart(5, out_bps=12.5e6 / 1.1))
    assert wrong.makespan_s != pytest.approx(penstock_s["flows: incast of 5"], rel=WITHIN)


def test_a_wrong_order_is_detected(penstock_s: dict[str, float]) -> None:
    """Planted: two configurations exchanged."""
    a, b = "reduce: striped", "reduce: collocated"
    wrong = {**penstock_s, a: penstock_s[b], b: penstock_s[a]}
    assert (a, b) in swapped(penstock_s, wrong)


def test_where_storage_is_the_bottleneck_the_models_differ(peer: simgrid.SimGrid) -> None:
    """The comparison is strict enough to detect a serial disk of 200 ms per chunk, with a queue of nine."""
    from bench.simulation.penstock_engine import Simulator

    work, network = s.writers((0,), SIZE), apart(1, storage_s_per_byte=0.2 / s.MIB)
    fluid = peer.simulate(work, network).makespan_s
    queued = float(Simulator(work).simulate(network)["makespan_s"])
    assert fluid > 1.3 * queued


def test_a_platform_that_does_not_fit_is_refused(peer: simgrid.SimGrid) -> None:
    network = apart(1)
    network["fabric"]["rack_uplink_bps"] = 1e9
    with pytest.raises(ValueError, match="does not fit SimGrid: the racks"):
        peer.simulate(s.writers((0,), SIZE), network)
