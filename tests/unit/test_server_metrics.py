"""`/metrics` of a server: the newest values of running experiments, by user; reading of spools."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from penstock.parts.monitoring.collectors.scrape import Scraper
from penstock.parts.monitoring.experiments import latest as newest_module
from penstock.parts.monitoring.experiments.latest import Name, Newest, Value
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels, points
from penstock.parts.monitoring.experiments.spool import Spool
from penstock.testing import MemorySink
from tests.support.waiting import until
from tests.unit.test_collectors import at_work
from tests.unit.test_experiment_server import Server

S = 10**9
OWN = "penstock_server_experiments_running"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.end()


def shown(server: Server, **headers: str) -> dict[tuple[str, str], Any]:
    """Samples by metric and experiment, parsed with the library of the format."""
    response = server.http.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    return {
        (sample.name, sample.labels.get("penstock_experiment", "")): sample
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_the_newest_value_of_each_running_series(server: Server) -> None:
    assert shown(server)[OWN, ""].value == 0
    for name in ("a", "b"):
        assert server.http.post(f"/exp/{name}").status_code == 201
    now = time.time_ns()
    options = {"labels": {"node.name": 'n"1\n'}, "unit": "B"}
    # the newest point is neither the last one nor in the last batch
    assert server.push("a", 0, [now + 1, now + 3, now + 2], [1, 3, 2], **options).status_code == 201
    assert server.push("a", 1, [now], [7], **options).status_code == 201
    assert server.push("a", 2, [now], [5], metric="disk.reads_total").status_code == 201
    assert server.push("b", 0, [now + 9], [-4]).status_code == 201
    texts = {"source": "t", "number": 0, "metric": "state", "utc_ns": [now], "text": ["on"]}
    assert server.http.post("/api/v1/experiments/a/points", json=texts).status_code == 201
    samples = shown(server)
    assert {key for key in samples if key[1]} == {
        ("m", "a#1"),
        ("m", "b#1"),
        ("disk_reads_total", "a#1"),
        *{("penstock_experiment_start_time_seconds", f"{name}#1") for name in ("a", "b")},
    }
    sample = samples["m", "a#1"]
    assert sample.value == 3
    assert round(sample.timestamp.sec * S + sample.timestamp.nsec) == now + 3
    assert sample.labels["node_name"] == 'n"1\n'
    assert sample.labels["penstock_source"] == "s"
    assert samples["m", "b#1"].value == -4
    assert samples[OWN, ""].value == 2
    # new points, and an experiment that has ended
    assert server.push("a", 3, [now + 10], [11], **options).status_code == 201
    assert server.http.put("/exp/b").status_code == 201
    samples = shown(server)
    assert samples["m", "a#1"].value == 11
    assert ("m", "b#1") not in samples
    assert samples[OWN, ""].value == 1


def test_metrics_that_have_the_same_name_in_openmetrics_are_distinct(server: Server) -> None:
    assert server.http.post("/exp/a").status_code == 201
    for number, metric in enumerate(("a.b", "a-b", "a_b")):
        assert (
            server.push("a", number, [time.time_ns()], [number], metric=metric).status_code == 201
        )
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    samples = [s for family in families if family.name == "a_b" for s in family.samples]
    assert sorted((s.value, s.labels.get("penstock_metric")) for s in samples) == [
        (0, "a.b"),
        (1, "a-b"),
        (2, None),
    ]


def test_a_scraper_reads_it_like_any_exporter(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITS_TOKEN", server.token)
    assert server.http.post("/exp/a").status_code == 201
    assert server.push("a", 0, [time.time_ns()], [42]).status_code == 201
    settings = {"targets": [f"{server.url}/metrics"], "interval_s": 0.05}
    scraper = Scraper("s", {**settings, "token_from": "ITS_TOKEN"})
    sink = MemorySink()
    with at_work(scraper, sink):
        until(lambda: scraper.targets[0].succeeded >= 3)
    assert not scraper.intake.receipt.refused
    assert {r["float"] for r in sink.rows("s") if r["metric"] == "m"} == {42.0}


def test_users_see_only_their_own_experiments(tmp_path: Path) -> None:
    running = Server(tmp_path)
    try:
        auth_headers = {}
        for name in ("ada", "bob"):
            token = running.cli("monitor", "token", name, PENSTOCK_SERVER="").stdout.split()[-1]
            auth_headers[name] = {"Authorization": f"Bearer {token}"}
            assert (
                running.http.post(f"/exp/of-{name}", headers=auth_headers[name]).status_code == 201
            )
        assert httpx.get(f"{running.url}/metrics").status_code == 401
        wrong = {"Authorization": "Bearer nothing"}
        assert running.http.get("/metrics", headers=wrong).status_code == 401
        for name, headers in auth_headers.items():
            visible = {experiment for _, experiment in shown(running, **headers)} - {""}
            assert visible == {f"of-{name}#1"}
        assert running.http.post("/metrics", headers=auth_headers["ada"]).status_code == 405
    finally:
        running.end()


def batch(number: int, at: int, values: list[float]) -> Batch:
    times = at + np.arange(len(values))
    table = points(metric=["m"] * len(values), labels="{}", utc_ns=times, float=values)
    return Batch("s", number, table)


def test_only_new_batches_are_read_and_at_most_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_module, "MOST_READ", 20_000)
    spool = Spool.create(tmp_path / "x.live")
    name = Name("s", "m", "{}")
    for number in range(20):
        spool.write(batch(number, 1000 * number, [float(number)] * 500))
    read: list[int] = []
    original = newest_module._take

    def take(values: dict[Name, Value], batch_read: Batch) -> None:
        read.append(batch_read.number)
        original(values, batch_read)

    monkeypatch.setattr(newest_module, "_take", take)
    newest = Newest()
    assert newest.of(spool.directory) == {name: Value(19_499, 19.0)}
    assert read
    assert read == list(range(read[0], 20))
    assert read[0] > 10
    read.clear()
    assert newest.of(spool.directory) == {name: Value(19_499, 19.0)}
    assert read == []
    spool.write(batch(20, 1 << 40, [math.inf]))
    assert newest.of(spool.directory) == {name: Value(1 << 40, math.inf)}
    assert read == [20]
    # a single batch above the limit is read
    spool.write(batch(21, 1 << 41, [1.0] * 10_000))
    assert newest.of(spool.directory)[name].value == 1.0
    newest.keep([])
    assert newest._values == {}
    assert newest.of(tmp_path / "gone.live") == {}


def test_the_number_of_series_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_module, "MOST_SERIES", 5)
    spool = Spool.create(tmp_path / "x.live")
    labels = [canonical_labels({"n": str(n)}) for n in range(10)]
    table = points(metric=["m"] * 10, labels=labels, utc_ns=range(10), integer=range(10))
    spool.write(Batch("s", 0, table))
    values = Newest().of(spool.directory)
    assert len(values) == 5
    assert {v.value for v in values.values()} <= set(map(float, range(10)))
