"""Emulated networks with real namespaces and traffic; checks of rates with planted failures."""

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
from tests.integration.node_ground import tokens_in
from tests.integration.readings import Readings, judged, of_one_test, verdict, watched

#: time until a new connection reaches its steady rate [s]
SETTLED_S = 0.25
#: of a network with an address of the host; parallel runs on this host have other ones
FRONT = f"10.89.{os.getpid() % 256}"
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


def host_objects(runtime: Path, journal: Journal) -> dict[str, object]:
    """Links, mounts and files of the networks in a journal; parallel tests have networks, too."""
    tokens = tokens_in(journal.path)
    with Netlink() as root:
        links = [link for link in root.links() if any(token in link[1] for token in tokens)]
    mounted = [m.point for m in mounts() if m.point.startswith(str(runtime))]
    return {"links": links, "mounts": mounted, "files": sorted(p.name for p in runtime.glob("*"))}


@pytest.mark.timed
def test_limits_of_both_directions(journal: Journal, readings: Readings) -> None:
    with namespaces(2) as (a, b), Network.up([NetworkSpec()], journal) as network:
        link_a = network.attach("a", a, LinkSpec(out_bps=50e6 / 8, in_bps=20e6 / 8))
        link_b = network.attach("b", b)

        def rate(direction: str, ends: tuple[socket.socket, socket.socket]) -> tuple[float, str]:
            with busy(*ends):
                time.sleep(SETTLED_S)
                return watched(lambda: bit_s(lambda: network.passed("a")[direction] or 0))

        def out_at(limit_bit_s: float) -> Callable[[], tuple[float, str]]:
            def read() -> tuple[float, str]:
                network.set_link("a", None, {"out_bps": limit_bit_s / 8})
                return rate("out", connection(b, a, link_b.address))

            return read

        # planted: limits ten percent below and above the expected rate
        out, below, above, incoming = readings.in_turns(
            out_at(50e6),
            out_at(45e6),
            out_at(55e6),
            lambda: rate("in", connection(a, b, link_a.address)),
            decided=judged((50e6, 0.05), (50e6, 0.05), (50e6, 0.05), (20e6, 0.05)),
        )
        assert verdict(out, 50e6, 0.05) == "honoured", out
        assert verdict(below, 50e6, 0.05) == "departs", below
        assert verdict(above, 50e6, 0.05) == "departs", above
        assert verdict(incoming, 20e6, 0.05) == "honoured", incoming


def test_a_change_of_one_direction_keeps_the_other(journal: Journal) -> None:
    with namespaces(1) as (a,), Network.up([NetworkSpec()], journal) as network:
        network.attach("a", a, LinkSpec(out_bps=4e6))
        for patch, out_bps, in_bps in (
            ({"in_bps": 2e6}, 4e6, 2e6),
            ({"out_bps": "max"}, None, 2e6),
            ({"out_bps": 1e6}, 1e6, 2e6),
            ({"in_bps": None}, 1e6, None),
        ):
            change = network.set_link("a", "net", patch)
            actual = network.read_back("a")
            assert (actual["out_bps"], actual["in_bps"]) == (out_bps, in_bps)
            assert set(change.actual) == set(patch)
            assert change.planned_ns <= change.applied_ns <= change.verified_ns


def test_an_external_change_is_detected(journal: Journal) -> None:
    with namespaces(1) as (a,), Network.up([NetworkSpec()], journal) as network:
        network.attach("a", a, LinkSpec(out_bps=4e6))
        argv = ["tc", "qdisc", "del", "dev", "e0", "root"]
        subprocess.run(["nsenter", f"--net=/proc/{a}/ns/net", *argv], check=True)
        with pytest.raises(PenstockError, match="found None"):
            network.set_link("a", "net", {"in_bps": 2e6})


def test_nodes_on_several_networks(journal: Journal) -> None:
    specs = [NetworkSpec("front", f"{FRONT}.0/24", host=True), NetworkSpec("back", "10.88.8.0/24")]
    nodes = [
        NodeSpec("a", links=(LinkSpec("front"), LinkSpec("back", address="10.88.8.1"))),
        NodeSpec("b", links=(LinkSpec("front"),)),
    ]
    with namespaces(2) as (a, b), Network.up(specs, journal, nodes=nodes) as network:
        front = network.attach("b", b, LinkSpec("front"))
        first = [network.attach("a", a, link) for link in nodes[0].links]
        assert [(i.name, i.address) for i in first] == [("e0", f"{FRONT}.2"), ("e1", "10.88.8.1")]
        sending, receiving = connection(b, a, front.address)
        sending.close()
        receiving.close()
        assert network.host_address("front") == f"{FRONT}.254"
        assert network.host_address("back") is None
        sending, receiving = connection(a, os.getpid(), first[0].address)  # from the host
        sending.close()
        receiving.close()
        with pytest.raises(BadInput, match="expected one named"):
            network.set_link("a", None, {"out_bps": 1e6})


def answers(sender: int, receiver: int, address: str) -> bool:
    """True if a UDP packet from `sender` reaches `address` in `receiver`, and the reply returns."""

    def open_socket() -> socket.socket:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.settimeout(5)
        udp.bind(("", 7000))
        return udp

    with inside(sender, open_socket) as near, inside(receiver, open_socket) as far:
        near.sendto(b"to", (address, 7000))
        _, source = far.recvfrom(10)
        far.sendto(b"back", source)
        return near.recv(10) == b"back"


