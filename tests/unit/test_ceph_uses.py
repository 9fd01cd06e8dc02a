"""Ceph's counters on the dashboards of volumes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from penstock.parts.monitoring.experiments.points import Batch, canonical_labels, points
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, rows_of
from penstock.parts.monitoring.usage.grafana import dashboard_json
from penstock.parts.monitoring.usage.run_usage import run_uses
from penstock.parts.monitoring.usage.usage import uses_of_points
from tests.unit.test_dashboards import T0, S, experiment

VOLUMES = DASHBOARDS["volumes"]
NAN = float("nan")


def recorded_of(rows: list[tuple[str, dict[str, str], list[float]]]) -> Recorded:
    """Series with one point a second, except where the value is NaN."""
    table = points(
        metric=[m for m, _, values in rows for _ in values],
        labels=[canonical_labels(labels) for _, labels, values in rows for _ in values],
        unit=["s" if m.endswith("_sum") else "" for m, _, values in rows for _ in values],
        utc_ns=[T0 + k * S for _, _, values in rows for k, _ in enumerate(values)],
        float=[v for _, _, values in rows for v in values],
    )
    present = ~np.isnan(table["float"].to_numpy())
    return recorded([Batch("ceph", 0, table.filter(present))], T0, T0 + 10 * S)


def plots(rows: list[tuple[str, dict[str, str], list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Values of the lines of each plot of the only row."""
    ((_, plot_lines),) = rows_of(VOLUMES, uses_of_points(recorded_of(rows), {})).items()
    return {p.key: {x.name: x.value.tolist() for x in lines} for p, lines in plot_lines}


OSD, CLIENT = {"daemon": "osd.0"}, {"daemon": "client.admin", "process": "7"}


def test_rates_and_latencies_of_an_interval() -> None:
    # fails with the mean over all time instead of that of the interval, or a rate across a reset
    shown = plots(
        [
            ("ceph_osd_op_w", OSD, [10, 14, 14, 2, 5]),
            ("ceph_osd_op_w_in_bytes", OSD, [0, 4096, 4096, 4096, 8192]),
            ("ceph_osd_op_w_latency_sum", OSD, [1.0, 1.5, 1.5, 0.1, 0.4]),
            ("ceph_osd_op_w_latency_count", OSD, [10, 14, 14, 2, 5]),
            ("ceph_bluestore_commit_lat_sum", OSD, [0.0, 0.5, 0.5, 0.5, 0.75]),
            ("ceph_bluestore_commit_lat_count", OSD, [0, 1, 1, 1, 2]),
        ]
    )
    assert shown["ceph-operations"] == {"osd.0 write": [4.0, 0.0, 3.0]}
    assert shown["ceph-throughput"] == {"osd.0 write": [4096.0, 0.0, 0.0, 4096.0]}
    assert shown["ceph-latency"]["osd.0 write"] == pytest.approx([0.125, 0.1])
    assert shown["ceph-store"] == {"osd.0 commit": [0.5, 0.25]}


def test_an_interval_with_a_missing_point_is_longer() -> None:
    shown = plots([("ceph_osd_op_r", OSD, [0, 6, NAN, NAN, 12])])
    assert shown["ceph-operations"] == {"osd.0 read": [6.0, 2.0]}


def test_processes_that_are_no_daemons_are_clients() -> None:
    image = {**CLIENT, "entity": "1-rbd-disk"}
    shown = plots(
        [
            ("ceph_objecter_op_w", OSD, [0, 1]),
            ("ceph_objecter_op_w", CLIENT, [0, 3]),
            ("ceph_librbd_wr", image, [0, 2]),
            ("ceph_client_rdlat_sum", CLIENT, [0, 1]),
            ("ceph_client_rdlat_count", CLIENT, [0, 4]),
            ("ceph_mds_request", {"daemon": "mds.a"}, [1, 9]),
        ]
    )
    assert shown["ceph-clients"] == {
        "client.admin 7 write": [3.0],
        "client.admin 7 1-rbd-disk write": [2.0],
    }
    assert shown["ceph-clients-latency"] == {"client.admin 7 read": [0.25]}
    assert shown["ceph-metadata"] == {"mds.a": [8.0]}


def test_metrics_of_ceph_s_own_exporter() -> None:
    shown = plots([("ceph_osd_op_r", {"ceph_daemon": "osd.3", "instance": "mgr:9283"}, [0, 5])])
    assert shown["ceph-operations"] == {"osd.3 read": [5.0]}


def test_without_ceph_only_grafana_has_its_plots() -> None:
    disk = {"device": "sda", "instance": "a"}
    shown = plots([("node_disk_io_time_seconds_total", disk, [0, 0.5])])
    assert shown["io-time"] == {"sda": [500.0]}
    assert not [key for key in shown if key.startswith("ceph-")]
    targets = [
        p["targets"][0]["target"] for p in dashboard_json(VOLUMES)["panels"] if "targets" in p
    ]
    assert "volumes.ceph-latency;$experiment;$row" in targets
    assert not [p for d in DASHBOARDS.values() if d != VOLUMES for p in d.plots if p.extra]


def test_counters_of_ceph_are_no_metrics_of_the_program() -> None:
    rows = recorded_of(
        [("ceph_osd_op_w_latency_sum", OSD, [1, 2]), ("p99_latency_sum", {}, [1, 2])]
    )
    frame: pd.DataFrame = run_uses(experiment(), rows, None)
    assert list(frame[frame["kind"] == "program"]["entity"].unique()) == ["p99_latency_sum"]
