"""Import of platforms of SimGrid and Distem: converted parts, omitted parts and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.interchange.from_distem import read_distem
from penstock.parts.interchange.from_simgrid import read_simgrid
from penstock.platform.cluster import cluster_spec
from penstock.platform.foreign import Foreign
from penstock.platform.hosts import load_platform
from penstock.spec.cluster import ClusterSpec, Delay
from tests.support import commands

SOURCE = Path("there.file")

SIMGRID = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="all" routing="Full">
    <host id="a.x.org" speed="2Gf" core="4">
      <disk id="Disk1" read_bw="100MBps" write_bw="40MBps"><prop id="size" value="500GiB"/></disk>
      <disk id="Disk2" read_bw="1GiBps" write_bw="80MBps"/>
    </host>
    <host id="b" speed="1Gf"/>
    <host id="c" speed="500Mf"/>
    <link id="ab" bandwidth="125MBps" latency="150us"/>
    <link id="bc" bandwidth="1Gbps" latency="2ms"/>
    <link id="slow" bandwidth="8Mbps" latency="0.5ms" sharing_policy="FATPIPE"/>
    <route src="a.x.org" dst="b"><link_ctn id="ab"/></route>
    <route src="b" dst="c" symmetrical="NO"><link_ctn id="bc"/></route>
    <route src="c" dst="b" symmetrical="NO"><link_ctn id="slow"/></route>
    %s
  </zone>
</platform>
"""


def simgrid(text: str) -> Foreign:
    return read_simgrid(SOURCE, text.encode())


def spec_of(imported: Foreign) -> ClusterSpec:
    return cluster_spec(imported.platform(Path()))


def test_hosts_disks_and_routes_of_simgrid() -> None:
    imported = simgrid(SIMGRID % "")
    assert len(imported.left_out) == 1
    assert "1 routes that are narrower than both their ends (as c-0 to b-0)" in imported.left_out[0]
    spec = spec_of(imported)
    nodes = {n.name: n for n in spec.nodes}
    assert list(nodes) == ["a-x-org-0", "b-0", "c-0"]
    host = nodes["a-x-org-0"]
    assert host.cpus == 4
    assert host.cpu_ratio is None
    assert nodes["b-0"].cpu_ratio == 0.5
    assert nodes["c-0"].cpu_ratio == 0.25
    assert [(d.name, d.limits.read_bps, d.limits.write_bps) for d in host.disks] == [
        ("Disk1", 100e6, 40e6),
        ("Disk2", 2.0**30, 80e6),
    ]
    assert host.disks[0].size_bytes == 500 << 30
    assert host.links[0].out_bps == host.links[0].in_bps == 125e6
    delays = spec.networks[0].delays
    assert delays[("a-x-org-0", "b-0")] == delays[("b-0", "a-x-org-0")] == pytest.approx(150e-6)
    assert delays[("b-0", "c-0")] == pytest.approx(2e-3)
    assert delays[("c-0", "b-0")] == pytest.approx(0.5e-3)
    assert imported.platform(Path()).predictable
    assert imported.document["facts"] == {"names": {"a-x-org": "a.x.org"}}


