"""Networks of this host: real namespaces, real traffic, each check with its planted failure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.emulate.network import Network
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.network.netlink import Netlink
from penstock.host.network.netns import inside
from penstock.host.storage.mounts import mounts
from penstock.spec.cluster import LinkSpec, NetworkSpec, NodeSpec, RouterSpec
from tests.integration.net_ground import bit_s, busy, connection, namespaces
from tests.integration.readings import Readings, judged, of_one_test, verdict, watched

#: so long after its start a connection has found its rate [s]
SETTLED_S = 0.25
__all__ = ["of_one_test"]  # a fixture

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    journal = Journal(tmp_path / "journal.jsonl")
    yield journal
    undo(journal, own=True)


def seen(runtime: Path) -> dict[str, object]:
    with Netlink() as root:
        links = root.links()
    inside = [m.point for m in mounts() if m.point.startswith(str(runtime))]
    return {"links": links, "mounts": inside, "files": sorted(p.name for p in runtime.glob("*"))}


@pytest.mark.timed
def test_fifty_out_and_twenty_in(journal: Journal, readings: Readings) -> None:
    with namespaces(2) as (a, b), Network.up([NetworkSpec()], journal) as network:
        one = network.attach("a", a, LinkSpec(out_bps=50e6 / 8, in_bps=20e6 / 8))
        other = network.attach("b", b)

        def rate(direction: str, ends: tuple[socket.socket, socket.socket]) -> tuple[float, str]:
            with busy(*ends):
                time.sleep(SETTLED_S)
                return watched(lambda: bit_s(lambda: network.passed("a")[direction] or 0))

        def out_at(limit_bit_s: float) -> Callable[[], tuple[float, str]]:
            def read() -> tuple[float, str]:
                network.set_link("a", None, {"out_bps": limit_bit_s / 8})
                return rate("out", connection(b, a, other.address))

            return read

        # planted: ten percent less and more than was asked for
        out, less, more, came_in = readings.in_turns(
            out_at(50e6),
            out_at(45e6),
            out_at(55e6),
            lambda: rate("in", connection(a, b, one.address)),
            decided=judged((50e6, 0.05), (50e6, 0.05), (50e6, 0.05), (20e6, 0.05)),
        )
        assert verdict(out, 50e6, 0.05) == "honoured", out
        assert verdict(less, 50e6, 0.05) == "departs", less
        assert verdict(more, 50e6, 0.05) == "departs", more
        assert verdict(came_in, 20e6, 0.05) == "honoured", came_in


def test_setting_one_direction_leaves_the_other(journal: Journal) -> None:
    with namespaces(1) as (a,), Network.up([NetworkSpec()], journal) as network:
        network.attach("a", a, LinkSpec(out_bps=4e6))
        for patch, out, come_in in (
            ({"in_bps": 2e6}, 4e6, 2e6),
            ({"out_bps": "max"}, None, 2e6),
            ({"out_bps": 1e6}, 1e6, 2e6),
            ({"in_bps": None}, 1e6, None),
        ):
            change = network.set_link("a", "net", patch)
            now = network.read_back("a")
            assert (now["out_bps"], now["in_bps"]) == (out, come_in)
            assert set(change.actual) == set(patch)
            assert change.planned_ns <= change.applied_ns <= change.verified_ns


def test_what_another_changed_is_found_out(journal: Journal) -> None:
    with namespaces(1) as (a,), Network.up([NetworkSpec()], journal) as network:
        network.attach("a", a, LinkSpec(out_bps=4e6))
        words = ["tc", "qdisc", "del", "dev", "e0", "root"]
        subprocess.run(["nsenter", f"--net=/proc/{a}/ns/net", *words], check=True)
        with pytest.raises(PenstockError, match="found None"):
            network.set_link("a", "net", {"in_bps": 2e6})


def test_nodes_on_several_networks(journal: Journal) -> None:
    specs = [NetworkSpec("front", "10.88.7.0/24", host=True), NetworkSpec("back", "10.88.8.0/24")]
    nodes = [
        NodeSpec("a", links=(LinkSpec("front"), LinkSpec("back", address="10.88.8.1"))),
        NodeSpec("b", links=(LinkSpec("front"),)),
    ]
    with namespaces(2) as (a, b), Network.up(specs, journal, nodes=nodes) as network:
        front = network.attach("b", b, LinkSpec("front"))
        first = [network.attach("a", a, link) for link in nodes[0].links]
        assert [(i.name, i.address) for i in first] == [("e0", "10.88.7.2"), ("e1", "10.88.8.1")]
        sending, receiving = connection(b, a, front.address)
        sending.close()
        receiving.close()
        assert network.host_address("front") == "10.88.7.254"
        assert network.host_address("back") is None
        sending, receiving = connection(a, os.getpid(), first[0].address)  # from the host
        sending.close()
        receiving.close()
        with pytest.raises(BadInput, match="expected one named"):
            network.set_link("a", None, {"out_bps": 1e6})


def answers(sender: int, receiver: int, address: str) -> bool:
    """True if a UDP packet from one namespace arrives in another one at this address, and its reply."""

    def opened() -> socket.socket:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.settimeout(5)
        udp.bind(("", 7000))
        return udp

    with inside(sender, opened) as near, inside(receiver, opened) as far:
        near.sendto(b"to", (address, 7000))
        _, source = far.recvfrom(10)
        far.sendto(b"back", source)
        return near.recv(10) == b"back"


@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
def test_a_router_forwards_between_its_networks(journal: Journal, delay_s: float) -> None:
    """Nodes have routes to networks that they are not in; a network without a router is separate."""
    subnets = {"front": "10.88.7.0/24", "back": "10.88.8.0/24", "apart": "10.88.9.0/24"}
    specs = [
        NetworkSpec(n, s, delay_s=delay_s, router=None if n == "apart" else RouterSpec())
        for n, s in subnets.items()
    ]
    links = {"a": ("front",), "b": ("back",), "c": ("front", "back"), "d": ("apart",)}
    nodes = [NodeSpec(name, links=tuple(map(LinkSpec, own))) for name, own in links.items()]
    with namespaces(4) as pids, Network.up(specs, journal, nodes=nodes) as network:
        at = dict(zip(links, pids, strict=True))
        address: dict[str, str] = {}
        for node in nodes:
            for link in node.links:
                address[node.name] = network.attach(node.name, at[node.name], link).address
            network.route(node.name)
        assert address["c"] == "10.88.8.2"
        for sender, receiver in (("a", "b"), ("b", "a"), ("c", "b"), ("a", "c")):
            assert answers(at[sender], at[receiver], address[receiver])
        for sender, receiver in (("a", "d"), ("d", "a")):
            with pytest.raises(OSError, match="unreachable"):
                answers(at[sender], at[receiver], address[receiver])
    assert journal.open_entries() == []


def test_down_and_undo_put_everything_back(journal: Journal, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    before = seen(runtime)
    with namespaces(1) as (a,):
        with Network.up([NetworkSpec(host=True)], journal) as network:
            network.attach("a", a)
            assert seen(runtime) != before
        assert seen(runtime) == before
        assert journal.open_entries() == []
        network = Network.up([NetworkSpec(host=True)], journal)
        network.attach("a", a)
        assert {u.outcome for u in undo(journal, own=True)} == {"undone"}
        assert seen(runtime) == before
        assert undo(journal, own=True) == []


_DIES = """
import os, sys
from penstock.emulate.network import Network
from penstock.spec.cluster import NetworkSpec
from penstock.host.journal.journal import Journal
network = Network.up([NetworkSpec(host=True)], Journal(sys.argv[1]))
network.attach("a", int(sys.argv[2]))
os.kill(os.getpid(), 9)
"""


def test_undo_after_a_kill_spares_the_living_and_the_foreign(
    journal: Journal, tmp_path: Path
) -> None:
    runtime = tmp_path / "run"
    with namespaces(2) as (a, b), Network.up([NetworkSpec(host=True)], journal) as mine:
        mine.attach("b", b)
        before = seen(runtime)
        done = subprocess.run([sys.executable, "-c", _DIES, str(journal.path), str(a)])
        assert done.returncode == -9
        assert seen(runtime) != before
        assert [u.outcome for u in undo(journal)] == ["undone"]
        assert seen(runtime) == before
        assert mine.read_back("b")["out_bps"] is None  # the living owner's still works


def test_nothing_is_left_of_what_was_refused(journal: Journal, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    before = seen(runtime)
    with pytest.raises(BadInput, match=r"10.88.0.0/20.*overlaps 10.88.1.0/24 of one"):
        Network.up(
            [NetworkSpec("one", "10.88.1.0/24"), NetworkSpec("two", "10.88.0.0/20")], journal
        )
    with pytest.raises(BadInput, match="expected one of net"):
        Network.up([NetworkSpec()], journal, nodes=[NodeSpec("a", links=(LinkSpec("nett"),))])
    assert seen(runtime) == before
    spec = NetworkSpec(subnet="10.88.9.0/24")
    with namespaces(1) as (a,), Network.up([spec], journal) as network:
        with pytest.raises(PenstockError, match="network namespace"):
            network.attach("a", "/proc/999999999/ns/net")
        assert network.attach("a", a).address == "10.88.9.1"  # the address was given back
        with pytest.raises(BadInput, match="on network net already"):
            network.attach("a", a)
    assert seen(runtime) == before
