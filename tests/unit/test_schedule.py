"""Schedules: the written form and the resulting events."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.emulate.schedule.show import rows, svg, text
from penstock.errors import BadInput
from penstock.platform.schedule import check_of_one_disk, for_disk, read_schedule
from penstock.spec.cluster import Event


def read(tmp_path: Path, source: str, name: str = "s.yaml") -> list[Event]:
    path = tmp_path / name
    path.write_text(source)
    return read_schedule(path)


def refusal(tmp_path: Path, source: str) -> str:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, source)
    return str(caught.value)


def at_and(events: list[Event], *keys: str) -> list[tuple[float, object]]:
    out = []
    for event in events:
        value: object = event.patch
        for key in keys:
            value = value[key]  # type: ignore[index]
        out.append((event.when.at_s, value))
    return out


def test_single_changes_in_the_order_of_time_and_of_the_file(tmp_path: Path):
    events = read(tmp_path, """
schedule:
  - {at: 20s, disk: data, limits.read: max, slow: max}
  - {at: 10s, disk: data, limits: {read: 2MB/s}}
  - {at: 10s, disk: data, limits: {write: 2MiB/s}, read_only: true}
  - {at: 1s, phase: load, nodes: "data-*", disk: data, slow.factor: 10}
""")  # fmt: skip
    assert [(e.when.at_s, e.patch) for e in events] == [
        (1.0, {"slow": {"factor": 10.0}}),
        (10.0, {"limits": {"read_bps": 2e6}}),
        (10.0, {"limits": {"write_bps": 2097152.0}, "read_only": True}),
        (20.0, {"limits": {"read_bps": None}, "slow": None}),
    ]
    assert events[0].nodes == ("data-*",)
    assert events[0].when.phase == "load"


def test_one_key_twice_at_one_time_is_refused_with_its_line(tmp_path: Path):
    message = refusal(tmp_path, """
- {at: 5s, limits.read: 2MB/s}
- {at: 5000ms, limits.write: 2MB/s}
- {at: 5s, limits.read: 3MB/s}
""")  # fmt: skip
    assert ":4:" in message
    assert "another value for limits.read_bps at 5s" in message
    assert "entry 1 has one already" in message
    assert "limits" in refusal(tmp_path, "[{at: 1s, limits: max}, {at: 1s, limits.read: 2MB/s}]")
    assert len(read(tmp_path, "[{at: 1s, limits: max}, {at: 2s, limits.read: 2MB/s}]")) == 2


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{at: 5s, limits.read: 2}", "unit"),
        ("{at: 5, limits.read: 2MB/s}", "duration"),
        ("{at: 5s, limits.read: -2MB/s}", "not"),
        ("{at: 5s, limits.reed: 2MB/s}", "reed"),
        ("{at: 5s}", "a change of nothing"),
        ("{at: 5s, trace: nowhere.csv}", "nowhere.csv"),
        ("{ramp: {key: limits.read, from: 2MB/s, to: 3s, length: 1s}}", "one kind"),
        ("{ramp: {key: limits.read, from: 2MB/s, length: 1s}}", "'to'"),
        ("{ramp: {key: limits.read, from: 1MB/s, to: 2MB/s, length: 1s}, read_only: true}", "with ramp"),
        ("{markov: {for: 1s, states: {a: {stay: 1s, to: {b: 100%}}}}}", "one of a"),
        ("{markov: {for: 1s, states: {a: {stay: 1s, to: {a: 40%}}}}}", "40%"),
        ("{random: {mean: 1s, for: 5s}}", "choose and between"),
        ("{pattern: {period: 1s, changes: [{at: 2s, full: true}]}}", "longer than all"),
        ("{at: 1s, when: {log: l, regex: '('}, full: true}", "regex"),
        ("{at: 1e18s, full: true}", "a duration of at most 9e9s"),
        ("{pattern: {period: 9e9s, times: 3, changes: [{full: true}]}}", "at most 9e9s"),
        ("3", "a change"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_their_position(tmp_path: Path, entry: str, expected: str):
    message = refusal(tmp_path, f"schedule:\n  - {entry}\n")
    assert expected in message
    assert "s.yaml:2:" in message or "nowhere" in message


def test_ramps_of_integers_and_sizes_are_integers(tmp_path: Path):
    events = read(tmp_path, """