def test_clusters_and_zones_of_simgrid() -> None:
    imported = simgrid(
        """<platform version="4"><zone id="z" routing="Full">
        <cluster id="one" prefix="o-" suffix="" radical="0-2,7" speed="1Gf" bw="125MBps" lat="50us"
                 bb_bw="2.25GBps" bb_lat="500us"/>
        <cluster id="two" prefix="t-" suffix="" radical="0-1" speed="2Gf" core="8" bw="10Gbps" lat="10us"/>
        <link id="wide" bandwidth="1.25GBps" latency="5ms"/>
        <zoneRoute src="one" dst="two" gw_src="r1" gw_dst="r2"><link_ctn id="wide"/></zoneRoute>
        </zone></platform>"""
    )
    assert imported.left_out == ["backbone of some hosts: the file has one for all hosts"]
    spec = spec_of(imported)
    assert [n.name for n in spec.nodes] == [*(f"one-{i}" for i in range(4)), "two-0", "two-1"]
    delays = spec.networks[0].delays
    assert delays[("one-0", "one-3")] == pytest.approx(600e-6)
    assert delays[("two-0", "two-1")] == pytest.approx(20e-6)
    # node, backbone of its cluster, link between the clusters, node: SimGrid's ClusterZone
    assert delays[("one-1", "two-1")] == delays[("two-1", "one-1")] == pytest.approx(5.56e-3)
    assert spec.nodes[0].links[0].out_bps == 125e6
    assert spec.nodes[4].cpus == 8
    assert "fabric" not in imported.document["network"]


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ('<peer id="p"/>', "there.file:17: <peer>: coordinates"),
        (
            '<link id="w" bandwidth="1MBps" latency="0" bandwidth_file="x"/>',
            "link w: bandwidth_file",
        ),
        ('<host id="d" speed="1Gf,500Mf"/>', "host d: frequencies other than the first"),
        ('<host id="d" speed="1Gf,5Mf" pstate="1"/>', "host d: frequencies other than number 1"),
        ('<include file="rest.xml"/>', "<include>: another file, which is not read"),
        (
            '<cluster id="k" radical="0-3" speed="1f" bw="1MBps" lat="0" limiter_link="2MBps"/>',
            "cluster k: limiter_link",
        ),
        (
            '<host id="d" speed="1Gf"><disk id="x" read_bw="1MBps" write_bw="1MBps"><prop id="size" '
            'value="5G"/></disk></host>',
            "disk x: size '5G'",
        ),
        ('<cluster id="k" radical="0-3" speed="1f" bw="1MBps" lat="0" topology="TORUS"/>', "TORUS"),
        (
            '<route src="a.x.org" dst="c"><link_ctn id="ab"/></route>',
            "links that several routes share (ab)",
        ),
        (
            '<cluster id="k" radical="0-3" speed="1f" bw="1MBps" lat="0" sharing_policy="SHARED"/>',
            "cluster k: sharing_policy SHARED",
        ),
        (
            '<cluster id="k" radical="0-3" speed="1f" bw="8MBps" lat="0" bb_bw="1MBps" '
            'bb_lat="0" bb_sharing_policy="FATPIPE"/>',
            "cluster k: bb_bw of each transfer, below",
        ),
        ('<host id="d" speed="1Gf" availability="0.5"/>', "host d: availability 0.5"),
        ('<link id="w" bandwidth="1MBps" state="OFF"/>', "link w: state OFF"),
        (
            '<host id="d" speed="1Gf"><mount storageId="s" name="/"/></host>',
            "host d: <mount>: storages of SimGrid 3",
        ),
    ],
)
def test_omitted_parts_of_simgrid_are_listed(inside: str, message: str) -> None:
    assert any(message in line for line in simgrid(SIMGRID % inside).left_out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<platform", "there.file:1:1: found no XML"),
        ("<rss/>", "found <rss>; expected <platform>"),
        ('<platform version="2"/>', "version '2'; expected 3, 4"),
        ('<platform version="4"/>', "no host"),
        ('<!DOCTYPE p [<!ENTITY a "aaaa">]><platform version="4">&a;</platform>', "an entity"),
        (SIMGRID % '<link id="x" bandwidth="fast"/>', "there.file:17:1: found bandwidth 'fast'"),
        (SIMGRID % '<route src="b" dst="c"><link_ctn id="nosuch"/></route>', "link 'nosuch'"),
        (SIMGRID % '<host id="d"/>', "host d: speed"),
        (
            SIMGRID % '<host id="d" speed="1Gf" pstate="1"/>',
            "pstate '1'; expected a number below 1",
        ),
        (SIMGRID % '<link id="x" bandwidth="0"/>', "found bandwidth '0'"),
        (SIMGRID % '<link id="ab" bandwidth="1MBps"/>', "found a second link 'ab'; expected each"),
        (SIMGRID % '<host id="c" speed="1Gf"/>', "found a second host 'c'"),
        (
            SIMGRID % ('<route src="b" dst="c"><link_ctn id="ab"/></route>' * 2),
            "found a second route from b-0 to c-0",
        ),
        (SIMGRID % '<host id="d" speed="1Gf" core="4M"/>', "core '4M'; expected a number of cores"),
        (
            SIMGRID % f'<cluster id="k" radical="{"9" * 5000}" speed="1f" bw="1MBps" lat="0"/>',
            "expected numbers such as 0-99,104",
        ),
        (
            SIMGRID % '<cluster id="k" radical="9-1" speed="1f" bw="1MBps" lat="0"/>',
            "radical '9-1'",
        ),
        (
            SIMGRID % '<cluster id="k" radical="0-3,5,2" speed="1f" bw="1MBps" lat="0"/>',
            "radical '0-3,5,2'; expected each number once",
        ),
    ],
)
def test_bad_platforms_of_simgrid_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        simgrid(text)
    assert message in str(error.value)


