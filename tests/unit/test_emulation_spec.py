"""Cluster specifications of platform files and treatments; and bad input with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import load_platform, read_platform
from penstock.spec.cluster import Delay, Limits
from penstock.study.load import load_study, read_study
from penstock.study.resolve import resolve

PLATFORM = """\
penstock_platform: 1
name: two
hosts:
  - group: data
    count: 2
    roles: [client, storage, manager]
    manager: {service: 1ms}
    memory: 512MiB
    tenant: gold
    memory_soft: 256MiB
    cpuset: 0-1
    cpu_ratio: 0.5
    disks:
      - name: d
        profile: sata-ssd
        time_scale: 4
        limits: {read: 20 MB/s, write_iops: 500 IOPS}
        owner: "1000:100"
        features: {slow: {factor: 2, ramp: 500ms}, cache: false}
    except: {1: {memory: 1GiB, network: {latency: 3ms}}}
network:
  bandwidth: 1 Gbit/s
  in: 100 Mbit/s
  loopback: 2 GB/s
  latency: 1ms
  jitter: 100us
  subnet: 10.88.7.0/24
  matrix: {data-0: {data-1: 5ms}}
networks: [{name: back, subnet: 10.88.8.0/24, loss: 1%}]
schedule:
  - {at: 10s, nodes: data-0, disk: d, limits: {write: 2 MB/s}}
  - {at: 20s, nodes: [data-0], disk: d, limits: {write: max}}
  - {at: 20s, bandwidth: 10 Mbit/s, latency: 2ms, memory: 256MiB, cpus: max}
"""

STUDY = """\
penstock: 1
name: s
question: q
factors:
  limit: {levels: [max, 20 MB/s]}
  n: {levels: [1, 3]}
  lag: {levels: {none: 0s, long: 5ms}}
design: {kind: full}
platform:
  nodes:
    - {name: app, memory: 256MiB}
    - name: data
      count: "{n}"
      disks: [{name: d, profile: sata-ssd, limits: {read: "{limit}"}, features: {cache: false}}]
  network: {latency: "{lag}"}
  schedule: [{at: 1s, nodes: "data-*", disk: d, limits: {write: 1 MB/s}}]
workload: {command: "true"}
responses: {wall: {from: wall_s, unit: s, better: lower}}
"""


def mistakes(text, read=None):
    with pytest.raises(BadInput) as error:
        (read or platform)(text)
    return [(m.line, m.found, m.expected) for m in error.value.mistakes]


def platform(text, path="p.yaml"):
    from pathlib import Path

    return read_platform(text.encode(), Path(path))


def study(text):
    from pathlib import Path

    return read_study(text.encode(), Path("s.yaml"))


def test_a_platform_in_numbers():
    spec = cluster_spec(platform(PLATFORM))
    first, second = spec.nodes
    assert (first.name, second.name) == ("data-0", "data-1")
    assert (first.memory_bytes, second.memory_bytes) == (512 << 20, 1 << 30)
    assert (first.memory_soft_bytes, first.cpuset, first.cpu_ratio) == (256 << 20, (0, 1), 0.5)
    assert (first.tenant, second.tenant) == ("gold", "gold")
    disk = first.disks[0]
    assert disk.limits == Limits(read_bps=20e6, write_iops=500)
    assert disk.owner == (1000, 100)
    assert disk.patch == {"slow": {"factor": 2.0, "ramp_s": 0.5}, "cache": False}
    assert disk.profile_name == "sata-ssd"
    assert disk.time_scale == 4
    link = first.links[0]
    assert (link.network, link.out_bps, link.in_bps) == ("net", 125e6, 12.5e6)
    assert link.delay == Delay(0.001, pytest.approx(0.0001), "uniform")
    assert second.links[0].delay.mean_s == pytest.approx(0.004)  # its own latency and the network's
    assert second.links[0].in_delay == Delay(0.003)
    assert link.in_delay == Delay()
    net, back = spec.networks
    assert net.subnet == "10.88.7.0/24"
    assert net.delays == {("data-0", "data-1"): 0.005, ("data-1", "data-0"): 0.005}
    assert (back.name, back.delays) == ("back", {})


def test_a_matrix_is_in_addition_to_the_latency_of_the_network():
    """With a jitter, the network's latency is in the delay of each link; without, in that of each pair."""
    for jitter, pair_s in (("  jitter: 100us\n", 0.005), ("", 0.006)):
        spec = cluster_spec(platform(PLATFORM.replace("  jitter: 100us\n", jitter)))
        network = spec.networks[0]
        assert network.delays["data-0", "data-1"] == pytest.approx(pair_s)
        assert spec.nodes[0].links[0].delay.mean_s + pair_s == pytest.approx(0.006)