- {at: 1s, disk: d, ramp: {key: servers, from: 1, to: 5, length: 4s, steps: 4}}
- {at: 9s, disk: d, ramp: {key: servers, from: 1, to: 2, length: 3s, steps: 3}}
- {at: 1s, ramp: {key: memory, from: 1GiB, to: 2GiB, length: 10s}}
- {at: 1s, disk: d, ramp: {key: slow.factor, from: 1, to: 2, length: 2s, steps: 2}}
""")  # fmt: skip
    servers = [e.patch["servers"] for e in events if "servers" in e.patch]
    assert servers == [1, 2, 3, 4, 5, 1, 1, 2, 2]
    memory = [e.patch["hard"] for e in events if e.resource == "memory"]
    assert memory == [round((1 + n / 10) * (1 << 30)) for n in range(11)]
    assert [e.patch["slow"]["factor"] for e in events if "slow" in e.patch] == [1, 1.5, 2]


def test_max_resets_every_flag_of_a_disk(tmp_path: Path):
    flags = ("read_only", "full", "fail_stop", "volatile", "cache")
    (event,) = read(
        tmp_path, f"[{{at: 1s, disk: d, {', '.join(f'features.{f}: max' for f in flags)}}}]"
    )
    assert event.patch == dict.fromkeys(flags)


def test_a_ramp_has_its_ends_and_even_steps(tmp_path: Path):
    events = read(tmp_path, """
- {at: 10s, ramp: {key: limits.write, from: 100MB/s, to: 10MB/s, length: 9s, steps: 3}}
""")  # fmt: skip
    assert at_and(events, "limits", "write_bps") == [
        (10.0, 100e6), (13.0, 70e6), (16.0, 40e6), (19.0, 10e6)
    ]  # fmt: skip


def test_a_pattern_repeats(tmp_path: Path):
    events = read(tmp_path, """
- pattern:
    period: 10s
    times: 3
    changes: [{full: true}, {at: 4s, full: false}]
""")  # fmt: skip
    expected = [(0, True), (4, False), (10, True), (14, False), (20, True), (24, False)]
    assert at_and(events, "full") == expected


def test_a_trace_has_units_in_its_head_and_empty_cells(tmp_path: Path):
    (tmp_path / "t.csv").write_text(
        "time [s], limits.read [MB/s], limits.write [MiB/s]\n0, 10,\n1.5, , 2\n3, max, 1\n"
    )
    events = read(tmp_path, "[{at: 100s, disk: d, trace: t.csv}]")
    assert [(e.when.at_s, e.patch, e.name) for e in events] == [
        (100.0, {"limits": {"read_bps": 10e6}}, "d"),
        (101.5, {"limits": {"write_bps": 2097152.0}}, "d"),
        (103.0, {"limits": {"read_bps": None, "write_bps": 1048576.0}}, "d"),
    ]
    assert len(read_schedule(tmp_path / "t.csv")) == 3
    (tmp_path / "t.json").write_text('[{"time": "2s", "limits.read": "1MB/s"}]')
    assert at_and(read(tmp_path, "[{trace: t.json}]"), "limits", "read_bps") == [(2.0, 1e6)]
    (tmp_path / "t.csv").write_text("time [s], limits.read\n0, 10\n")
    assert "unit" in refusal(tmp_path, "[{trace: t.csv}]")
    (tmp_path / "t.csv").write_text("time [s], full\n2, true\n1, false\n")
    assert "times in order" in refusal(tmp_path, "[{trace: t.csv}]")
    (tmp_path / "t.csv").write_text("time,limits.read,limits.read\n0s,1MB/s,2MB/s\n")
    assert "'limits.read' several times" in refusal(tmp_path, "[{trace: t.csv}]")
    for separator in ";\t":
        (tmp_path / "t.csv").write_text(f"time{separator}limits.read\n2s{separator}1MB/s\n")
        events = read(tmp_path, "[{trace: t.csv}]")
        assert at_and(events, "limits", "read_bps") == [(2.0, 1e6)]


def test_random_changes_depend_only_on_the_seed(tmp_path: Path):
    template = (
        "[{random: {seed: %d, mean: 1s, for: 2000s, between: {limits.read: [1MB/s, 9MB/s]}}}]"
    )
    first = at_and(read(tmp_path, template % 1), "limits", "read_bps")
    assert first == at_and(read(tmp_path, template % 1), "limits", "read_bps")
    assert first != at_and(read(tmp_path, template % 2), "limits", "read_bps")
    gaps = [b[0] - a[0] for a, b in pairwise(first)]
    assert statistics.fmean(gaps) == pytest.approx(1.0, rel=0.1)
    values = [float(str(v)) for _, v in first]
    assert statistics.fmean(values) == pytest.approx(5e6, rel=0.05)
    assert min(values) >= 1e6
    assert max(values) <= 9e6


def test_markov_states_have_their_mean_stay(tmp_path: Path):
    events = read(tmp_path, """
- markov:
    seed: 4
    for: 20000s
    states:
      fast: {stay: 10s, limits.read: max, to: {slow: 75%, stalled: 25%}}
      slow: {stay: 5s, limits.read: 2MB/s, to: {fast: 100%}}
      stalled: {stay: 1s, limits.read: 1kB/s, to: {fast: 100%}}