def traffic(rate: str | None = None, **other: Any) -> dict[str, Any]:
    return {**({"bandwidth": {"rate": rate}} if rate else {}), **other}


def distem(**changes: Any) -> dict[str, Any]:
    first = {
        "id": "0",
        "name": "node.1",
        "status": "RUNNING",
        "mode": "normal",
        "vfilesystem": {
            "image": "file:///",
            "shared": True,
            "disk_throttling": {
                "limits": [{"device": "/dev/sdb", "read_limit": "5000000", "write_limit": 2097152}],
                "hierarchy": "v2",
            },
        },
        "vcpu": {
            "pcpu": "1",
            "vcores": [{"id": "0", "frequency": "0.5"}, {"id": "1", "frequency": "0.5"}],
        },
        "vmem": {"mem": "512", "swap": "", "soft_limit": "256m", "hard_limit": ""},
        "vifaces": [
            {
                "name": "af0",
                "vnetwork": "lan",
                "address": "10.144.0.7/22",
                "output": traffic("100mbps", latency={"delay": "20ms", "jitter": "2ms"}),
                "input": traffic("40mbit", latency={"delay": "20ms", "jitter": "2ms"}),
            }
        ],
        **changes,
    }
    second = {
        "name": "node2",
        "vifaces": [{"name": "af0", "vnetwork": "lan", "output": {"latency": {"delay": "5ms"}}}],
    }
    return {
        "vplatform": {
            "pnodes": {},
            "vnodes": {"node.1": first, "node2": second},
            "vnetworks": {"lan": {"name": "lan", "address": "10.144.0.0/22", "vroutes": {}}},
        }
    }


