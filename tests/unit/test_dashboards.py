"""Dashboards: rows and lines from known counters, Grafana's files, and its calls replayed on a
server.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle
from penstock.parts.monitoring.experiments.experiment import Experiment, Phase
from penstock.parts.monitoring.experiments.points import Account, Batch, canonical_labels, points
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.parts.monitoring.usage.bandwidth import bwinfo, devices_of
from penstock.parts.monitoring.usage.dashboards import (
    ALL_TENANTS,
    DASHBOARDS,
    MOST_BESIDE,
    Tenancy,
    names_of,
    rows_of,
)
from penstock.parts.monitoring.usage.grafana import dashboard_json, write
from penstock.parts.monitoring.usage.run_usage import run_uses
from penstock.parts.monitoring.usage.usage import COLUMNS, uses_of_points
from tests.support import commands, web
from tests.unit.test_experiment_server import Server

S = 10**9
T0 = 1_700_000_000 * S
#: reference values of IOStack: differences over one second, HZ 100, 4 processors
TICKS = {
    "user": 120,
    "nice": 10,
    "system": 60,
    "idle": 150,
    "iowait": 50,
    "irq": 0,
    "softirq": 5,
    "steal": 5,
}


def row(metric: str, values: list[float], **labels: str) -> dict[str, Any]:
    return {"metric": metric, "values": values, "labels": canonical_labels(labels)}


def node_exporter(host: str) -> list[dict[str, Any]]:
    """Metrics of node_exporter at two moments, one second apart."""
    rows = [
        row("node_cpu_seconds_total", [50.0, 50.0 + ticks / 100 / 4], mode=mode, cpu=str(cpu))
        for cpu in range(4)
        for mode, ticks in TICKS.items()
    ]
    rows = [{**r, "labels": r["labels"]} for r in rows]
    rows += [
        row("node_load1", [0.5, 0.75]),
        row("node_disk_io_time_seconds_total", [7.0, 7.37], device="sda"),
        row("node_disk_io_time_seconds_total", [7.0, 7.37], device="sda1"),
        row("node_disk_read_bytes_total", [0.0, 3e6], device="sda"),
        row("node_disk_written_bytes_total", [0.0, 1e6], device="sda"),
        row("node_network_transmit_bytes_total", [0.0, 20e6], device="eth0"),
        row("node_network_receive_bytes_total", [0.0, 30e6], device="eth0"),
        row("node_network_speed_bytes", [125e6, 125e6], device="eth0"),
        row("node_network_transmit_bytes_total", [0.0, 20e6], device="lo"),
        row("node_filesystem_avail_bytes", [4e9, 3e9], mountpoint="/"),
        row("node_filesystem_size_bytes", [10e9, 10e9], mountpoint="/"),
    ]
    for r in rows:
        r["labels"] = canonical_labels({**json.loads(r["labels"]), "instance": host})
    return rows


def uses(rows: list[dict[str, Any]], source: str = "s", **params: object) -> pd.DataFrame:
    table = points(
        metric=[r["metric"] for r in rows for _ in r["values"]],
        labels=[r["labels"] for r in rows for _ in r["values"]],
        utc_ns=[T0 + k * S for r in rows for k, _ in enumerate(r["values"])],
        float=[float(v) for r in rows for v in r["values"]],
    )
    return uses_of_points(recorded([Batch(source, 0, table)], T0, T0 + 10 * S), params)


def value(frame: pd.DataFrame, kind: str, entity: str, metric: str) -> list[float]:
    selected = frame[
        (frame["kind"] == kind) & (frame["entity"] == entity) & (frame["metric"] == metric)
    ]
    return list(selected["value"])


def test_formulas_from_metrics_of_node_exporter() -> None:
    # fails with guest time added, ticks read as ms, or one direction of the link missing
    frame = uses(node_exporter("a:9100"))
    assert list(frame.columns) == COLUMNS
    assert set(frame["host"]) == {"a:9100"}
    assert value(frame, "cpu", "all", "busy") == pytest.approx([50.0], abs=1e-9)
    # 400 ticks of 4 processors are one second
    assert value(frame, "disk", "sda", "busy") == pytest.approx([37.0], abs=1e-9)
    assert value(frame, "disk", "sda", "busy_of_time") == pytest.approx([37.0], abs=1e-9)
    assert value(frame, "network", "eth0", "used") == pytest.approx([40.0], abs=1e-9)
    assert value(frame, "network", "eth0", "used_out") == pytest.approx([16.0], abs=1e-9)
    assert value(frame, "network", "eth0", "used_in") == pytest.approx([24.0], abs=1e-9)
    assert value(frame, "filesystem", "/", "free share") == [40.0, 30.0]
    assert value(frame, "load", "all", "1 min") == [0.5, 0.75]


WRITTEN = ("node_disk_written_bytes_total",)


def written(source: str, host: str, first_ns: int, more: tuple[str, ...] = WRITTEN) -> list[Batch]:
    """A disk that writes 1 MB in each second, as reported by a collector that reads it `first_ns`
    late.
    """
    at = [T0 + first_ns + k * S for k in range(5)]
    names = [*more, "node_disk_io_time_seconds_total"]
    table = points(
        metric=[n for n in names for _ in at],
        labels=canonical_labels({"instance": host, "device": "sda"}),
        utc_ns=[t for _ in names for t in at],
        # collectd rounds times: the counter was read up to half a second earlier or later
        float=[
            1e6 * ((t - T0) / S + (0.4 if source == "collectd" else 0)) for _ in names for t in at
        ],
    )
    return [Batch(source, 0, table)]


def test_rates_never_mix_counters_of_two_collectors() -> None:
    # mixed, the rate of the disk is 1 MB/s ± 8 MB/s and negative in between
    batches = written("scrape", "a", 50_000_000) + written("collectd", "a", 0)
    frame = uses_of_points(recorded(batches, T0, T0 + 10 * S), {})
    rates = frame[frame["metric"] == "write_rate"]
    assert set(rates["host"]) == {"a (scrape)", "a (collectd)"}
    assert len(rates) == 8
    assert rates["value"].to_numpy() == pytest.approx(1e6)


def test_collectors_of_different_series_share_a_host_s_row() -> None:
    reads = written("collectd", "a", 0, ("node_disk_read_bytes_total",))
    batches = written("scrape", "b", 0) + reads
    both = uses_of_points(recorded(batches, T0, T0 + 10 * S), {})
    assert set(both["host"]) == {"a", "b"}
    cpus = [r for r in node_exporter("a") if "cpu" in r["metric"]]
    halves = [cpus[::2], cpus[1::2]]
    merged = [
        Batch(
            f"prom/{n}",
            0,
            points(
                metric=[r["metric"] for r in half for _ in r["values"]],
                labels=[r["labels"] for r in half for _ in r["values"]],
                utc_ns=[T0 + k * S for r in half for k, _ in enumerate(r["values"])],
                float=[float(v) for r in half for v in r["values"]],
            ),
        )
        for n, half in enumerate(halves)
    ]
    frame = uses_of_points(recorded(merged, T0, T0 + 10 * S), {})
    assert set(frame["host"]) == {"a"}
    assert value(frame, "cpu", "all", "busy") == pytest.approx([50.0], abs=1e-9)


def test_a_reset_counter_has_no_rate() -> None:
    frame = uses(
        [
            row("disk_read_bytes", [9e6, 1e6, 4e6], entity="vda"),
            row("disk_io_time", [1, 1, 1], entity="vda"),
        ]
    )
    assert value(frame, "disk", "vda", "read_rate") == [3e6]


@pytest.mark.parametrize(
    ("label", "hosts"),
    [
        ("exported_instance", ["a:9100", "b:9100"]),
        ("cluster", ["prom:9090 (a:9100)", "prom:9090 (b:9100)"]),
    ],
)
def test_hosts_behind_one_target_stay_apart(label: str, hosts: list[str]) -> None:
    # as of a federation: fails if the counters of one host replace those of the other
    rows = []
    for host in ("a:9100", "b:9100"):
        for r in node_exporter(host):
            labels = {**json.loads(r["labels"]), "instance": "prom:9090", label: host}
            rows.append({**r, "labels": canonical_labels(labels)})
    rows[-1]["values"] = [20e9, 20e9]  # the size of a file system of the second
    frame = uses(rows)
    assert sorted(set(frame["host"])) == hosts
    for host, free in zip(hosts, ([40.0, 30.0], [20.0, 15.0]), strict=True):
        of_host = frame[frame["host"] == host]
        assert value(of_host, "cpu", "all", "busy") == pytest.approx([50.0], abs=1e-9)
        assert value(of_host, "disk", "sda", "busy") == pytest.approx([37.0], abs=1e-9)
        assert value(of_host, "network", "eth0", "used") == pytest.approx([40.0], abs=1e-9)
        assert value(of_host, "filesystem", "/", "free share") == free


def test_file_systems_of_one_mount_point_stay_apart() -> None:
    rows = [
        row(f"node_filesystem_{what}_bytes", [value], mountpoint="/", device=device, instance="a")
        for device, free, size in (("rootfs", 1e9, 4e9), ("/dev/vda1", 3e9, 4e9))
        for what, value in (("avail", free), ("size", size))
    ]
    frame = uses([*rows, row("node_load1", [1.0], instance="a")])
    assert set(frame["host"]) == {"a"}
    assert value(frame, "filesystem", "/ (rootfs)", "free share") == [25.0]
    assert value(frame, "filesystem", "/ (/dev/vda1)", "free share") == [75.0]


def test_a_missing_sample_of_one_processor_gives_no_busy_time() -> None:
    # cpu0 is busy, cpu1 idle since a long time; the second sample of cpu1 is missing
    rows = []
    for cpu, state, first in (("0", "user", 0.0), ("1", "idle", 1e6)):
        for mode in TICKS:
            values = [first + k if mode == state else first for k in range(4)]
            rows += [(mode, cpu, k, v) for k, v in enumerate(values) if (cpu, k) != ("1", 1)]
    table = points(
        metric="node_cpu_seconds_total",
        labels=[canonical_labels({"cpu": cpu, "mode": mode}) for mode, cpu, _, _ in rows],
        utc_ns=[T0 + k * S for _, _, k, _ in rows],
        float=[v for _, _, _, v in rows],
    )
    frame = uses_of_points(recorded([Batch("s", 0, table)], T0, T0 + 10 * S), {})
    assert value(frame, "cpu", "all", "busy") == pytest.approx([50.0, 50.0])


def test_bandwidth_needs_both_directions() -> None:
    frame = uses(
        [
            row("disk_read_bytes", [9e6, 1e6, 4e6], entity="vda"),
            row("disk_written_bytes", [0, 1e6, 2e6], entity="vda"),
            row("disk_io_time", [1, 1, 1], entity="vda"),
        ]
    )
    (series,) = devices_of(frame).values()
    assert series.y.tolist() == [4e6]


def test_a_link_without_a_speed_has_that_of_the_experiment() -> None:
    rows = [
        row("network_sent_bytes", [0, 5e6], entity="eth0"),
        row("network_received_bytes", [0, 0], entity="eth0"),
    ]
    assert value(uses(rows), "network", "eth0", "used") == []
    assert value(uses(rows, link_bps="50000000"), "network", "eth0", "used") == [10.0]
    assert value(uses(rows, link_bps="quick"), "network", "eth0", "used") == []


def test_rows_of_hosts_and_lines_of_their_plots() -> None:
    frame = uses([*node_exporter("a:9100"), *node_exporter("b:9100")])
    rows = rows_of(DASHBOARDS["object-storage"], frame)
    assert list(rows) == ["a:9100", "b:9100"] == names_of(DASHBOARDS["object-storage"], frame)
    lines = {p.key: [x.name for x in lines] for p, lines in rows["a:9100"]}
    assert lines["cpu"] == ["busy"]
    assert lines["disk"] == ["sda"]  # without partitions, which are parts of it
    assert lines["network"] == ["eth0 both ways", "eth0 out", "eth0 in"]
    assert lines["free"] == ["/"]
    (time,) = next(x for p, x in rows["a:9100"] if p.key == "io-time")
    assert time.value == pytest.approx([370.0])
    assert [k for k in lines if not lines[k]] == ["objects"]


def tenants() -> pd.DataFrame:
    def of(kind: str, entity: str, metric: str, values: list[float]) -> list[dict[str, Any]]:
        fixed = {"host": "h", "kind": kind, "entity": entity, "metric": metric, "unit": ""}
        return [{**fixed, "utc_ns": T0 + k * S, "value": v} for k, v in enumerate(values)]

    return pd.DataFrame(
        [
            *of("cpu", "cpu0", "busy", [0.0]),
            *of("cpu", "cpu1", "busy", [0.0]),
            *of("cgroup_cpu", "w0", "cores", [0.5, 1.0]),
            *of("cgroup_cpu", "w1", "cores", [0.25, 0.5]),
            *of("cgroup_cpu", "db", "cores", [1.0, 2.0]),
            *of("network", "w0 e0", "used", [10.0, 20.0]),
            *of("network", "w1 e0", "used", [30.0, 40.0]),
            *of("emulated_disk", "db.data", "busy", [80.0, 100.0]),
        ]
    )


def test_tenants_are_the_sum_of_their_nodes() -> None:
    # fails if a node counts for another tenant, or shares are added instead of averaged
    tenancy = Tenancy({"w0": "gold", "w1": "gold", "db": ""}, {"w0": 1.0, "w1": 0.5, "db": None})
    rows = rows_of(DASHBOARDS["tenants"], tenants(), tenancy)
    assert list(rows) == [
        ALL_TENANTS,
        "gold",
        "gold / w0",
        "gold / w1",
        "no tenant",
        "no tenant / db",
    ]
    plots = {
        name: {p.key: [list(x.value) for x in ls] for p, ls in row} for name, row in rows.items()
    }
    assert plots["gold"]["cores"] == [[0.75, 1.5]]
    assert plots["gold"]["allocated"] == [[1.5, 1.5]]
    assert plots["gold"]["network"] == [[20.0, 30.0]]
    assert plots["gold"]["disk"] == []
    assert plots[ALL_TENANTS]["cores"] == [[1.75, 3.5]]
    assert plots[ALL_TENANTS]["allocated"] == [[3.5, 3.5]]  # db: as many as the host has
    assert plots["no tenant / db"]["disk"] == [[80.0, 100.0]]
    assert names_of(DASHBOARDS["tenants"], tenants().iloc[:2], tenancy) == []


def test_a_node_that_ended_counts_no_longer() -> None:
    # w1 is sampled half a second after w0, until 10 s
    rows = [
        {"host": "h", "kind": "cgroup_cpu", "entity": node, "metric": "cores", "unit": "1"}
        | {"utc_ns": T0 + second * S + shift, "value": 1.0}
        for node, shift, last in (("w0", 0, 30), ("w1", S // 2, 10))
        for second in range(last)
    ]
    frame = pd.DataFrame(rows)
    (line,) = next(
        lines
        for plot, lines in rows_of(DASHBOARDS["tenants"], frame)[ALL_TENANTS]
        if plot.key == "cores"
    )
    seconds = ((line.utc_ns - T0) / S).tolist()
    cores = dict(zip(seconds, line.value.tolist(), strict=True))
    assert (cores[0.5], cores[9.5], cores[10.0], cores[20.0], cores[29.0]) == (
        2.0,
        2.0,
        2.0,
        1.0,
        1.0,
    )


def experiment(**more: Any) -> Experiment:
    phases = (Phase("load", T0, T0 + 4 * S), Phase("measure", T0 + 4 * S, None))
    defaults = {"params": {}, "tags": (), "path": Path("none"), "out": "", "run_id": "x"}
    fields = {
        "owner": "ada",
        "shared": False,
        "state": "ended",
        **defaults,
        "phases": phases,
        **more,
    }
    return Experiment("x", 1, start_ns=T0, end_ns=T0 + 10 * S, **fields)


def of_run(frame: pd.DataFrame) -> dict[str, dict[str, tuple[list[int], list[float]]]]:
    """Lines of a run's plots: seconds and values by name."""
    rows = rows_of(DASHBOARDS["run"], frame)
    assert list(rows) == ["run"] == names_of(DASHBOARDS["run"], frame)
    return {
        p.key: {x.name: (((x.utc_ns - T0) // S).tolist(), x.value.tolist()) for x in lines}
        for p, lines in rows["run"]
    }


def test_a_run_has_phases_hosts_and_metrics_of_its_program() -> None:
    # fails if a unit is not that of the plot, or a metric of the host counts as the program's
    program_rows = [
        row("ops", [10.0, 20.0], entity="w0"),
        row("written", [1.0, 2.0]),
        row("read_latency", [3.0, 4.0]),
        row("cpu_time_of_it", [1.0, 2.0]),
        row("clock_offset_seconds", [-0.002, 0.001], source="samples"),
    ]
    units = {"ops": "1/s", "written": "MiB/s", "read_latency": "us"}
    units |= {"cpu_time_of_it": "s", "clock_offset_seconds": "s"}
    memory = [row("memory_available", [5e9, 4e9], entity="host")]
    rows = [*program_rows, *memory, *node_exporter("a:9100")]
    table = points(
        metric=[r["metric"] for r in rows for _ in r["values"]],
        labels=[r["labels"] for r in rows for _ in r["values"]],
        utc_ns=[T0 + k * S for r in rows for k, _ in enumerate(r["values"])],
        float=[float(v) for r in rows for v in r["values"]],
        unit=[units.get(r["metric"], "") for r in rows for _ in r["values"]],
    )
    accounts = [Account("ops", '{"entity":"w0"}', expected=3), Account("written", expected=2)]
    result = recorded([Batch("me", 0, table, accounts)], T0, T0 + 10 * S)
    frame = pd.concat([uses_of_points(result, {}), run_uses(experiment(), result, None)])
    plots = of_run(frame)
    assert plots["phases"] == {"load": ([0, 4], [1.0, 1.0]), "measure": ([4, 10], [2.0, 2.0])}
    assert plots["operations"] == {"ops w0": ([0, 1], [10.0, 20.0])}
    assert plots["bytes"] == {"written": ([0, 1], [2.0**20, 2.0**21])}
    assert list(plots["latency"]) == ["read_latency"]
    assert plots["latency"]["read_latency"][1] == pytest.approx([3e-6, 4e-6])
    assert plots["complete"] == {"me": ([0, 10], [80.0, 80.0])}
    assert plots["clocks"] == {"samples": ([0, 1], [2.0, 1.0])}
    # with two hosts each line has the name of its host
    assert list(plots["cpu"]) == ["a:9100 busy"]
    assert plots["cpu"]["a:9100 busy"][1] == pytest.approx([50.0])
    assert plots["memory"] == {"this host available": ([0, 1], [5e9, 4e9])}
    assert list(plots["disk"]) == ["a:9100 sda"]
    assert (plots["valid"], plots["observers"]) == ({}, {})
    # metrics of the complete run make no row in other dashboards
    assert names_of(DASHBOARDS["compute"], frame) == ["a:9100", "this host"]
    assert list(rows_of(DASHBOARDS["compute"], frame)) == ["a:9100", "this host"]


def test_rates_of_a_program_are_converted_by_their_units() -> None:
    # fails if a rate in bits, or of another quantity, is shown as operations per second
    units = {
        "net": "Mbit/s",
        "fast": "TB/s",
        "written": "MiB/s",
        "old": "KB/s",
        "ops": "op/s",
        "requests": "requests/min",
        "commits": "1/s",
        "cores": "s/s",
        "many": "Mops/s",
        "energy": "J/s",
    }
    table = points(
        metric=list(units),
        utc_ns=[T0] * len(units),
        float=[6.0] * len(units),
        unit=list(units.values()),
    )
    frame = run_uses(experiment(), recorded([Batch("me", 0, table)], T0, T0 + 10 * S), None)
    plots = {
        key: {name: values[1][0] for name, values in lines.items()}
        for key, lines in of_run(frame).items()
    }
    assert plots["bytes"] == {"net": 750e3, "fast": 6e12, "written": 6 * 2.0**20, "old": 6e3}
    assert plots["operations"] == {"ops": 6.0, "requests": pytest.approx(0.1), "commits": 6.0}


def test_metrics_of_a_program_with_other_labels_are_separate_lines() -> None:
    # fails if reads and writes, or two sources, become one line back and forth
    def batch(source: str, *labels: dict[str, str]) -> Batch:
        texts = [canonical_labels(one) for one in labels]
        values = [2.0**60 if source == "b" else float(n) for n, _ in enumerate(texts)]
        return Batch(
            source,
            0,
            points(metric="ops", labels=texts, utc_ns=[T0] * len(texts), float=values, unit="1/s"),
        )

    read, write = {"op": "read", "entity": "w0"}, {"op": "write", "entity": "w0"}
    batches = [batch("a", read, write), batch("b", read)]
    frame = run_uses(experiment(), recorded(batches, T0, T0 + 10 * S), None)
    lines = of_run(frame)["operations"]
    assert {name: values for name, (_, values) in lines.items()} == {
        "ops w0 read (a)": [0.0],
        "ops w0 write": [1.0],
        "ops w0 read (b)": [2.0**60],
    }


def test_a_run_of_a_study_shows_its_quality(tmp_path: Path) -> None:
    monitor = {"samples": 90, "expected": 100, "cpu_ns": 50_000_000}
    manifest = {"run_id": "r001", "receipts": {"monitor": monitor, "trace": {"lost": 0}}}
    with Bundle.create(tmp_path / "r001", manifest) as bundle:
        clock = {"monotonic_ns": 0, "boottime_ns": 0, "offset_bound_ns": 0, "realtime_ns": T0}
        clocks = [{**clock, "point": "start", "offset_ns": -3_000_000}]
        bundle.write_table("clocks", pa.Table.from_pylist(clocks))
        disks = [{"disk_id": d, "valid": v} for d, v in (("a", True), ("a", None), ("b", False))]
        bundle.write_table("fidelity", pa.Table.from_pylist(disks))
    empty = recorded([], T0, T0 + 10 * S)
    plots = of_run(run_uses(experiment(), empty, Bundle.open(tmp_path / "r001")))
    assert plots["complete"] == {"monitor": ([0, 10], [90.0, 90.0])}
    assert plots["observers"] == {"monitor": ([0, 10], [0.5, 0.5])}
    assert plots["clocks"] == {"host": ([0], [3.0])}
    assert plots["valid"] == {"a": ([0, 10], [1.0, 1.0]), "b": ([0, 10], [0.0, 0.0])}
    assert run_uses(experiment(phases=()), empty, None).empty


def test_the_busiest_processes_of_a_run() -> None:
    rows = [
        row("process_cpu_time", [0, 5e8, 5e8, 0, 1e9], pid="7", comm="fio"),
        row("process_cpu_time", [0] * 5, pid="8", comm="idle", node="n1"),
        *[row("process_cpu_time", [0, k], pid=f"{k}", comm="x") for k in range(100, 111)],
        row("process_written_bytes", [0, 4096], pid="7", comm="fio"),
    ]
    table = points(
        metric=[r["metric"] for r in rows for _ in r["values"]],
        labels=[r["labels"] for r in rows for _ in r["values"]],
        utc_ns=[T0 + k * S for r in rows for k, _ in enumerate(r["values"])],
        float=[float(v) for r in rows for v in r["values"]],
        unit=["" for r in rows for _ in r["values"]],
    )
    result = recorded([Batch("samples", 0, table, [])], T0, T0 + 10 * S)
    plots = of_run(run_uses(experiment(phases=()), result, None))
    # no value across the reset counter: another process has the same number and name
    assert plots["processes"]["fio 7"] == ([1, 2, 4], [0.5, 0.0, 1.0])
    assert len(plots["processes"]) == 12
    assert "n1 idle 8" not in plots["processes"]
    assert plots["process-bytes"] == {"fio 7 written": ([1], [4096.0])}
    assert plots["latency"] == {}


def test_windows_of_bandwidth_of_any_disk() -> None:
    read = row("disk_read_rate", [float(k) * 1e6 for k in range(360)], entity="vda")
    written = row("disk_write_rate", [1e6] * 360, entity="vda")
    frame = uses([read, written], source="utilisation")
    (series,) = devices_of(frame).values()
    windows = bwinfo(series)
    # 1 to 360 MB/s, one second each: reference values of IOStack
    assert windows["insta"] == 360e6
    assert [windows[f"mean{k}min"] for k in (1, 2, 3, 5)] == [330.5e6, 300.5e6, 270.5e6, 210.5e6]


def schema() -> dict[str, Any]:
    """Grafana's published schema of a dashboard (schemaVersion 36), reduced to the parts that
    penstock writes.
    """
    natural = {"type": "integer", "minimum": 0}
    source = {
        "type": "object",
        "required": ["type", "uid"],
        "properties": {"type": {"type": "string"}, "uid": {"type": "string"}},
    }
    place = {
        "type": "object",
        "required": ["x", "y", "w", "h"],
        "properties": {
            "x": {**natural, "maximum": 23},
            "y": natural,
            "w": {"type": "integer", "minimum": 1, "maximum": 24},
            "h": {"type": "integer", "minimum": 1},
        },
        "additionalProperties": False,
    }
    plot = {
        "type": "object",
        "required": ["id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig"],
        "properties": {
            "id": natural,
            "type": {"const": "timeseries"},
            "gridPos": place,
            "datasource": source,
            "targets": {"type": "array", "items": {"required": ["refId", "target"]}, "minItems": 1},
            "fieldConfig": {"type": "object", "required": ["defaults", "overrides"]},
        },
    }
    mark = {
        "type": "object",
        "required": ["name", "enable", "iconColor"],
        "properties": {
            name: {} for name in ("name", "datasource", "enable", "iconColor", "target", "hide")
        },
        "additionalProperties": False,
    }
    variable = {
        "type": "object",
        "required": ["name", "type", "query", "current"],
        "properties": {"current": {"type": "object", "required": ["text", "value"]}},
    }
    line = {
        "type": "object",
        "required": ["id", "type", "title", "gridPos", "collapsed", "panels"],
        "properties": {"id": natural, "type": {"const": "row"}, "gridPos": place},
    }
    return {
        "type": "object",
        "required": ["title", "uid", "schemaVersion", "panels", "templating", "annotations"],
        "properties": {
            "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{8,40}$"},
            "schemaVersion": {"const": 36},
            "graphTooltip": {"enum": [0, 1, 2]},
            "panels": {"type": "array", "items": {"oneOf": [plot, line]}},
            "templating": {
                "type": "object",
                "properties": {"list": {"type": "array", "items": variable}},
                "required": ["list"],
            },
            "annotations": {
                "type": "object",
                "properties": {"list": {"type": "array", "items": mark}},
                "required": ["list"],
            },
        },
    }


@pytest.mark.parametrize("key", DASHBOARDS)
def test_dashboards_are_what_grafana_reads(key: str) -> None:
    board = dashboard_json(DASHBOARDS[key])
    jsonschema.validate(board, schema())
    published = os.environ.get("GRAFANA_DASHBOARD_SCHEMA")
    if published:  # dashboard.jsonschema.json of grafana-foundation-sdk, which is in no package
        document = json.loads(Path(published).read_text())
        jsonschema.validate(board, document)
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
    rows: dict[int, int] = {}
    for panel in board["panels"][1:]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        rows[place["y"]] = rows.get(place["y"], 0) + 1
    assert all(1 <= columns <= MOST_BESIDE for columns in rows.values())
    invalid = json.loads(json.dumps(board))
    invalid["panels"][1]["gridPos"]["x"] = 24
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(invalid, schema())


#: a target of marks belongs to a data source; Grafana's types contain only those of its own sources
OF_THE_SOURCE = {"annotations.list[0].target.refId", "annotations.list[0].target.target"}


def differences(document: Any, reference: Any, place: str = "") -> set[str]:
    """Paths of a document that are missing or different in another."""
    if isinstance(document, dict) and isinstance(reference, dict):
        inner = [
            differences(v, reference.get(k), f"{place}.{k}".lstrip("."))
            for k, v in document.items()
        ]
        return set().union(*inner)
    if (
        isinstance(document, list)
        and isinstance(reference, list)
        and len(document) == len(reference)
    ):
        pairs = enumerate(zip(document, reference, strict=True))
        return set().union(*(differences(a, b, f"{place}[{n}]") for n, (a, b) in pairs))
    return set() if document == reference else {place}


@pytest.mark.parametrize("key", DASHBOARDS)
def test_grafana_s_types_contain_all_keys_of_a_dashboard(key: str) -> None:
    """Grafana's published types read and write all keys of a dashboard; they drop an unknown key."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()

    def round_trip(document: Any) -> Any:
        dashboard = Dashboard.from_json(json.loads(json.dumps(document)))
        return json.loads(json.dumps(dashboard, cls=JSONEncoder))

    board = json.loads(json.dumps(dashboard_json(DASHBOARDS[key])))
    assert differences(board, round_trip(board)) == OF_THE_SOURCE
    board["panels"][1]["gridPos"]["width"] = 3
    board["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    dropped = differences(board, round_trip(board)) - OF_THE_SOURCE
    assert dropped == {"panels[1].gridPos.width", "panels[1].fieldConfig.defaults.units"}


def test_files_for_grafana(tmp_path: Path) -> None:
    arguments = ["monitor", "grafana", str(tmp_path), "--server", "http://h:5000/"]
    result = commands.run(
        [sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    source = (tmp_path / "provisioning/datasources/penstock.yaml").read_text()
    assert '"http://h:5000/grafana"' in source
    assert "Bearer $PENSTOCK_TOKEN" in source
    assert (
        str(tmp_path / "dashboards")
        in (tmp_path / "provisioning/dashboards/penstock.yaml").read_text()
    )
    assert {p.stem for p in (tmp_path / "dashboards").iterdir()} == set(DASHBOARDS)
    with pytest.raises(Exception, match="expected http"):
        write(tmp_path, "h:5000\nx: y")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("dashboards"))
    running.http.post("/exp/cluster", json={"utc_time": str(T0 // S)})
    rows = [*node_exporter("a:9100"), *node_exporter("b:9100")]
    for number, r in enumerate(rows):
        request = {
            "source": "nodes",
            "number": number,
            "metric": r["metric"],
            "labels": json.loads(r["labels"]),
            "utc_ns": [T0, T0 + S],
            "float": r["values"],
        }
        response = running.http.post("/api/v1/experiments/cluster/points", json=request)
        assert response.status_code == 201, response.text
    mark = {"kind": "begin", "name": "load", "utc_time": str(T0 // S)}
    assert running.http.post("/api/v1/experiments/cluster/marks", json=mark).status_code == 201
    yield running
    running.end()


RANGE = {"from": "2023-11-14T22:13:19.000Z", "to": "2023-11-14T22:13:30.000Z"}


def ask(server: Server, path: str, request: Any, status: int = 200) -> Any:
    headers = {"Content-Type": "application/json"}
    response = server.http.post(f"/grafana/{path}", content=json.dumps(request), headers=headers)
    assert response.status_code == status, response.text
    return response.json()


def test_the_calls_of_grafana_replayed(server: Server) -> None:
    """Calls as the plugin sends them: test of the source, variables, panels of a dashboard,
    annotations.
    """
    assert server.http.get("/grafana/").json() == {"status": "ok"}
    assert ask(server, "search", {"target": "experiments", "type": "timeserie"}) == ["cluster#1"]
    board = dashboard_json(DASHBOARDS["compute"])
    experiment, of_rows = (v["query"] for v in board["templating"]["list"])
    assert experiment == "experiments"
    hosts = ask(server, "search", {"target": of_rows.replace("$experiment", "cluster#1")})
    assert hosts == ["a:9100", "b:9100"]
    targets = []
    for panel in board["panels"][1:]:
        text = panel["targets"][0]["target"].replace("$experiment", "cluster#1")
        targets.append({**panel["targets"][0], "target": text.replace("$row", hosts[1])})
    request = {
        "app": "dashboard",
        "panelId": 2,
        "range": {**RANGE, "raw": {"from": "now-15m", "to": "now"}},
        "intervalMs": 1000,
        "maxDataPoints": 500,
        "targets": targets,
        "scopedVars": {},
    }
    points_of = {series["target"]: series["datapoints"] for series in ask(server, "query", request)}
    ms = (T0 + S) // 10**6
    assert points_of["busy"] == [[pytest.approx(50.0), ms]]
    assert points_of["eth0 both ways"] == [[pytest.approx(40.0), ms]]
    assert points_of["1 min"] == [[0.5, ms - 1000], [0.75, ms]]
    annotation = {"name": "Marks", "datasource": "penstock", "enable": True, "query": "cluster"}
    marks = ask(server, "annotations", {"range": RANGE, "annotation": annotation})
    assert [m["title"] for m in marks] == ["start", "load"]
    assert marks[1]["isRegion"] is True
    assert marks[0]["annotation"] == annotation
    single = {"range": RANGE, "targets": [{"target": "node_load1;cluster"}, {"target": ""}]}
    assert len(ask(server, "query", single)) == 2  # one of each host
    # the newer plugin: variables, names escaped as in a regular expression, marks as a table
    values = ask(server, "variable", {"payload": {"target": r"rows;compute;cluster\#1"}})
    assert values == [{"__text": h, "__value": h} for h in hosts]
    assert {"label": "compute.cpu", "value": "compute.cpu"} in ask(server, "metrics", {})
    text = r"compute.cpu;cluster#1;a\:9100"
    table = board["annotations"]["list"][0]["target"]["target"].replace("$experiment", "cluster")
    both = {"range": RANGE, "targets": [{"target": text}, {"target": table, "refId": "Anno"}]}
    busy, table = ask(server, "query", both)
    assert busy["datapoints"] == [[pytest.approx(50.0), ms]]
    assert [c["text"] for c in table["columns"]] == ["time", "timeEnd", "title", "text"]
    assert [r[2] for r in table["rows"]] == ["start", "load"]


def test_what_monex_has_grafana_ask_is_answered_at_the_root(tmp_path: Path) -> None:
    """Variable and annotations of MonEx's documentation, as the simple-JSON source sends them."""
    running = Server(tmp_path)

    def response(path: str, request: Any) -> Any:
        answer = running.http.post(path, json=request)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def marks(query: str) -> list[tuple[str, int]]:
        annotation = {"name": "a", "datasource": "monex", "enable": True, "query": query}
        entries = response("/annotations", {"range": RANGE, "annotation": annotation})
        assert all(m["annotation"] == annotation for m in entries)
        return [(m["title"], m["time"] - T0 // 10**6) for m in entries]

    try:
        for name, begin in (("myxp", 0), ("other", 1), ("still to end", 2)):
            running.http.post(f"/exp/{name}", json={"utc_time": str(T0 // S + begin)})
        for name, end in (("myxp", 3), ("other", 4)):
            running.http.put(f"/exp/{name}", json={"utc_time": str(T0 // S + end)})
        # the test of a data source, which accepts any response, and the page of a browser
        assert "text/html" in running.http.get("/").headers["content-type"]
        assert response("/search", {"target": "*"}) == ["still to end", "other", "myxp"]
        values = response("/grafana/variable", {"payload": {"target": "*"}})
        assert [v["__text"] for v in values] == ["still to end", "other", "myxp"]
        assert response("/query", {"range": RANGE, "targets": [{"target": ""}]}) == []
        assert marks("start myxp") == [("start myxp", 0)]
        assert marks("stop myxp") == [("stop myxp", 3000)]
        # `start $myvariable` with several values
        both = [("start myxp", 0), ("start other", 1000)]
        assert marks("start (myxp,other)") == marks("start {myxp,other}") == both
        assert marks("start (myxp|other)") == both
        assert marks("stop (myxp,other,still to end)") == [
            ("stop myxp", 3000),
            ("stop other", 4000),
        ]
        assert marks("start still to end") == [("start still to end", 2000)]
        # no mark of an experiment that has not started
        assert marks("start later") == marks("stop later") == []
        running.http.post("/exp/myxp", json={"utc_time": str(T0 // S + 5), "repeat": True})
        assert response("/search", {"target": "*"}).count("myxp") == 1
        assert marks("start myxp") == [("start myxp", 5000)]
        refused = running.http.post("/query", json={"range": RANGE, "targets": [{"target": "x"}]})
        assert (refused.status_code, "expected DASHBOARD" in refused.text) == (400, True)
    finally:
        running.end()


def test_points_are_binned_and_cut_to_the_range(server: Server) -> None:
    request = {
        "range": RANGE,
        "maxDataPoints": 1,
        "targets": [{"target": "compute.load;cluster;a:9100"}],
    }
    assert ask(server, "query", request)[0]["datapoints"][0][0] == pytest.approx(0.625)
    request["range"] = {"from": "2023-11-14T22:13:21Z", "to": "2023-11-14T22:13:30Z"}
    assert ask(server, "query", request)[0]["datapoints"] == [[0.75, (T0 + S) // 10**6]]


def test_means_are_those_of_the_values_that_are_there(server: Server) -> None:
    server.http.post("/exp/nan", json={"utc_time": str(T0 // S)})
    times = [T0 + k * S // 8 for k in range(8)]
    values = [1.0, "NaN", 3.0, "Infinity", "NaN", "NaN", "NaN", "NaN"]
    batch = {"source": "p", "number": 0, "metric": "m", "utc_ns": times, "float": values}
    path = "/api/v1/experiments/nan/points"
    assert server.http.post(path, json=batch).status_code == 201
    request = {"range": RANGE, "maxDataPoints": 2, "targets": [{"target": "m;nan"}]}
    drawn = ask(server, "query", request)[0]["datapoints"]
    assert [value for value, _ in drawn] == [2.0, None]


def test_truth_values_are_drawn_as_numbers(server: Server) -> None:
    request = {"source": "p", "number": 0, "metric": "up", "utc_ns": [T0, T0 + S]}
    server.http.post("/exp/flags", json={"utc_time": str(T0 // S)})
    path = "/api/v1/experiments/flags/points"
    response = server.http.post(path, json={**request, "boolean": [True, False]})
    assert response.status_code == 201, response.text
    query = {"range": RANGE, "targets": [{"target": "up;flags"}]}
    values = [value for value, _ in ask(server, "query", query)[0]["datapoints"]]
    assert values == [1.0, 0.0]


@pytest.mark.parametrize(
    ("path", "query", "status", "message"),
    [
        (
            "query",
            {"range": RANGE, "targets": [{"target": "compute.x;cluster;a"}]},
            400,
            "expected load",
        ),
        ("query", {"range": RANGE, "targets": [{"target": "nothing"}]}, 400, "expected DASHBOARD"),
        ("query", {"range": RANGE, "targets": [{"target": "compute.cpu;none;a"}]}, 404, "none"),
        ("query", {"range": {"from": "x", "to": "y"}, "targets": []}, 400, "expected"),
        (
            "query",
            {"range": {"from": RANGE["to"], "to": RANGE["from"]}, "targets": []},
            400,
            "before",
        ),
        ("query", {"range": RANGE, "targets": [{"target": "a;b"}] * 101}, 422, "100"),
        ("query", {"range": RANGE, "targets": [{"target": "\ud800;x"}]}, 422, "unicode"),
        ("query", {"range": {"from": "\ud800", "to": "y"}, "targets": []}, 400, "Unicode"),
        ("search", {"target": "metrics;\ud800"}, 422, "unicode"),
        (
            "annotations",
            {"range": RANGE, "annotation": {"query": "x", "a": "\ud800"}},
            400,
            "Unicode",
        ),
        ("search", {"target": "rows;none;cluster"}, 404, "object-storage"),
        ("annotations", {"range": RANGE, "annotation": {"query": "none"}}, 404, "none"),
    ],
)
def test_invalid_queries_are_refused(
    server: Server, path: str, query: Any, status: int, message: str
) -> None:
    assert message in json.dumps(ask(server, path, query, status))


def test_the_page_s_data_is_served(server: Server) -> None:
    page = server.http.get("/dashboards")
    assert page.status_code == 200
    assert "script-src 'sha256-" in page.headers["content-security-policy"]
    listed = server.http.get("/api/v1/dashboards").json()
    assert [d["dashboard"] for d in listed] == list(DASHBOARDS)
    rows = server.http.get("/api/v1/dashboards/compute", params={"experiment": "cluster#1"}).json()
    assert [r["row"] for r in rows["rows"]] == ["a:9100", "b:9100"]
    busy = next(p for p in rows["rows"][0]["plots"] if p["plot"] == "cpu")
    assert busy["lines"][0]["points"][0][1] == pytest.approx(50.0)
    assert (
        server.http.get("/api/v1/dashboards/none", params={"experiment": "cluster"}).status_code
        == 404
    )


def test_the_page_and_grafana_show_a_run(server: Server) -> None:
    params = {"experiment": "cluster#1"}
    document = server.http.get("/api/v1/dashboards/run", params=params).json()
    (run_row,) = document["rows"]
    plots = {p["plot"]: p["lines"] for p in run_row["plots"]}
    (load,) = plots["phases"]
    assert (load["name"], load["points"][0]) == ("load", [T0 // 10**6, 1.0])
    # a phase that lasts from the start lies within the drawn range
    assert isinstance(document["start_ms"], int)
    assert document["start_ms"] <= load["points"][0][0]
    assert {x["name"] for x in plots["cpu"]} == {"a:9100 busy", "b:9100 busy"}
    assert ask(server, "search", {"target": "rows;run;cluster#1"}) == ["run"]
    request = {"range": RANGE, "targets": [{"target": "run.cpu;cluster#1;run"}]}
    assert len(ask(server, "query", request)) == 2


def test_a_reader_may_query_by_post(tmp_path: Path) -> None:
    # fails if a query of Grafana counts as a change, or if a reader can write with it
    running = Server(tmp_path)
    try:
        token = running.cli("monitor", "token", "guest", "--role", "reader").stdout.strip()
        headers = {"Authorization": f"Bearer {token}"}
        for path in ("/grafana/search", "/search"):
            assert web.post(running.url + path, json={}).status_code == 401
            response = running.http.post(path, json={"target": "experiments"}, headers=headers)
            assert response.json() == []
        empty: dict[str, Any] = {"range": RANGE, "targets": [], "annotation": {}}
        for path in ("/query", "/annotations"):
            assert web.post(running.url + path, json=empty).status_code == 401
            assert running.http.post(path, json=empty, headers=headers).json() == []
        assert running.http.post("/exp/x", headers=headers).status_code == 403
    finally:
        running.end()


def test_uses_of_nothing_are_empty() -> None:
    empty = uses_of_points(recorded([], T0, T0 + S), {})
    assert list(empty.columns) == COLUMNS
    assert rows_of(DASHBOARDS["compute"], empty) == {}
    assert pa.Table.from_pandas(empty).num_rows == 0
    assert np.asarray(empty["value"]).size == 0
