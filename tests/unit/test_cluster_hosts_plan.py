"""Hosts files, facts, verification of hosts, and the verb `penstock hosts plan`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import cli
from penstock.errors import BadInput
from penstock.parts.remote.cluster.hosts_file import FactsFile, read_inventory
from penstock.parts.remote.cluster.own_facts import link_facts, own_facts, vxlan_feature
from penstock.parts.remote.cluster.physical import Inventory, PhysicalHost
from penstock.parts.remote.cluster.verify import check_hosts
from penstock.platform.hosts import load_platform
from penstock.spec.cluster import Delay, DiskSpec, LinkSpec, NodeSpec
from penstock.version import version
from tests.unit.cluster_hosts import FEATURES, cluster, facts, host, inventory, rack, write_hosts

HOSTS = """
penstock_hosts: 1
listen: 192.0.2.1
workers:
  - {name: rack1-a, ssh: root@192.0.2.11}
  - {name: rack1-b, ssh: b.example, address: 192.0.2.12, link: 25 Gbit/s, mtu: 9000}
paths:
  - {from: "*", to: "*", latency: 40us}
  - {from: rack1-a, to: rack1-b, latency: 30us, loss: 0.01%}
"""
PLATFORM = """
penstock_platform: 1
name: lab
hosts:
  - {group: db, count: 2, cpus: 8, memory: 16GiB, host: "rack1-b"}
  - {group: app, count: 6, cpus: 2, memory: 4GiB, network: {bandwidth: 1 Gbit/s}}