def test_nodes_networks_and_limits_of_distem() -> None:
    imported = read_distem(SOURCE, json.dumps(distem()).encode())
    assert imported.left_out == []
    spec = spec_of(imported)
    first, second = spec.nodes
    assert (first.name, second.name) == ("node-1-0", "node2-0")
    assert (first.cpus, first.cpu_ratio) == (2, 0.5)
    assert (first.memory_bytes, first.memory_soft_bytes) == (512 << 20, 256 << 20)
    assert first.image == Path("/")
    disk = first.disks[0]
    assert (disk.name, disk.limits.read_bps, disk.limits.write_bps) == ("sdb", 5e6, 2097152)
    link = first.links[0]
    assert (link.network, link.address) == ("lan", "10.144.0.7")
    assert (link.out_bps, link.in_bps) == (100e6, 5e6)  # mbps: bytes per second, as in tc
    assert link.delay == link.in_delay == Delay(0.020, 0.002, "uniform")
    # latency of one direction only: the matrix has a delay per direction
    network = next(n for n in spec.networks if n.name == "lan")
    assert network.subnet == "10.144.0.0/22"
    assert network.delays[("node2-0", "node-1-0")] == pytest.approx(0.005)
    assert network.delays[("node-1-0", "node2-0")] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "gateway"}, "vnode node.1: mode gateway"),
        ({"vfilesystem": {"image": "file:///no/such.tgz"}}, "image file:///no/such.tgz"),
        ({"vfilesystem": {"image": "/" + "x" * 5000}}, "expected an existing directory"),
        ({"vcpu": {"vcores": [{"frequency": "1600"}]}}, "frequency 1600 MHz; expected a ratio"),
        ({"vmem": {"swap": "64"}}, "swap"),
        (
            {
                "vifaces": [
                    {
                        "vnetwork": "lan",
                        "output": {"reordering": {"percent": "5%"}},
                        "input": {"reordering": {"percent": "5%"}},
                    }
                ]
            },
            "lan: reordering without a latency",
        ),
        ({"vifaces": []}, "on no network"),
        (
            {"vifaces": [{"name": "x", "vnetwork": "lan", "output": {"loss": {"percent": "5%"}}}]},
            "loss of input and output differ",
        ),
    ],
)
def test_omitted_parts_of_distem_are_listed(changes: dict[str, Any], message: str) -> None:
    imported = read_distem(SOURCE, json.dumps(distem(**changes)).encode())
    assert any(message in line for line in imported.left_out), imported.left_out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "a vnode: name"),
        ({"name": "node2"}, "a second vnode 'node2'; expected each name once"),
        (
            {"vfilesystem": {"disk_throttling": {"limits": [{"device": "a", "read_iops": "1k"}]}}},
            "read_iops '1k'; expected requests per second",
        ),
        ({"vifaces": [{"name": "x", "vnetwork": "wan"}]}, "'wan'; expected one of lan"),
        ({"vifaces": [{"vnetwork": "lan", "output": traffic("fast")}]}, "rate 'fast'"),
        ({"vmem": {"mem": "much"}}, "mem 'much'"),
        ({"vifaces": "x"}, "vifaces 'x'"),
        ({"vcpu": 5}, "vcpu 5; expected an object"),
        ({"vcpu": {"corenb": "many"}}, "corenb 'many'; expected a number"),
        ({"vmem": "512"}, "vmem '512'; expected an object"),
        ({"vmem": {"mem": "1e999"}}, "mem '1e999'; expected a number of megabytes"),
        ({"vfilesystem": {"disk_throttling": 7}}, "disk_throttling 7; expected an object"),
        ({"vifaces": [{"vnetwork": "lan", "input": [1]}]}, "input [1]; expected an object"),
        ({"vifaces": [{"vnetwork": "lan", "input": {"latency": "2ms"}}]}, "latency '2ms'"),
        ({"vifaces": [{"vnetwork": "lan", "output": {"bandwidth": 7}}]}, "bandwidth 7"),
        ({"vifaces": [{"vnetwork": "lan", "output": {"loss": "5%"}}]}, "loss '5%'"),
    ],
)
def test_bad_platforms_of_distem_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        read_distem(SOURCE, json.dumps(distem(**changes)).encode())
    assert message in str(error.value)
    for raw in (b"{", b"[]", b'{"vplatform": {}}', b"[" * 100_000):
        with pytest.raises(BadInput, match=r"there\.file:\d+:1: found"):
            read_distem(SOURCE, raw)


def test_physical_hosts_of_distem_are_pins() -> None:
    document = distem(host="172.16.3.7")
    pnode = {"id": "0", "address": "172.16.3.7", "status": "RUNNING", "cpu": {}, "memory": {}}
    document["vplatform"]["pnodes"] = {"172.16.3.7": pnode}
    imported = read_distem(SOURCE, json.dumps(document).encode())
    assert imported.left_out == []
    pins = {host.name: host.part.host for host in imported.platform(Path()).hosts}
    assert pins == {"node-1-0": "172.16.3.7", "node2-0": None}
    assert imported.document["facts"]["physical_hosts"] == ["172.16.3.7"]
    for wrong in (7, "a b", "*"):
        with pytest.raises(
            BadInput, match=r"vnode node\.1: host .*; expected the address of a pnode"
        ):
            read_distem(SOURCE, json.dumps(distem(host=wrong)).encode())