def test_the_schedule_in_numbers():
    events = cluster_spec(platform(PLATFORM)).events
    assert [(e.when.at_s, e.resource, e.name, e.nodes) for e in events] == [
        (10.0, "disk", "d", ("data-0",)),
        (20.0, "disk", "d", ("data-0",)),
        (20.0, "network", "net", ("*",)),
        (20.0, "cpu", None, ("*",)),
        (20.0, "memory", None, ("*",)),
    ]
    assert events[0].patch == {"limits": {"write_bps": 2e6}}
    assert events[1].patch == {"limits": {"write_bps": None}}
    assert events[2].patch == {
        "out_bps": 1.25e6,
        "in_bps": 1.25e6,
        "delay": {"mean_s": 0.003},  # includes the latency of the network, because of its jitter
        "in_delay": {"mean_s": 0.002},
    }
    assert events[3].patch == {"cpus": None}
    assert events[4].patch == {"hard": 256 << 20}


def test_units_are_exact():
    text = PLATFORM.replace("read: 20 MB/s", "read: 20 MiB/s")
    assert cluster_spec(platform(text)).nodes[0].disks[0].limits.read_bps == 20 * 1024 * 1024


def test_setting_one_direction_keeps_the_other():
    limits = cluster_spec(platform(PLATFORM)).events[0].patch["limits"]
    assert set(limits) == {"write_bps"}