@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
def test_a_router_forwards_between_its_networks(journal: Journal, delay_s: float) -> None:
    """A router connects its networks; a network without a router is separate."""
    subnets = {"front": "10.88.7.0/24", "back": "10.88.8.0/24", "apart": "10.88.9.0/24"}
    specs = [
        NetworkSpec(n, s, delay_s=delay_s, router=None if n == "apart" else RouterSpec())
        for n, s in subnets.items()
    ]
    links = {"a": ("front",), "b": ("back",), "c": ("front", "back"), "d": ("apart",)}
    nodes = [
        NodeSpec(name, links=tuple(map(LinkSpec, networks))) for name, networks in links.items()
    ]
    with namespaces(4) as pids, Network.up(specs, journal, nodes=nodes) as network:
        pid_of = dict(zip(links, pids, strict=True))
        address: dict[str, str] = {}
        for node in nodes:
            for link in node.links:
                address[node.name] = network.attach(node.name, pid_of[node.name], link).address
            network.route(node.name)
        assert address["c"] == "10.88.8.2"
        for sender, receiver in (("a", "b"), ("b", "a"), ("c", "b"), ("a", "c")):
            assert answers(pid_of[sender], pid_of[receiver], address[receiver])
        for sender, receiver in (("a", "d"), ("d", "a")):
            with pytest.raises(OSError, match="unreachable"):
                answers(pid_of[sender], pid_of[receiver], address[receiver])
    assert journal.open_entries() == []


def test_down_and_undo_restore_the_host(journal: Journal, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    before = host_objects(runtime, journal)
    with namespaces(1) as (a,):
        with Network.up([NetworkSpec(host=True)], journal) as network:
            network.attach("a", a)
            assert host_objects(runtime, journal) != before
        assert host_objects(runtime, journal) == before
        assert journal.open_entries() == []
        network = Network.up([NetworkSpec(host=True)], journal)
        network.attach("a", a)
        assert host_objects(runtime, journal)["links"]
        assert {u.outcome for u in undo(journal, own=True)} == {"undone"}
        assert host_objects(runtime, journal) == before
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


def test_undo_after_a_kill_spares_networks_of_living_owners(
    journal: Journal, tmp_path: Path
) -> None:
    runtime = tmp_path / "run"
    with namespaces(2) as (a, b), Network.up([NetworkSpec(host=True)], journal) as living:
        living.attach("b", b)
        before = host_objects(runtime, journal)
        result = subprocess.run([sys.executable, "-c", _DIES, str(journal.path), str(a)])
        assert result.returncode == -9
        assert host_objects(runtime, journal) != before
        assert [u.outcome for u in undo(journal)] == ["undone"]
        assert host_objects(runtime, journal) == before
        assert living.read_back("b")["out_bps"] is None  # its network still works


def test_a_refused_request_leaves_nothing_on_the_host(journal: Journal, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    before = host_objects(runtime, journal)
    with pytest.raises(BadInput, match=r"10.88.0.0/20.*overlaps 10.88.1.0/24 of one"):
        Network.up(
            [NetworkSpec("one", "10.88.1.0/24"), NetworkSpec("two", "10.88.0.0/20")], journal
        )
    with pytest.raises(BadInput, match="expected one of net"):
        Network.up([NetworkSpec()], journal, nodes=[NodeSpec("a", links=(LinkSpec("nett"),))])
    assert host_objects(runtime, journal) == before
    spec = NetworkSpec(subnet="10.88.9.0/24")
    with namespaces(1) as (a,), Network.up([spec], journal) as network:
        with pytest.raises(PenstockError, match="network namespace"):
            network.attach("a", "/proc/999999999/ns/net")
        assert network.attach("a", a).address == "10.88.9.1"  # the address was released
        with pytest.raises(BadInput, match="on network net already"):
            network.attach("a", a)
    assert host_objects(runtime, journal) == before


#: a namespace with the end of a segment ends; the kernel removes the end later
REPEATED_TUNNEL = """
import subprocess
from penstock.emulate.network import tunnel
from penstock.host.network.netlink import Netlink, new_link

options = ["type", "vxlan", "id", "7", "local", "127.0.0.1", "dstport", "4790"]
data = [["IFLA_VXLAN_ID", 7], ["IFLA_VXLAN_LOCAL", "127.0.0.1"], ["IFLA_VXLAN_PORT", 4790]]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for number in range(5):
    with subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE) as other:
        here = subprocess.check_output(["readlink", "/proc/self/ns/net"])
        while subprocess.check_output(["readlink", f"/proc/{other.pid}/ns/net"]) == here:
            pass
        subprocess.run(["ip", "link", "add", "vx0", "netns", str(other.pid), *options], check=True)
    with Netlink() as netlink:
        tunnel._create(netlink, new_link("vx1", "vxlan", index=100 + number, attrs=[], data=data))
    subprocess.run(["ip", "link", "del", "vx1"], check=True)
"""


def test_a_segment_is_created_again_at_once() -> None:
    line = ["unshare", "-n", sys.executable, "-c", REPEATED_TUNNEL]
    result = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