def test_import_needs_leave_out_to_omit_parts(tmp_path: Path) -> None:
    source, target = tmp_path / "s.xml", tmp_path / "t.yaml"
    source.write_text(SIMGRID % "")
    argv = [sys.executable, "-m", "penstock", "platform", "import", "--from", "simgrid"]
    argv += [str(source), "-o", str(target)]
    refused = commands.run(argv, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "narrower than both their ends" in refused.stderr
    assert not target.exists()
    ignored = commands.run([*argv, "--profile", "hdd"], capture_output=True, text=True)
    assert "--profile: found 'hdd'; expected --profile without --from" in ignored.stderr
    imported = commands.run([*argv, "--leave-out"], capture_output=True, text=True)
    assert imported.returncode == 0, imported.stderr
    assert "left out: bandwidth of 1 routes" in imported.stderr
    assert len(load_platform(target).hosts) == 3


LOOP = '<link id="loop" bandwidth="1000EBps" latency="0us"/>' + "".join(
    f'<route src="{h}" dst="{h}"><link_ctn id="loop"/></route>' for h in ("b", "c")
)


@pytest.mark.parametrize(
    ("speed", "flops"),
    [
        ("2f", 2.0),
        ("1.5kf", 1.5e3),
        ("3Ef", 3e18),
        ("1Yf", 1e24),
        ("16.6E9flops", 16.6e9),
        ("2gigaflops", 2e9),
        ("1zetaflops", 1e21),
        ("5.Gf", 5e9),
    ],
)
def test_units_of_simgrid_speeds(speed: str, flops: float) -> None:
    imported = simgrid(
        f"""<platform version="4.1"><zone id="z" routing="Full"><host id="a" speed="{speed}"/>
        <host id="b" speed="{4 * flops:g}f"/></zone></platform>"""
    )
    first = imported.document["hosts"][0]
    assert first["cpu_ratio"] == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("speed", ["1Gflop", "2gigaf", "1KF", "3Gb", "1Gflops/s"])
def test_unknown_units_of_simgrid_are_refused(speed: str) -> None:
    with pytest.raises(BadInput, match="flop/s"):
        simgrid(
            f'<platform version="4"><zone id="z"><host id="a" speed="{speed}"/></zone></platform>'
        )


def test_route_of_a_host_to_itself_is_its_loopback() -> None:
    imported = simgrid(SIMGRID % LOOP)
    assert imported.document["network"]["loopback"] == "8e+15 Mbit/s"
    assert "assumed" not in imported.document
    imported.platform(Path())
    assert simgrid(SIMGRID % "").document["assumed"][0]["path"] == "network.loopback"


def test_simgrid_deployment_is_refused() -> None:
    with pytest.raises(BadInput, match="no host but actors: a deployment"):
        simgrid('<platform version="4"><actor host="a" function="f"/></platform>')


WITHOUT_DISKS = """<platform version="4.1"><zone id="z" routing="Full">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/>
<link id="l" bandwidth="10MBps" latency="1ms"/><route src="a" dst="b"><link_ctn id="l"/></route>
</zone></platform>"""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("simgrid", SIMGRID % LOOP),
        ("simgrid", WITHOUT_DISKS),
        ("distem", json.dumps(distem())),
        ("distem", json.dumps(distem(vmem={"mem": "64", "swap": "", "hierarchy": "v1"}))),
    ],
)
def test_check_accepts_imported_platforms(tmp_path: Path, kind: str, text: str) -> None:
    source, target = tmp_path / "p.in", tmp_path / "p.yaml"
    source.write_text(text)
    argv = [sys.executable, "-m", "penstock", "platform"]
    imported = commands.run(
        [*argv, "import", "--from", kind, source, "--leave-out", "-o", target],
        capture_output=True,
        text=True,
    )
    assert imported.returncode == 0, imported.stderr
    checked = commands.run([*argv, "check", target], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_more_hosts_than_network_ports_are_refused() -> None:
    imported = simgrid(
        """<platform version="4"><zone id="z" routing="Full"><cluster id="c" prefix="c-" suffix=""
        radical="0-65535" speed="1Gf" bw="125MBps" lat="50us"/></zone></platform>"""
    )
    with pytest.raises(BadInput, match="found 65536 hosts; expected at most 1022 nodes"):
        imported.platform(Path())


@pytest.mark.parametrize(
    ("vmem", "memory", "soft"),
    [
        ({"hierarchy": "v1", "mem": "256"}, 256, None),
        ({"hierarchy": "v2", "mem": "256", "soft_limit": "256", "hard_limit": "512"}, 512, 256),
        ({"hierarchy": "v2", "mem": "256", "soft_limit": "256", "hard_limit": ""}, None, 256),
        ({"hierarchy": "v2", "mem": "300", "soft_limit": "max", "hard_limit": 300}, 300, None),
        ({"hierarchy": "v1", "mem": "max"}, None, None),
        ({"mem": "1g"}, 1024, None),
    ],
)
def test_memory_of_distem_is_in_megabytes(
    vmem: dict[str, Any], memory: int | None, soft: int | None
) -> None:
    imported = read_distem(SOURCE, json.dumps(distem(vmem={"swap": "", **vmem})).encode())
    assert imported.left_out == []
    node = spec_of(imported).nodes[0]
    assert node.memory_bytes == (memory << 20 if memory else None)
    assert node.memory_soft_bytes == (soft << 20 if soft else None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vmem": {"mem": "512", "swappiness": 10}}, "vnode node.1: vmem: unknown key swappiness"),
        ({"vtpm": {"x": 1}}, "vnode node.1: unknown key vtpm"),
        ({"vcpu": {"corenb": 2, "quota": 50}}, "vcpu: unknown key quota"),
        (
            {"vfilesystem": {"disk_throttling": {"limits": [{"device": "/dev/sdb", "wbps": 5}]}}},
            "/dev/sdb: unknown key wbps",
        ),
        (
            {
                "vifaces": [
                    {"vnetwork": "lan", "output": {"bandwidth": {"rate": "1mbit", "burst": "9k"}}}
                ]
            },
            "output: bandwidth: unknown key burst",
        ),
    ],
)
def test_unknown_keys_of_distem_are_listed(changes: dict[str, Any], message: str) -> None:
    imported = read_distem(SOURCE, json.dumps(distem(**changes)).encode())
    assert any(message in line for line in imported.left_out), imported.left_out


