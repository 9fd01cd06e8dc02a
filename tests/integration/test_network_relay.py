"""Delay, loss, duplication and reordering by the relay: real namespaces, unmodified TCP and UDP."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.emulate.network import Network
from penstock.emulate.network.capabilities import offers
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.observe.trace.capture.overhead import interval
from penstock.spec.cluster import Delay, Event, LinkSpec, NetworkSpec, When
from tests.integration.net_ground import (
    bit_s,
    busy,
    connection,
    datagrams,
    has_share,
    namespaces,
    round_trips,
)
from tests.integration.readings import Readings, judged, of_one_test, verdict, watched

__all__ = ["of_one_test"]  # a fixture

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]
RELAYED = NetworkSpec(engine="relay")


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    journal = Journal(tmp_path / "journal.jsonl")
    yield journal
    undo(journal, own=True)


def delay_verdict(times: list[float], requested_s: float) -> str:
    """Compare round trips with the requested delay: minimum, and 95 % interval of the median.

    `undecided` if the interval contains the upper limit.
    """
    if min(times) < requested_s:
        return "too fast"
    limit_s = 1.1 * requested_s + 1e-3
    _, low, high = interval(times)
    return "right" if high <= limit_s else "too slow" if low > limit_s else "undecided"


def message_times(readings: Readings, server: int, client: int, address: str) -> list[float]:
    """Round trips of 40 messages [s]; repeated while the host is busy."""

    def read() -> list[float]:
        return round_trips(*connection(server, client, address), 40, 0.001)

    return readings.valid(lambda: watched(read))


@pytest.mark.timed
def test_a_matrix_of_delays(journal: Journal, readings: Readings) -> None:
    spec = NetworkSpec(
        delay_s=0.002, delays={("a", "b"): 0.005, ("a", "c"): 0.020, ("c", "a"): 0.001}
    )
    with namespaces(3) as pids, Network.up([spec], journal) as network:
        links = {name: network.attach(name, pid) for name, pid in zip("abc", pids, strict=True)}
        pid = dict(zip("abc", pids, strict=True))
        assert network.engine("net") == "relay"
        for sender, receiver, requested_s in (
            ("a", "b", 0.010),
            ("a", "c", 0.021),
            ("b", "c", 0.004),
        ):
            times = message_times(readings, pid[receiver], pid[sender], links[receiver].address)
            assert delay_verdict(times, requested_s) == "right", (sender, receiver, times)
            assert delay_verdict(times, 1.2 * requested_s) == "too fast"  # planted
            # 0.6 × the smallest delay × 1.1 + 1 ms < 4 ms
            assert delay_verdict(times, 0.6 * requested_s) == "too slow"
        network.set_delays("net", {("a", "b"): 0.012})
        times = message_times(readings, pid["b"], pid["a"], links["b"].address)
        assert delay_verdict(times, 0.024) == "right", times
        with pytest.raises(BadInput, match="'d'; there is none"):
            network.set_delays("net", {("a", "d"): 0.1})


@pytest.mark.timed
def test_delay_of_a_live_link_is_set_and_removed(journal: Journal, readings: Readings) -> None:
    with namespaces(2) as (a, b), Network.up([NetworkSpec()], journal) as network:
        network.attach("a", a)
        peer = network.attach("b", b)
        sending, receiving = connection(b, a, peer.address)
        assert network.engine("net") == "bridge"
        if offers().netem:
            pytest.skip("kernel: has netem: no switch to the relay")
        sending.sendall(b"before")  # TCP sends packets in flight again
        change = network.set_link("a", None, {"delay": 0.015, "in_delay": 0.005})
        assert network.engine("net") == "relay"
        assert change.actual["delay"] == {
            "mean_s": 0.015,
            "jitter_s": 0.0,
            "distribution": "constant",
        }
        assert receiving.recv(6) == b"before"
        assert min(round_trips(sending, receiving, 20, 0.001)) >= 0.020
        assert delay_verdict(message_times(readings, b, a, peer.address), 0.020) == "right"
        network.set_link("a", None, {"delay": "max", "in_delay": None})
        assert delay_verdict(message_times(readings, b, a, peer.address), 0.020) == "too fast"


@pytest.mark.timed
def test_jitter_keeps_the_order_of_packets(journal: Journal) -> None:
    delay = Delay(0.004, 0.003, "uniform")
    with namespaces(2) as (a, b), Network.up([RELAYED], journal) as network:
        network.attach("a", a, LinkSpec(delay=delay))
        peer = network.attach("b", b)
        times = round_trips(*connection(b, a, peer.address), 60, 0.0)
        spread = sorted(times)
        assert spread[0] < 0.003, spread
        assert spread[-1] > 0.005, spread
        # 6.7 standard deviations below 4 ms; a late reply does not move the median
        assert sum(times) / len(times) > 0.0025, times
        assert spread[len(spread) // 2] < 0.0080, times
        numbers = datagrams(a, b, peer.address, 500)
        assert numbers == list(range(500))
        network.set_link("a", None, {"delay": 0.004, "reorder": 0.2})
        numbers = datagrams(a, b, peer.address, 500)
        assert sorted(numbers) == list(range(500))
        assert numbers != list(range(500))


@pytest.mark.timed
def test_shares_of_lost_duplicated_and_corrupt_packets(journal: Journal) -> None:
    n = 4000
    with namespaces(2) as (a, b), Network.up([RELAYED], journal) as network:
        network.attach("a", a, LinkSpec(loss=0.1))
        peer = network.attach("b", b)
        arrived = len(datagrams(a, b, peer.address, n))
        assert has_share(n - arrived, n, 0.1), arrived
        assert not has_share(n - arrived, n, 0.2)  # planted, 13 standard deviations away
        network.set_link("a", None, {"loss": None, "duplicate": 0.2})
        numbers = datagrams(a, b, peer.address, n)
        assert len(set(numbers)) == n
        assert has_share(len(numbers) - n, n, 0.2), len(numbers)
        # the receiver's checksum rejects corrupt packets
        network.set_link("a", None, {"duplicate": None, "corrupt": 0.1})
        arrived = len(datagrams(a, b, peer.address, n))
        assert has_share(n - arrived, n, 0.1), arrived
        network.set_link("a", None, {"corrupt": None})
        network.set_link("b", None, {"in_loss": 0.3})
        arrived = len(datagrams(a, b, peer.address, n))
        assert has_share(n - arrived, n, 0.3), arrived


@pytest.mark.timed
def test_bandwidth_and_delay_together(journal: Journal, readings: Readings) -> None:
    with namespaces(2) as (a, b), Network.up([RELAYED], journal) as network:
        network.attach("a", a, LinkSpec(out_bps=50e6 / 8, delay=Delay(0.005)))
        peer = network.attach("b", b, LinkSpec(in_bps=20e6 / 8))
        with busy(*connection(b, a, peer.address)):
            time.sleep(0.25)
            (rates,) = readings.in_turns(
                lambda: watched(lambda: bit_s(lambda: network.counters("b")["in_bytes"])),
                decided=judged((20e6, 0.05)),
            )
        assert verdict(rates, 20e6, 0.05) == "honoured", rates
        assert verdict(rates, 18e6, 0.05) == "departs"  # planted
        stats = network.relay_stats()
        assert stats is not None
        assert stats["late"]["n"] > 100
        # a change of one setting keeps the other
        network.set_link("a", None, {"delay": 0.010})
        assert network.read_back("a")["out_bps"] == 50e6 / 8
        network.set_link("a", None, {"out_bps": None})
        assert network.read_back("a")["delay"]["mean_s"] == 0.010


def test_a_network_with_a_scheduled_delay_uses_the_relay_from_the_start(journal: Journal) -> None:
    later = Event(When(at_s=5), "network", {"delay": 0.01}, name="net")
    never = Event(When(at_s=5), "network", {"out_bps": 1e6}, name="net")
    for event, engine in ((later, "relay"), (never, "bridge")):
        with Network.up([NetworkSpec()], journal, events=[event]) as network:
            if not offers().netem:
                assert network.engine("net") == engine


def test_unavailable_settings_are_refused_by_name(journal: Journal) -> None:
    if offers().netem:
        pytest.skip("kernel: has netem")
    with pytest.raises(
        BadInput, match=r"no netem \(CONFIG_NET_SCH_NETEM\); expected relay, or auto"
    ):
        Network.up([NetworkSpec(engine="netem")], journal)
    with pytest.raises(BadInput, match="from a to itself"):
        Network.up([NetworkSpec(delays={("a", "a"): 0.1})], journal)
    with pytest.raises(BadInput, match="expected 0 to 60 s"):
        Network.up([NetworkSpec(delay_s=float("nan"))], journal)
    assert journal.open_entries() == []


_DIES = """
import os, sys
from penstock.emulate.network import Network
from penstock.spec.cluster import NetworkSpec
from penstock.host.journal.journal import Journal
network = Network.up([NetworkSpec(engine="relay")], Journal(sys.argv[1]))
network.attach("a", int(sys.argv[2]))
os.kill(os.getpid(), 9)
"""


def test_undo_ends_the_relay_of_a_dead_owner(journal: Journal, tmp_path: Path) -> None:
    with namespaces(1) as (a,):
        result = subprocess.run([sys.executable, "-c", _DIES, str(journal.path), str(a)])
        assert result.returncode == -9
        outcomes = {u.kind: u.outcome for u in undo(journal)}
    assert outcomes["netns"] == "undone"
    assert outcomes["process"] in ("undone", "gone")  # the relay ends with its owner or by undo
    assert list((tmp_path / "run").iterdir()) == []


def test_a_relay_that_dies_is_reported(journal: Journal) -> None:
    with namespaces(1) as (a,), Network.up([RELAYED], journal) as network:
        network.attach("a", a)
        relay = network._relay
        assert relay is not None
        os.kill(relay.pid, 9)
        with pytest.raises(PenstockError, match="penstock-relay"):
            network.set_link("a", None, {"delay": 0.01})
