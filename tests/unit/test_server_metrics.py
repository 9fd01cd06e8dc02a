"""`/metrics` of a server: the newest numbers of what runs, to who may see it; and how they are found."""

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
from tests.unit.test_collectors import at_work, until
from tests.unit.test_experiment_server import Server

S = 10**9
OWN = "penstock_server_experiments_running"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.end()


def shown(server: Server, **headers: str) -> dict[tuple[str, str], Any]:
    """By metric and experiment the sample, as the format's own library reads it."""
    answer = server.http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return {
        (sample.name, sample.labels.get("penstock_experiment", "")): sample
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_newest_number_of_each_series_that_runs(server: Server) -> None:
    assert shown(server)[OWN, ""].value == 0
    for name in ("a", "b"):
        assert server.http.post(f"/exp/{name}").status_code == 201
    now = time.time_ns()
    more = {"labels": {"node.name": 'n"1\n'}, "unit": "B"}
    # the newest is neither the last nor of the last batch alone
    assert server.push("a", 0, [now + 1, now + 3, now + 2], [1, 3, 2], **more).status_code == 201
    assert server.push("a", 1, [now], [7], **more).status_code == 201
    assert server.push("a", 2, [now], [5], metric="disk.reads_total").status_code == 201
    assert server.push("b", 0, [now + 9], [-4]).status_code == 201
    texts = {"source": "t", "number": 0, "metric": "state", "utc_ns": [now], "text": ["on"]}
    assert server.http.post("/api/v1/experiments/a/points", json=texts).status_code == 201
    found = shown(server)
    assert {key for key in found if key[1]} == {
        ("m", "a#1"),
        ("m", "b#1"),
        ("disk_reads_total", "a#1"),
        *{("penstock_experiment_start_time_seconds", f"{name}#1") for name in ("a", "b")},
    }
    sample = found["m", "a#1"]
    assert sample.value == 3
    assert round(sample.timestamp.sec * S + sample.timestamp.nsec) == now + 3
    assert sample.labels["node_name"] == 'n"1\n'
    assert sample.labels["penstock_source"] == "s"
    assert found["m", "b#1"].value == -4
    assert found[OWN, ""].value == 2
    # what came since, and what has ended
    assert server.push("a", 3, [now + 10], [11], **more).status_code == 201
    assert server.http.put("/exp/b").status_code == 201
    found = shown(server)
    assert found["m", "a#1"].value == 11
    assert ("m", "b#1") not in found
    assert found[OWN, ""].value == 1


def test_a_scraper_takes_it_as_that_of_any_exporter(
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


def test_users_see_their_own_and_others_nothing(tmp_path: Path) -> None:
    running = Server(tmp_path)
    try:
        told = {}
        for name in ("ada", "bob"):
            token = running.cli("monitor", "token", name, PENSTOCK_SERVER="").stdout.split()[-1]
            told[name] = {"Authorization": f"Bearer {token}"}
            assert running.http.post(f"/exp/of-{name}", headers=told[name]).status_code == 201
        assert httpx.get(f"{running.url}/metrics").status_code == 401
        wrong = {"Authorization": "Bearer nothing"}
        assert running.http.get("/metrics", headers=wrong).status_code == 401
        for name, headers in told.items():
            seen = {experiment for _, experiment in shown(running, **headers)} - {""}
            assert seen == {f"of-{name}#1"}
        assert running.http.post("/metrics", headers=told["ada"]).status_code == 405
    finally:
        running.end()


def batch(number: int, at: int, values: list[float]) -> Batch:
    times = at + np.arange(len(values))
    table = points(metric=["m"] * len(values), labels="{}", utc_ns=times, float=values)
    return Batch("s", number, table)


def test_a_look_reads_what_is_new_and_of_much_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_module, "MOST_READ", 20_000)
    spool = Spool.create(tmp_path / "x.live")
    name = Name("s", "m", "{}")
    for number in range(20):
        spool.write(batch(number, 1000 * number, [float(number)] * 500))
    read: list[int] = []
    took = newest_module._take

    def take(values: dict[Name, Value], one: Batch) -> None:
        read.append(one.number)
        took(values, one)

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
    # one batch that is more than all that would be read is read
    spool.write(batch(21, 1 << 41, [1.0] * 10_000))
    assert newest.of(spool.directory)[name].value == 1.0
    newest.keep([])
    assert newest._values == {}
    assert newest.of(tmp_path / "gone.live") == {}


def test_series_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_module, "MOST_SERIES", 5)
    spool = Spool.create(tmp_path / "x.live")
    labels = [canonical_labels({"n": str(n)}) for n in range(10)]
    table = points(metric=["m"] * 10, labels=labels, utc_ns=range(10), integer=range(10))
    spool.write(Batch("s", 0, table))
    found = Newest().of(spool.directory)
    assert len(found) == 5
    assert {v.value for v in found.values()} <= set(map(float, range(10)))