def test_cpu_ratio_of_distem_s_client() -> None:
    vcpu = {"corenb": 2, "val": 0.25, "unit": "ratio"}
    imported = read_distem(SOURCE, json.dumps(distem(vcpu=vcpu)).encode())
    assert spec_of(imported).nodes[0].cpu_ratio == 0.25
    with pytest.raises(BadInput, match="unit 'percent'; expected mhz or ratio"):
        read_distem(SOURCE, json.dumps(distem(vcpu={**vcpu, "unit": "percent"})).encode())


@pytest.mark.parametrize(
    ("rate", "bits"), [("1mibit", 1048576.0), ("20mbps", 160e6), ("3kbit", 3000.0), ("8", 8.0)]
)
def test_rates_of_distem_follow_tc(rate: str, bits: float) -> None:
    viface = {"name": "x", "vnetwork": "lan", "output": traffic(rate)}
    imported = read_distem(SOURCE, json.dumps(distem(vifaces=[viface])).encode())
    assert imported.document["hosts"][0]["interfaces"][0]["out"] == f"{bits / 1e6:.12g} Mbit/s"


def test_distem_network_named_net_is_renamed() -> None:
    document = json.dumps(distem()).replace('"lan"', '"net"').encode()
    imported = read_distem(SOURCE, document)
    assert imported.document["facts"]["networks"] == {"net-2": "net"}
    assert spec_of(imported).nodes[0].links[0].network == "net-2"


