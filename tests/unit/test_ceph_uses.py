"""What dashboards of volumes show of Ceph's counters."""

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


def made(rows: list[tuple[str, dict[str, str], list[float]]]) -> Recorded:
    """Points of series, one a second; none where the value is not a number."""
    table = points(
        metric=[m for m, _, values in rows for _ in values],
        labels=[canonical_labels(own) for _, own, values in rows for _ in values],
        unit=["s" if m.endswith("_sum") else "" for m, _, values in rows for _ in values],
        utc_ns=[T0 + k * S for _, _, values in rows for k, _ in enumerate(values)],
        float=[v for _, _, values in rows for v in values],
    )
    there = ~np.isnan(table["float"].to_numpy())
    return recorded([Batch("ceph", 0, table.filter(there))], T0, T0 + 10 * S)


def plots(rows: list[tuple[str, dict[str, str], list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Of the only row: the values of the lines of each plot."""
    ((_, found),) = rows_of(VOLUMES, uses_of_points(made(rows), {})).items()
    return {p.key: {x.name: x.value.tolist() for x in lines} for p, lines in found}


OSD, CLIENT = {"daemon": "osd.0"}, {"daemon": "client.admin", "process": "7"}


def test_rates_and_latencies_of_an_interval() -> None:
    # would break with the mean over all time for that of the interval, or a reset for a rate
    found = plots(
        [
            ("ceph_osd_op_w", OSD, [10, 14, 14, 2, 5]),
            ("ceph_osd_op_w_in_bytes", OSD, [0, 4096, 4096, 4096, 8192]),
            ("ceph_osd_op_w_latency_sum", OSD, [1.0, 1.5, 1.5, 0.1, 0.4]),
            ("ceph_osd_op_w_latency_count", OSD, [10, 14, 14, 2, 5]),
            ("ceph_bluestore_commit_lat_sum", OSD, [0.0, 0.5, 0.5, 0.5, 0.75]),
            ("ceph_bluestore_commit_lat_count", OSD, [0, 1, 1, 1, 2]),
        ]
    )
    assert found["ceph-operations"] == {"osd.0 write": [4.0, 0.0, 3.0]}
    assert found["ceph-throughput"] == {"osd.0 write": [4096.0, 0.0, 0.0, 4096.0]}
    assert found["ceph-latency"]["osd.0 write"] == pytest.approx([0.125, 0.1])
    assert found["ceph-store"] == {"osd.0 commit": [0.5, 0.25]}


def test_an_interval_that_lacks_a_point_is_longer() -> None:
    found = plots([("ceph_osd_op_r", OSD, [0, 6, NAN, NAN, 12])])
    assert found["ceph-operations"] == {"osd.0 read": [6.0, 2.0]}


def test_clients_are_those_that_are_no_daemons() -> None:
    image = {**CLIENT, "entity": "1-rbd-disk"}
    found = plots(
        [
            ("ceph_objecter_op_w", OSD, [0, 1]),
            ("ceph_objecter_op_w", CLIENT, [0, 3]),
            ("ceph_librbd_wr", image, [0, 2]),
            ("ceph_client_rdlat_sum", CLIENT, [0, 1]),
            ("ceph_client_rdlat_count", CLIENT, [0, 4]),
            ("ceph_mds_request", {"daemon": "mds.a"}, [1, 9]),
        ]
    )
    assert found["ceph-clients"] == {
        "client.admin 7 write": [3.0],
        "client.admin 7 1-rbd-disk write": [2.0],
    }
    assert found["ceph-clients-latency"] == {"client.admin 7 read": [0.25]}
    assert found["ceph-metadata"] == {"mds.a": [8.0]}


def test_what_ceph_itself_shows_to_prometheus_is_understood() -> None:
    found = plots([("ceph_osd_op_r", {"ceph_daemon": "osd.3", "instance": "mgr:9283"}, [0, 5])])
    assert found["ceph-operations"] == {"osd.3 read": [5.0]}


def test_without_ceph_the_page_has_no_plot_of_it_and_grafana_has_them_all() -> None:
    disk = {"device": "sda", "instance": "a"}
    found = plots([("node_disk_io_time_seconds_total", disk, [0, 0.5])])
    assert found["io-time"] == {"sda": [500.0]}
    assert not [key for key in found if key.startswith("ceph-")]
    asked = [p["targets"][0]["target"] for p in dashboard_json(VOLUMES)["panels"] if "targets" in p]
    assert "volumes.ceph-latency;$experiment;$row" in asked
    assert not [p for d in DASHBOARDS.values() if d != VOLUMES for p in d.plots if p.extra]


def test_ceph_is_no_program_of_the_run() -> None:
    rows = made([("ceph_osd_op_w_latency_sum", OSD, [1, 2]), ("p99_latency_sum", {}, [1, 2])])
    frame: pd.DataFrame = run_uses(experiment(), rows, None)
    assert list(frame[frame["kind"] == "program"]["entity"].unique()) == ["p99_latency_sum"]