@pytest.mark.parametrize(
    ("old", "new", "lines_below", "message"),
    [
        ("read: 20 MB/s", "read: 0 MB/s", 0, "bandwidth above 0"),
        ("read: 20 MB/s", "read: 1 EB/s", 0, "from 1 kB/s to 1 TB/s"),
        ("read: 20 MB/s", "read: 20", 0, "a rate with its unit"),
        ("read: 20 MB/s", "read: -20 MB/s", 0, "not negative"),
        ("read: 20 MB/s", "read: .nan", 0, "a rate with its unit"),
        ("read: 20 MB/s", "read: nan MB/s", 0, "a bandwidth with its unit"),
        ("500 IOPS", "500", 0, "operations per time"),
        ("500 IOPS", "500 MB/s", 0, "operations per time"),
        ("factor: 2", "factor: .nan", 0, "above 0"),
        ("factor: 2", "factor: -2", 0, "above 0"),
        ("cpu_ratio: 0.5", "cpu_ratio: 1.5", 0, "at most 1"),
        ("cpuset: 0-1", "cpuset: 1-0", 0, "numbers of processors"),
        ("memory_soft: 256MiB", "memory_soft: 1GiB", 0, "at most 512MiB"),
        ('owner: "1000:100"', "owner: me", 0, "1000:1000"),
        ("subnet: 10.88.8.0/24", "subnet: 10.88.7.128/25", 0, "a subnet that overlaps no other"),
        ("subnet: 10.88.8.0/24", "subnet: 10.88.8.1/24", 0, "network/bits"),
        ("subnet: 10.88.8.0/24", "subnet: 8.8.8.0/24", 0, "private"),
        ("name: back", "name: net", 0, "each name once"),
        ("name: back", "name: 'a b'", 0, "letters, digits"),
        ("name: back", "name: ../x", 0, "letters, digits"),
        ("subnet: 10.88.7.0/24", "subnet: 10.88.7.0/30", 0, "room for 2 nodes"),
        ("data-0: {data-1", "data-0: {data-9", 0, "a node or a pattern"),
        ("group: data", "group: da/ta", 0, "letters, digits"),
        ("profile: sata-ssd", "profile: '{x}'", 0, "no factors"),
        ("profile: sata-ssd", "profile: sata-ssd\n        backend: cgroup2", 1, "fuse or auto"),
        ("at: 10s, nodes: data-0", "at: 10s, nodes: dat-0", 0, "did you mean 'data-0'"),
        ("disk: d, limits: {write: 2", "disk: e, limits: {write: 2", 0, "a disk of these nodes"),
        ("disk: d, limits: {write: 2", "limits: {write: 2", 0, "disk: the name of one"),
        ("disk: d, limits: {write: 2 MB/s}", "disk: d", 0, "what changes on it"),
        ("at: 10s", "at: 20s", 1, "one value at a time"),
        ("bandwidth: 10 Mbit/s, lat", "network: nat, lat", 0, "did you mean 'net'"),
        ("jitter: 100us", "distribution: normal", 0, "jitter"),
        ("jitter: 100us", "jitter: 2ms", 0, "at most the latency"),
        ("loss: 1%", "reorder: 1%", 0, "latency: 1ms"),
        ("loss: 1%", "loss: 101%", 0, "at most 100%"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_its_line(old, new, lines_below, message):
    line = PLATFORM.count("\n", 0, PLATFORM.index(old)) + 1 + lines_below
    messages = mistakes(PLATFORM.replace(old, new))
    assert any(number == line and message in expected for number, _, expected in messages), messages


def test_two_patches_at_one_time_are_refused_and_distinct_keys_keep_their_order():
    text = PLATFORM.replace("at: 20s, nodes: [data-0]", "at: 10s, nodes: ['data-*']")
    ((line, found, expected),) = mistakes(text)
    assert line == text.count("\n", 0, text.index("write: max")) + 1
    assert "limits.write_bps of data-0 at 10s" in found
    assert "entry 1" in expected
    text = PLATFORM.replace("at: 20s, nodes: [data-0], disk: d, limits: {write: max}",
                            "at: 10s, nodes: [data-0], disk: d, limits: {read: max}")  # fmt: skip
    events = cluster_spec(platform(text)).events
    assert [e.patch for e in events[:2]] == [
        {"limits": {"write_bps": 2e6}},
        {"limits": {"read_bps": None}},
    ]


def test_a_study_s_treatment_in_numbers():
    run = resolve(study(STUDY), {"limit": "20 MB/s", "n": "3", "lag": "long"})
    assert [n.name for n in run.nodes] == ["app", "data-0", "data-1", "data-2"]
    assert run.cluster is not None
    assert [n.name for n in run.cluster.nodes] == [n.name for n in run.nodes]
    assert run.cluster.nodes[1].disks[0].limits.read_bps == 20e6
    assert run.cluster.networks[0].delay_s == 0.005
    assert run.cluster.nodes[0].links[0].delay == Delay()
    small_cluster = resolve(study(STUDY), {"limit": "max", "n": "1", "lag": "none"}).cluster
    assert small_cluster is not None
    assert len(small_cluster.nodes) == 2
    assert small_cluster.nodes[1].disks[0].limits == Limits()


def test_one_plain_node_needs_no_cluster():
    text = STUDY.replace("    - {name: app, memory: 256MiB}\n", "")
    text = text.replace('      count: "{n}"\n', "")
    text = text.replace(', limits: {read: "{limit}"}, features: {cache: false}', "")
    a, b = text.index("  network:"), text.index("workload:")
    text = text[:a] + text[b:].replace('"true"', '"true {n} {limit} {lag}"')
    run = resolve(study(text), {"limit": "max", "n": "1", "lag": "none"})
    assert run.cluster is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("levels: [max, 20 MB/s]", "levels: [max, 20]", "a bandwidth with its unit"),
        ("levels: [max, 20 MB/s]", "levels: [max, -1 MB/s]", "not negative"),
        ("levels: [1, 3]", "levels: [0, 3]", "an integer from 1"),
        ("long: 5ms", "long: 5", "a duration"),
        ("cache: false", "cache: maybe", "true or false"),
        ('nodes: "data-*"', "nodes: data-7", "a node or a pattern"),
        ('nodes: "data-*"', "nodes: app", "they have none"),
        ("name: data\n", "name: app\n", "each name once"),
        ("memory: 256MiB", "memroy: 256MiB", "did you mean 'memory'"),
    ],
)
def test_a_study_s_bad_level_is_named_with_its_line(old, new, message):
    line = STUDY.count("\n", 0, STUDY.index(old)) + 1
    messages = mistakes(STUDY.replace(old, new), study)
    assert any(number == line and message in expected for number, _, expected in messages), messages


def test_a_study_on_a_platform_file(tmp_path):
    (tmp_path / "cluster.yaml").write_text(PLATFORM)
    a, b = STUDY.index("platform:"), STUDY.index("workload:")
    by_file = (
        STUDY[:a].replace("none: 0s", "none: 1ms") + "platform:\n  file: cluster.yaml\n  set:\n"
    )
    by_file += '    hosts.data.disks.d.limits.read: "{limit}"\n    network.latency: "{lag}"\n'
    by_file += "    hosts.data.disks.d.time_scale: '{n}'\n" + STUDY[b:]
    (tmp_path / "s.yaml").write_text(by_file)
    from penstock.study.load import load_study

    loaded = load_study(tmp_path / "s.yaml")
    run = resolve(loaded, {"limit": "max", "n": "3", "lag": "long"})
    assert run.cluster is not None
    expected = cluster_spec(platform(PLATFORM))
    assert [n.name for n in run.cluster.nodes] == [n.name for n in expected.nodes]
    assert run.cluster.nodes[0].memory_bytes == expected.nodes[0].memory_bytes
    assert run.cluster.nodes[1].memory_bytes == expected.nodes[1].memory_bytes
    assert run.cluster.events[:2] == expected.events[:2]
    assert run.cluster.networks[0].link_delay_s == pytest.approx(0.005)
    for network, expected_network in zip(run.cluster.networks, expected.networks, strict=True):
        assert replace(network, link_delay_s=0.0) == replace(expected_network, link_delay_s=0.0)
    assert run.cluster.nodes[0].disks[0].limits.read_bps is None
    assert run.cluster.nodes[0].disks[0].time_scale == 3
    assert run.cluster.nodes[1].links[0].delay.mean_s == pytest.approx(0.008)
    assert run.cluster.nodes[1].links[0].in_delay == Delay(0.003)
    (tmp_path / "cluster.yaml").unlink()  # the study needs no other file from here on
    frozen = tmp_path / "frozen.yaml"
    frozen.write_text(loaded.source_text)
    assert resolve(load_study(frozen), run.treatment).cluster == run.cluster


def test_a_wrong_path_into_the_platform_file_is_named(tmp_path):
    (tmp_path / "cluster.yaml").write_text(PLATFORM)
    a, b = STUDY.index("platform:"), STUDY.index("workload:")
    text = STUDY[:a] + "platform:\n  file: cluster.yaml\n  set: {hosts.date.count: 3}\n" + STUDY[b:]
    from penstock.study.load import load_study

    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(BadInput) as error:
        load_study(tmp_path / "s.yaml")
    assert any("did you mean 'data'" in m.expected for m in error.value.mistakes)


def test_a_file_without_prediction_specifies_nodes(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text("penstock_platform: 1\nname: few\nhosts:\n  - {group: n, count: 3}\n")
    spec = cluster_spec(load_platform(file, predicted=False))
    assert [node.name for node in spec.nodes] == ["n-0", "n-1", "n-2"]
    with pytest.raises(BadInput) as caught:
        load_platform(file)
    message = " ".join(m.found for m in caught.value.mistakes)
    assert "no bandwidth" in message
    assert "no host with the role client" in message


def test_conditions_and_limits_of_a_schedule_are_validated():
    def scheduled(*lines: str) -> str:
        return PLATFORM + "".join(f"  - {line}\n" for line in lines)

    platform(
        scheduled(
            "{at: 30s, disk: d, limits: {read: 2MB/s}}",
            "{at: 30s, disk: d, limits: {write: 1MB/s}}",
            "{when: {metric: written_bytes, disk: data-0.d, above: 1}, cpus: 1}",
        )
    )
    for last, message in (
        ("{at: 20s, disk: 'd*', limits: max}", "another value for limits of data-0"),
        ("{when: {metric: writen_bytes, disk: data-0.d, above: 1}, cpus: 1}", "'writen_bytes'"),
        ("{when: {metric: writes, disk: data-0.x, above: 1}, cpus: 1}", "the disk 'data-0.x'"),
        ("{when: {metric: writes, above: 1}, cpus: 1}", "a metric without disk"),
    ):
        (mistake,) = mistakes(scheduled(last))
        assert message in mistake[1]


def test_the_log_of_a_condition_is_relative_to_its_file():
    def log(text: str) -> str:
        lines = PLATFORM + f"  - {{when: {{log: {text}, regex: x}}, cpus: 1}}\n"
        condition = cluster_spec(platform(lines, "/files/p.yaml")).events[-1].when.condition
        assert condition is not None
        return condition["log"]

    assert (log("app.log"), log("/var/app.log")) == ("/files/app.log", "/var/app.log")
    relative = PLATFORM + "  - {when: {log: app.log, regex: x}, cpus: 1}\n"
    condition = cluster_spec(platform(relative)).events[-1].when.condition
    assert condition == {"log": str(Path.cwd() / "app.log"), "regex": "x"}


@pytest.mark.parametrize(
    ("node", "emulated"),
    [
        ("{name: n, memory: 64MiB, disks: [{name: d, profile: hdd-7200}]}", False),
        ("{name: n, cpus: 0.5, disks: [{name: d, profile: hdd-7200}]}", True),
        ("{name: n, disks: [{name: d, profile: hdd-7200, limits: {read: 1MB/s}}]}", True),
    ],
)
def test_limits_beyond_a_host_s_group_need_a_cluster(
    node: str, emulated: bool, tmp_path: Path
) -> None:
    study = tmp_path / "s.study.yaml"
    study.write_text(
        "penstock: 1\nname: s\nquestion: Which?\nfactors: {f: {levels: [a, b]}}\n"
        "design: {kind: full, replicates: 1}\n"
        f"platform: {{nodes: [{node}]}}\n"
        "workload: {command: 'echo {f} > {d}/x', parser: wall}\n"
        "responses: {took: {from: wall_s, unit: s, better: lower}}\n"
    )
    resolved = resolve(load_study(study), {"f": "a"})
    assert (resolved.cluster is not None) == emulated
    if resolved.cluster is not None and "cpus" in node:
        assert resolved.cluster.nodes[0].cpus == 0.5