def test_distem_disk_without_limits_is_not_emulated() -> None:
    limits = {"limits": [{"device": "/dev/sda", "read_limit": "max"}]}
    imported = read_distem(
        SOURCE, json.dumps(distem(vfilesystem={"disk_throttling": limits})).encode()
    )
    assert spec_of(imported).nodes[0].disks == ()


def test_duplicate_keys_of_distem_are_refused() -> None:
    document = json.dumps(distem()).replace('"name": "node2"', '"name": "a", "name": "b"')
    with pytest.raises(BadInput, match="the key 'name' several times"):
        read_distem(SOURCE, document.encode())


def test_simgrid_pstate_selects_the_speed() -> None:
    text = '<platform version="4.1"><zone id="z" routing="Full">{}</zone></platform>'
    hosts = '<host id="a" speed="4Gf,1Gf" pstate="1"/><host id="b" speed="2Gf"/>'
    speeds = [h.get("speed", 1.0) for h in simgrid(text.format(hosts)).document["hosts"]]
    assert speeds == [0.5, 1.0]


OWN_LINKS = """<platform version="4.1"><zone id="z" routing="Full"><zone id="c" routing="Cluster">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/>
<link id="la" bandwidth="125MBps" latency="50us" sharing_policy="SPLITDUPLEX"/>
<link id="lb" bandwidth="1GBps" latency="%s"/>
<host_link id="a" up="la_UP" down="la_DOWN"/><host_link id="b" up="lb" down="lb"/>
<backbone id="bb" bandwidth="2.25GBps" latency="500us"/></zone>%s</zone></platform>"""


def test_own_links_and_backbone_of_simgrid_delay() -> None:
    for last, apart in (("50us", 600e-6), ("2ms", 2550e-6)):
        imported = simgrid(OWN_LINKS % (last, ""))
        assert imported.left_out == []
        assert imported.document["network"]["fabric"] == "18000 Mbit/s"
        network = spec_of(imported).networks[0]
        assert network.delays[("a-0", "b-0")] == pytest.approx(apart)
        assert network.delays[("b-0", "a-0")] == pytest.approx(apart)


def test_own_links_of_simgrid_do_not_delay_other_hosts() -> None:
    other = '<zone id="d"><host id="c" speed="1Gf"/></zone>'
    delays = spec_of(simgrid(OWN_LINKS % ("50us", other))).networks[0].delays
    assert delays == {("a-0", "b-0"): pytest.approx(600e-6), ("b-0", "a-0"): pytest.approx(600e-6)}


def test_simgrid_backbone_that_is_not_shared_is_no_fabric() -> None:
    imported = simgrid(
        """<platform version="4"><zone id="z"><cluster id="c" radical="0-7" speed="1Gf" bw="1GBps"
        lat="1us" bb_bw="2GBps" bb_lat="1us" bb_sharing_policy="FATPIPE"/></zone></platform>"""
    )
    assert imported.left_out == []
    assert "fabric" not in imported.document["network"]


def test_unsupported_content_of_simgrid_is_named_without_a_host() -> None:
    with pytest.raises(BadInput, match="no host, but <cabinet>: cabinets; expected a platform"):
        simgrid(
            """<platform version="4"><zone id="z" routing="Cluster"><cabinet id="c" prefix="c-" suffix=""
            radical="1-9" speed="1Gf" bw="1GBps" lat="1us"/></zone></platform>"""
        )


def test_simgrid_hosts_behind_routers_are_listed() -> None:
    imported = simgrid(
        """<platform version="4.1"><zone id="z" routing="Full"><host id="a" speed="1Gf"/>
        <host id="b" speed="1Gf"/><router id="r"/><link id="l" bandwidth="10MBps" latency="9ms"/>
        <route src="a" dst="r"><link_ctn id="l"/></route><route src="b" dst="r"><link_ctn id="l"/></route>
        </zone></platform>"""
    )
    assert any("hosts without a route between hosts (a, b)" in line for line in imported.left_out)
    single = '<platform version="4"><zone id="z"><host id="a" speed="1Gf"/></zone></platform>'
    assert simgrid(single).left_out == []