""")  # fmt: skip
    changes = at_and(events, "limits", "read_bps")
    stays: dict[object, list[float]] = {None: [], 2e6: [], 1e3: []}
    for (at_s, value), (next_s, _) in pairwise(changes):
        stays[value].append(next_s - at_s)
    for value, mean_s in ((None, 10), (2e6, 5), (1e3, 1)):
        assert statistics.fmean(stays[value]) == pytest.approx(mean_s, rel=0.15)
    share = len(stays[2e6]) / (len(stays[2e6]) + len(stays[1e3]))
    assert share == pytest.approx(0.75, abs=0.04)


def test_events_for_the_server_of_a_disk(tmp_path: Path):
    events = read(tmp_path, """
- {at: 2s, disk: a, full: true}
- {at: 3s, phase: load, disk: a, full: false}
- {at: 1s, when: {metric: read_bytes, above: 1000000}, disk: a, servers: 1}
- {at: 2s, disk: b, read_only: true}
- {at: 2s, cpus: 1}
""")  # fmt: skip
    assert for_disk(events, 1000, "a") == [
        {
            "metric": "read_bytes",
            "above": 1000000,
            "after_ns": 10**9,
            "patch": {"servers": 1},
            "every": True,
        },
        {"at_ns": 2 * 10**9 + 1000, "patch": {"full": True}},
        {"phase": "load", "after_ns": 3 * 10**9, "patch": {"full": False}},
    ]
    logged = read(tmp_path, "[{when: {log: out.txt, regex: started}, full: true}]")
    with pytest.raises(BadInput, match="nothing observes it here"):
        for_disk(logged, 0)


def test_the_dry_run_shows_every_change_as_text_and_charts(tmp_path: Path):
    events = read(tmp_path, """
- {at: 0s, disk: a, limits.read: 10MB/s}
- {at: 10s, disk: a, limits.read: 5MB/s}
- {at: 20s, disk: a, limits.read: max, full: true}
- {at: 1s, phase: load, slow.factor: 3}
""")  # fmt: skip
    assert {
        "at": "10.000 s",
        "where": "disk a",
        "key": "limits.read_bps",
        "value": "5 MB/s",
    } in rows(events)
    shown = text(events)
    assert all(len(line) <= 100 for line in shown.splitlines())
    chart_line = next(line for line in shown.splitlines() if line.startswith("a limits.read_bps"))
    bars = chart_line.split()[2]
    assert (bars[0], bars[30], bars[-1]) == ("█", "▄", "·")
    assert "load + 1 s" in shown
    figure = ElementTree.fromstring(svg(events))
    boxes = [e for e in figure.iter() if e.tag.endswith("rect")]
    heights = [float(b.get("height", "0")) for b in boxes]
    assert heights[1] == pytest.approx(2 * heights[2], abs=0.2)


def test_a_platform_file_accepts_short_forms_and_keeps_its_lines(tmp_path: Path):
    from penstock.platform.cluster import cluster_spec
    from penstock.platform.hosts import load_platform

    path = tmp_path / "p.yaml"
    template = """
penstock_platform: 1
name: p
network: {bandwidth: 1 Gbit/s, loopback: 2 GB/s}
hosts:
  - {group: n, count: 2, roles: [client, storage, manager], disks: [{name: d, profile: hdd-7200}],
     storage: {disk: d}, manager: {service: 1ms}}
schedule:
  - {at: 5s, nodes: n-0, disk: d, ramp: {key: limits.read, from: 4MB/s, to: 2MB/s, length: 2s, steps: 2}}
  - {at: 20s, disk: d, limits.read: max, slow: max}
  - {at: 30s, disk: d, %s}
"""
    path.write_text(template % "read_only: true")
    events = cluster_spec(load_platform(path)).events
    assert [(e.when.at_s, e.nodes, e.patch) for e in events] == [
        (5.0, ("n-0",), {"limits": {"read_bps": 4e6}}),
        (6.0, ("n-0",), {"limits": {"read_bps": 3e6}}),
        (7.0, ("n-0",), {"limits": {"read_bps": 2e6}}),
        (20.0, ("*",), {"slow": None, "limits": {"read_bps": None}}),
        (30.0, ("*",), {"read_only": True}),
    ]
    path.write_text(template % "limits.read: 3")
    with pytest.raises(BadInput, match=r"p.yaml:11:.*unit"):
        load_platform(path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("[{at: 1s, disk: a, full: true}, {at: 2s, memory: 1GiB}]", "found changes of memory"),
        ("[{at: 1s, limits.read: 1MB/s, latency: 5ms}]", "found changes of network"),
        ("[{at: 1s, disk: a, full: true}, {at: 2s, disk: b, full: true}]", "the disks a, b"),
    ],
)
def test_one_disk_makes_no_changes_of_others(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_of_one_disk(read(tmp_path, source))


def test_one_disk_needs_no_name(tmp_path: Path) -> None:
    check_of_one_disk(read(tmp_path, "[{at: 1s, disk: a, full: true}, {at: 2s, full: false}]"))
