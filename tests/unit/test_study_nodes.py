"""Nodes of a study as text, and time-outs that its speeds will trip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.analyse.fidelity.timeouts import slowest_rates, time_out_warnings
from penstock.design.plan import make_plan
from penstock.design.planned import treatments_of
from penstock.design.show import plan_text
from penstock.errors import BadInput
from penstock.profile.load import load_profile
from penstock.spec.cluster import ClusterSpec
from penstock.spec.study import Study
from penstock.study.load import read_study
from penstock.study.resolve import resolvable, resolve

STUDY = """\
penstock: 1
name: slow
question: Will it?
factors: {limit: {levels: [120 MB/s, 5 MB/s]}, port: {levels: [1, 2]}}
design: {kind: full}
platform:
  nodes:
    - name: data
      count: 2
      disks: [{name: d, profile: hdd-7200, limits: {read: "{limit}"}}]
    - {name: boss, cpu_ratio: 0.5}
  network: {bandwidth: 1 Gbit/s}
  schedule: [{at: 10s, nodes: data-0, disk: d, limits: {write: 1 MB/s}}]
workload:
  on: boss
  services: [{name: dn, on: "data-*", command: "hdfs datanode {d} {port}", ready: {port: 9866}}]
  command: hadoop jar x terasort {data-1.d}
responses: {wall: {from: wall_s, unit: s, better: lower}}
hosts: {listen: 10.0.0.1, workers: [{name: a, ssh: root@a}, {name: b}]}
"""


def study(text=STUDY):
    return read_study(text.encode(), Path("s.yaml"))


def test_speed_that_trips_a_time_out_is_named_before_the_run():
    loaded = study()
    warnings = time_out_warnings(resolvable(loaded, treatments_of(make_plan(loaded))))
    assert any(
        "data-0.d" in w and "mapreduce.task.timeout (600 s) will trip" in w for w in warnings
    )
    assert any("data-1.d" in w and "limit 5 MB/s" in w for w in warnings)


def test_a_sufficient_speed_causes_no_warning():
    fast = STUDY.replace("120 MB/s, 5 MB/s", "max, 190 MB/s").replace("write: 1 MB/s", "write: max")
    loaded = study(fast)
    assert time_out_warnings(resolvable(loaded, treatments_of(make_plan(loaded)))) == []
    other_programs = study(
        STUDY.replace("hadoop jar x terasort", "cp").replace("hdfs datanode", "cat")
    )
    assert (
        time_out_warnings(resolvable(other_programs, treatments_of(make_plan(other_programs))))
        == []
    )


def test_the_lowest_scheduled_rate_of_a_disk_counts():
    run = resolve(study(), {"limit": "5 MB/s", "port": "1"})
    assert slowest_rates(run) == {"data-0.d": 1e6, "data-1.d": 5e6}


@pytest.mark.parametrize(
    "slow",
    [
        {"limits": {"write_bps": 4e6}},
        {"interface_rate_bps": 4e6},
        {"credits": {"bytes": {"baseline": 4e6, "burst": 5e7, "capacity": 1e9}}},
    ],
)
def test_limits_of_the_profile_count(slow, tmp_path):
    profile = json.loads(load_profile("hdd-7200").json)
    (tmp_path / "slow.json").write_text(json.dumps({**profile, **slow}))
    text = STUDY.replace("profile: hdd-7200", "profile: slow.json")
    loaded = read_study(text.encode(), tmp_path / "s.yaml")
    run = resolve(loaded, {"limit": "5 MB/s", "port": "1"})
    assert slowest_rates(run)["data-1.d"] == 4e6


def test_services_and_commands_are_filled_in_with_levels():
    run = resolve(study(), {"limit": "5 MB/s", "port": "2"})
    assert run.services[0].command == "hdfs datanode {d} 2"
    assert run.on == ("boss",)
    assert run.filling({"data-1.d": "/x"}, "/r").line(run.command) == "hadoop jar x terasort /x"


def test_the_plan_shows_nodes_links_schedule_services_and_hosts():
    loaded = study()
    text = plan_text(make_plan(loaded), loaded)
    for expected in (
        "data-… (2): d: hdd-7200, limits read {limit}; net",
        "boss: cpu ratio 0.5; net",
        "net: bandwidth 1 Gbit/s",
        "10s after run: data-0; disk d, limits write 1 MB/s",
        "service dn: data-*; hdfs datanode {d} {port}",
        "command: boss; hadoop jar x terasort {data-1.d}",
        "a, b: each block of runs takes place on one of them.",
    ):
        assert expected in text, text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("on: boss", "on: bos", "did you mean 'boss'"),
        ("on: \"data-*\"", "on: \"date-*\"", "a node, a pattern or all"),
        ("ready: {port: 9866}", "ready: {port: 9866, log: x}", "one of port, log, command"),
        ("ready: {port: 9866}", "ready: {port: 0}", "a TCP port"),
        ("ready: {port: 9866}", "ready: {log: '('}", "a regular expression"),
        ("datanode {d}", "datanode {e}", "a literal brace is doubled"),
        ("terasort {data-1.d}", "terasort {d}", "which node's disk"),
        ("name: b}", "name: a}", "each name once"),
        ("ssh: root@a", "ssh: root@a, netns: x", "one of them"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_its_line(old, new, message):
    assert old in STUDY
    with pytest.raises(BadInput) as error:
        study(STUDY.replace(old, new))
    line = STUDY.count("\n", 0, STUDY.index(old)) + 1
    mistakes = [(m.line, m.expected) for m in error.value.mistakes]
    assert any(at == line and message in expected for at, expected in mistakes), mistakes


def test_a_treatment_is_predicted_with_its_limits_and_links():
    from penstock.study.as_platform import platform_of

    text = STUDY.replace("bandwidth: 1 Gbit/s", "bandwidth: 1 Gbit/s, latency: 2ms")
    platform = platform_of(study(text), {"limit": "5 MB/s", "port": "1"})
    lowered = platform.lower()
    by_name = {h["name"]: h for h in lowered["hosts"]}
    assert by_name["data-0-0"]["storage"]["profile"]["limits"]["read_bps"] == 5e6
    assert by_name["boss-0"]["network"]["out_bps"] == 125e6
    assert lowered["fabric"]["latency_s"] == pytest.approx(0.002)
    assert all("network.bandwidth" not in a.path for a in platform.assumed)
    pairs = text.replace("latency: 2ms", "latency: 2ms, matrix: {'*': {'*': 3ms}}")
    platform = platform_of(study(pairs), {"limit": "5 MB/s", "port": "1"})
    assert platform.lower()["fabric"]["latency_s"] == pytest.approx(0.005)


SHORT = """\
  schedule:
    - {at: 10s, nodes: data-0, disk: d,
       ramp: {key: limits.write, from: 4MB/s, to: 2MB/s, length: 2s, steps: 2}}
    - {at: 20s, disk: d, limits.write: max}
    - {at: 30s, disk: d, %s}
    - {at: 60s, disk: d, trace: speeds.csv}