network: {latency: 200us}
"""


def both(**changes: Any) -> dict[str, Any]:
    return {"rack1-a": facts(), "rack1-b": facts(**changes)}


def test_a_hosts_file_with_facts(tmp_path: Path) -> None:
    read = read_inventory(write_hosts(tmp_path, HOSTS, both()))
    a, b = read.hosts
    assert a == host("rack1-a", 11, features=a.features)
    assert dict(a.features) == FEATURES
    assert (b.address, b.link_bps, b.mtu) == ("192.0.2.12", 3.125e9, 9000)
    paths = read.paths(read.hosts)
    forward, back = paths["rack1-a", "rack1-b"], paths["rack1-b", "rack1-a"]
    assert [forward.delay_s, forward.loss, back.delay_s, back.loss] == pytest.approx(
        [3e-5, 1e-4, 4e-5, 0]
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("penstock_hosts: 1", "penstock_hosts: 2", "hosts.yaml:2:17: found 2;"),
        ("mtu: 9000", "mtu: 10", "hosts.yaml:6:80: found 10; expected a number of at least 68"),
        ("25 Gbit/s", "fast", "expected a bandwidth with its unit"),
        ("latency: 40us", "latency: 40", "expected a duration with its unit"),
        ("paths:", "path:", "found the unknown key 'path'"),
        ("latency: 40us", "delay: 40us", "no 'latency'"),
    ],
)
def test_mistakes_of_a_hosts_file_have_their_position(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in HOSTS
    with pytest.raises(BadInput) as refused:
        read_inventory(write_hosts(tmp_path, HOSTS.replace(old, new, 1), both()))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; expected the output of `penstock hosts facts"),
        ("{", "found no JSON"),
        ("[]", "expected the output of"),
        (
            json.dumps(facts(host={"penstock": "1", "cpus": 0, "memory_bytes": 1})),
            "host.cpus: found",
        ),
        (
            json.dumps(facts(link={})),
            "host rack1-a: link: found no rate; expected the measured one",
        ),
        (json.dumps(facts(link={"rate_bps": 1e9})), "host rack1-a: mtu: found none"),
        (json.dumps(facts(clock={"offset_ns": 10**400})), "clock.offset_ns: found"),
        (json.dumps(facts(link={"mtu": 1500, "rate_bps": float("inf")})), "link.rate_bps: found"),
        ("[" * 100_000, "found no JSON"),
    ],
)
def test_mistakes_of_facts_name_the_host(tmp_path: Path, content: str | None, message: str) -> None:
    path = write_hosts(tmp_path, HOSTS, both())
    file = tmp_path / "facts" / "rack1-a.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_inventory(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith("host rack1-a: ")
    assert len(str(refused.value).splitlines()) == 1


SPEC = cluster(NodeSpec("n-0"), NodeSpec("n-1"))


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ((host("a", 1), host("a", 2)), "host a: found 2 hosts with this name; expected one"),
        (
            (host("a", 1), host("b", 1)),
            "hosts a and b: found the address 192.0.2.1 for all; expected one each",
        ),
        (
            (host("a", 1), host("b", 2, address="b.example")),
            "host b: address: found 'b.example'; expected the IPv4 address of its end of the tunnels",
        ),
        (
            (host("a", 1), host("b", 2, version="0.0.1")),
            f"host b: found penstock 0.0.1; expected {version()}, the version of this host",
        ),
        (
            (host("a", 1), host("b", 2, clock_offset_s=-1.0)),
            "host b: found a clock -1.000 s from this host's",
        ),
        (
            (host("a", 1), host("b", 2, mtu=1300)),
            "host b: found an MTU of 1300 bytes; expected at least 1330",
        ),
        (
            (host("a", 1), host("b", 2, features={**FEATURES, "veth": "unsupported"})),
            "host b: found veth unsupported; expected it for virtual nodes",
        ),
        (
            (
                host("a", 1, features={k: v for k, v in FEATURES.items() if k != "vxlan"}),
                host("b", 2),
            ),
            "host a: found vxlan not tested; expected it for networks on several hosts",
        ),
    ],
)
def test_each_unsuitable_host_is_one_message(hosts: tuple[PhysicalHost, ...], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_hosts(inventory(hosts), SPEC)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_all_mistakes_are_reported_at_once() -> None:
    hosts = (host("a", 1, mtu=600, version="0.1"), host("b", 2, clock_offset_s=3.0))
    with pytest.raises(BadInput) as refused:
        check_hosts(Inventory(hosts), SPEC)
    assert [line.partition(": found ")[0] for line in str(refused.value).splitlines()] == [
        "host a",
        "host b",
        "host a",
        "paths",
    ]


def test_features_are_required_by_use() -> None:
    without = {k: v for k, v in FEATURES.items() if k not in ("tbf", "netem", "fuse")}
    hosts = inventory(rack(2, features=without))
    check_hosts(hosts, SPEC)
    check_hosts(
        inventory(rack(1, features={k: v for k, v in without.items() if k != "vxlan"})), SPEC
    )
    nodes = {
        "tbf": NodeSpec("n-0", links=(LinkSpec(in_bps=1e6),)),
        "netem and relay": NodeSpec("n-0", links=(LinkSpec(in_delay=Delay(1e-3)),)),
        "fuse": NodeSpec("n-0", disks=(DiskSpec("d", profile={}),)),
    }
    for feature, needing in nodes.items():
        with pytest.raises(BadInput, match=f"found {feature} not tested"):
            check_hosts(hosts, cluster(needing))
    relay = inventory(rack(2, features={**without, "relay": "supported"}))
    check_hosts(relay, cluster(nodes["netem and relay"]))


def test_missing_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"^TLS: found no cryptography and distributed here"):
        check_hosts(inventory(rack(2)), SPEC)
    check_hosts(inventory(rack(1)), SPEC)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["penstock", "hosts", *argv])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    platform = tmp_path / "lab.yaml"
    platform.write_text(PLATFORM)
    return str(platform), str(write_hosts(tmp_path, HOSTS, both()))


def test_the_verb_prints_the_plan(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform, hosts = files
    status, out, err = run(monkeypatch, capsys, "plan", platform, "--hosts", hosts)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("rack1")}
    assert rows["rack1-b"][1:5] == ["2", "16", "100", "%"]
    assert rows["rack1-a"][1:5] == ["6", "12", "75", "%"]
    assert "between hosts: at most" in out


def test_the_plan_as_json(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform, hosts = files
    status, out, _ = run(monkeypatch, capsys, "plan", platform, "--hosts", hosts, "--json")
    plan = json.loads(out)
    assert status == 0
    assert {h["name"]: h["nodes"] for h in plan["hosts"]} == {
        "rack1-a": [f"app-{i}" for i in range(6)],
        "rack1-b": ["db-0", "db-1"],
    }
    assert [n["mtu"] for n in plan["networks"]] == [1450]
    assert len({a for interfaces in plan["addresses"].values() for a in interfaces.values()}) == 8
    assert {(p["from"], p["to"]): p["added_delay_s"] for p in plan["paths"]} == {
        ("rack1-a", "rack1-b"): pytest.approx(170e-6),
        ("rack1-b", "rack1-a"): pytest.approx(160e-6),
    }


def test_the_verb_refuses_and_marks_overcommitment(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform, hosts = files
    arguments = ("plan", platform, "--hosts", hosts, "--set", "hosts.db.cpus=10")
    status, out, err = run(monkeypatch, capsys, *arguments)
    assert (status, out) == (2, "")
    assert "cpu: found 20 for 2 nodes; expected at most 16 on 1 host of rack1-b" in err
    status, out, _ = run(monkeypatch, capsys, *arguments, "--allow-overcommit")
    assert status == 0
    assert "125 %!" in out
    assert "overcommitted: host rack1-b: cpu: found 20 for its nodes; expected at most 16" in out


def test_a_pin_is_checked_on_one_host_and_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PLATFORM)
    hosts = load_platform(path, predicted=False).hosts
    assert [h.part.host for h in hosts] == ["rack1-b"] * 2 + [None] * 6
    path.write_text(PLATFORM.replace('"rack1-b"', '"rack 1/b"'))
    with pytest.raises(BadInput, match=r"p\.yaml:5:57: found 'rack 1/b'; expected a physical host"):
        load_platform(path, predicted=False)


def test_too_many_pairs_of_latencies_are_refused(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform, hosts = files
    Path(platform).write_text(
        PLATFORM.replace("count: 6", "count: 3000")
        + 'networks: [{name: x, matrix: {"*": {"*": 1ms}}}]'
    )
    status, _, err = run(monkeypatch, capsys, "plan", platform, "--hosts", hosts)
    assert status == 2
    assert "found latencies of 9,012,004 pairs of nodes; expected at most 2,000,000" in err


def test_link_of_an_address_of_this_host() -> None:
    assert {**link_facts("127.0.0.1"), "rate_bps": None} == {
        "interface": "lo",
        "mtu": int(Path("/sys/class/net/lo/mtu").read_text()),
        "rate_bps": None,
        "method": "nominal",
    }
    for invalid in ("192.0.2.77", "here"):
        with pytest.raises(BadInput, match=f"--address: found .?{invalid}"):
            link_facts(invalid)


def test_own_facts_are_valid_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Features and floor have separate tests, which take seconds."""
    monkeypatch.setattr("penstock.parts.remote.cluster.own_facts.probe_host", list)
    monkeypatch.setattr("penstock.parts.remote.cluster.own_facts.host_floor", no_floor)
    read = FactsFile.model_validate(json.loads(json.dumps(own_facts("127.0.0.1"))))
    assert read.host.penstock == version()
    assert read.host.storage.free_bytes
    assert [f.name for f in read.features] == ["vxlan"]
    assert read.floors is None


def no_floor(*, refresh: bool) -> None:
    from penstock.errors import PenstockError

    raise PenstockError("no disk can be started")


def test_the_trial_of_vxlan_is_conclusive_as_root() -> None:
    import os

    feature = vxlan_feature()
    assert feature.verdict in (
        ("supported", "unsupported") if os.geteuid() == 0 else ("unknown", "unsupported")
    )
    assert bool(feature.remedy) == (feature.verdict != "supported")