"""


def short(change: str, base: Path) -> Study:
    (base / "speeds.csv").write_text("time [s], limits.read [MB/s]\n0, 9\n5, max\n")
    lines = STUDY.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if "schedule:" in line)
    text = "".join(lines[:at]) + SHORT % change + "".join(lines[at + 1 :])
    return read_study(text.encode(), Path("s.yaml"), base_dir=base)


def faster(loaded: Study) -> ClusterSpec | None:
    treatments = treatments_of(make_plan(loaded))
    return resolve(loaded, next(t for t in treatments if t["limit"] == "120 MB/s")).cluster


def test_a_study_accepts_the_short_forms_of_a_schedule(tmp_path: Path):
    loaded = short('limits.read: "{limit}"', tmp_path)
    spec = faster(loaded)
    assert spec is not None
    assert [(e.when.at_s, e.nodes, e.patch) for e in spec.events] == [
        (10.0, ("data-0",), {"limits": {"write_bps": 4e6}}),
        (11.0, ("data-0",), {"limits": {"write_bps": 3e6}}),
        (12.0, ("data-0",), {"limits": {"write_bps": 2e6}}),
        (20.0, ("*",), {"limits": {"write_bps": None}}),
        (30.0, ("*",), {"limits": {"read_bps": 120e6}}),
        (60.0, ("*",), {"limits": {"read_bps": 9e6}}),
        (65.0, ("*",), {"limits": {"read_bps": None}}),
    ]
    (tmp_path / "speeds.csv").unlink()  # the archived text is sufficient
    again = read_study(loaded.source_text.encode(), Path("s.yaml"), base_dir=tmp_path)
    assert faster(again) == spec


def test_mistakes_in_short_forms_have_their_line(tmp_path: Path):
    with pytest.raises(BadInput, match=r"s.yaml:17:.*unit"):
        short("limits.read: 3", tmp_path)
    with pytest.raises(BadInput, match=r"s.yaml:17:.*limit.*a duration"):
        short('random: {mean: "{limit}", for: 3s, choose: [{limits.read: 3MB/s}]}', tmp_path)


STORED = """\
penstock: 1
name: stored
question: Where does it write?
factors: {copies: {levels: [1, 2]}}
design: {kind: full}
platform:
  nodes:
    - {name: head}
    - {name: node, count: 2, disks: [{name: data, limits: {write: 400MB/s}}]}
  network: {bandwidth: 1 Gbit/s}
  store: {engine: moosefs, manager: head, storage: node-*, clients: node-*, replicas: "{copies}"}
workload: {command: "touch {store}/file", on: node-0}
responses: {wall: {from: wall_s, unit: s, better: lower}}
"""


def test_the_name_of_a_shared_store_is_its_mount_point():
    loaded = study(STORED)
    run = resolve(loaded, {"copies": "1"})
    values = run.filling({"data": "/disks/data"}, "/r", "node-0").values
    assert values["store"] == "/store"
    assert values["data"] == "/disks/data"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (STORED.replace("name: data", "name: store"), 9, "the disk name 'store'"),
        (STORED.replace("copies", "store"), 4, "the factor 'store'"),
    ],
)
def test_the_name_of_the_shared_store_is_reserved(text: str, line: int, message: str):
    with pytest.raises(BadInput, match=rf"s\.yaml:{line}:\d+: found {message} with a shared store"):
        study(text)
