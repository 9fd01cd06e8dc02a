"""Points fetched from remote metric servers: fetched once, read offline, reported when missing."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import Catalogue
from penstock.archive.selection import Selection
from penstock.archive.series.read_series import of_selection
from penstock.errors import BadInput, PenstockError, Upstream
from penstock.parts.monitoring.experiments.experiment import Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, points
from penstock.parts.monitoring.experiments.targets import Target, Targets
from penstock.parts.monitoring.queries import fetch as fetching
from penstock.parts.monitoring.queries import fetch_records as fetched
from penstock.parts.monitoring.queries import remote_query as elsewhere
from penstock.parts.monitoring.queries.answers import answer
from penstock.parts.monitoring.queries.remote_query import Question
from penstock.parts.monitoring.servers.reader import Server
from penstock.parts.server.app import application
from penstock.parts.server.traces import Served
from penstock.plugins import METRIC_SERVERS
from tests.support import commands

S = 10**9
T0 = 1_700_000_000 * S
LONG = 12_000


class Prometheus(http.server.BaseHTTPRequestHandler):
    """Two instances with a point per second; `b` lacks ten. The query `bad` is a parse error."""

    requests: list[dict[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        parameters = dict(urllib.parse.parse_qsl(body))
        self.requests.append(parameters)
        if parameters["query"] == "bad":
            self.reply(400, {"status": "error", "error": "parse error"})
            return
        first, last, step = (float(parameters[k]) for k in ("start", "end", "step"))
        times = [first + k * step for k in range(int((last - first) / step + 1e-9) + 1)]
        with_gap = [t for t in times if not 100 <= t - T0 / S < 110]
        result = [
            {"metric": {"__name__": "c", "i": i}, "values": [[t, f"{t % 97:g}"] for t in present]}
            for i, present in (("a", times), ("b", with_gap))
        ]
        self.reply(200, {"status": "success", "data": {"resultType": "matrix", "result": result}})

    def reply(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class Influx(Prometheus):
    """InfluxDB server of one field of one measurement, with one point."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.requests.append(dict(urllib.parse.parse_qsl(body)))
        series = {"name": "ebpf", "columns": ["time", "io"], "values": [[T0, 1.5]]}
        self.reply(200, {"results": [{"series": [series]}]})


class MetricServer:
    """A metric server of this process and the requests to it."""

    def __init__(self, server: type[Prometheus] = Prometheus) -> None:
        self.requests: list[dict[str, str]] = []
        handler = type("Mine", (server,), {"requests": self.requests})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def prometheus() -> Iterator[MetricServer]:
    server = MetricServer()
    yield server
    server.end()


@pytest.fixture
def store(tmp_path: Path) -> Experiments:
    (tmp_path / "home").mkdir()
    return Experiments(Catalogue(tmp_path / "archive.sqlite"), tmp_path / "home")


def targets_of(address: str, query: str = "c") -> Targets:
    named = {"cpu": {"metric": "cpu", "server": "prom", "query": query}}
    return Targets({"prom": Target("prom", "prometheus", address)}, named)


def text(store: Experiments, targets: Targets, **options: Any) -> str:
    return b"".join(answer(store, targets, "x", "ada", options).parts).decode()


def stopped_experiment(store: Experiments, targets: Targets, seconds: int = 200) -> Any:
    experiment = store.start("x", "ada", at_ns=T0)
    store.sink(experiment).write(Batch("own", 0, points(metric="m", utc_ns=[T0 + S], float=[1.0])))
    fetching.fetch_named(store, targets, experiment, T0 + seconds * S)
    return store.stop(experiment, at_ns=T0 + seconds * S)


def test_fetched_points_are_archived_and_read_without_the_server(
    store: Experiments, prometheus: MetricServer
) -> None:
    targets = targets_of(prometheus.address)
    experiment = store.start("x", "ada", at_ns=T0)
    fetching.fetch_named(store, targets, experiment, T0 + 60 * S)
    requests_before = len(prometheus.requests)
    fetching.fetch_named(store, targets, experiment, T0 + LONG * S)
    assert float(prometheus.requests[requests_before]["start"]) == T0 / S + 61, (
        "range overlaps the first fetch"
    )
    requests_so_far = len(prometheus.requests)
    fetching.fetch_named(store, targets, experiment, T0 + LONG * S)
    assert len(prometheus.requests) == requests_so_far, "a fetched range was requested again"
    store.stop(experiment, at_ns=T0 + LONG * S)
    stopped = store.find("x", "ada")
    online = elsewhere.read(
        targets.servers["prom"], Question.of(targets.metrics["cpu"]), T0, T0 + LONG * S
    )
    prometheus.end()
    archived = store.recorded(stopped, "cpu")
    assert archived.points.num_rows == online.points.num_rows == 2 * (LONG + 1) - 10
    assert set(archived.series["source"].to_pylist()) == {"prom/cpu"}
    assert archived.verdict == "unknown"
    (gap,) = archived.gaps.to_pylist()
    assert (gap["kind"], gap["detail"]) == ("lost", "10 steps without a value")
    (receipt,) = Bundle.open(stopped.path).manifest["fetched"]
    assert (receipt["query"], receipt["requests"], receipt["points"]) == (
        "c",
        3,
        archived.points.num_rows,
    )
    assert receipt["ranges"][0] == [T0, T0 + 60 * S]
    assert receipt["ranges"][-1][1] == T0 + LONG * S
    by_target = text(store, targets, metric="cpu")
    by_name = text(store, Targets(), metric="cpu")
    assert by_target == by_name
    assert len(by_target.splitlines()) == LONG + 2
    by_query = text(store, Targets(), server="prom", query="c")
    assert by_query.splitlines()[1:] == by_target.splitlines()[1:]
    assert by_query.startswith('timestamp,"c{')
    selected = of_selection(Selection("x", "run", stopped.path, [stopped.path]), None)
    assert {s.quantity for s in selected.series} == {"cpu"}
    with pytest.raises(Unknown):
        text(store, targets, metric="cpu", query="other", server="none")


def test_kill_between_batches_and_receipt_stores_no_duplicates(
    store: Experiments, prometheus: MetricServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = targets_of(prometheus.address)
    monkeypatch.setattr(fetching, "BATCH_POINTS", 50)
    experiment = store.start("x", "ada", at_ns=T0)
    with monkeypatch.context() as m:
        append = fetched.append

        def append_or_die(live: Path, line: Any) -> None:
            if line["state"] == "kept":
                raise KeyboardInterrupt
            append(live, line)

        m.setattr(fetched, "append", append_or_die)
        with pytest.raises(KeyboardInterrupt):
            fetching.fetch_named(store, targets, experiment, T0 + 60 * S)
    assert "not read to its end" in fetched.missing(fetched.receipts_of(experiment))
    fetching.fetch_named(store, targets, experiment, T0 + 200 * S)
    archived = store.recorded(store.stop(experiment, at_ns=T0 + 200 * S), "cpu")
    assert archived.points.num_rows == 2 * 201 - 10
    assert sum(archived.series["duplicate"].to_pylist()) == 0
    assert not any(g["kind"] == "batches" for g in archived.gaps.to_pylist())


def test_points_of_a_stopped_experiment_are_fetched_later(
    store: Experiments, prometheus: MetricServer
) -> None:
    down = targets_of("127.0.0.1:1")
    experiment = store.start("x", "ada", at_ns=T0)
    store.sink(experiment).write(Batch("own", 0, points(metric="m", utc_ns=[T0 + S], float=[1.0])))
    with pytest.raises(Upstream, match=r"cpu: http://127\.0\.0\.1:1 does not answer"):
        fetching.fetch_named(store, down, experiment, T0 + 200 * S)
    stopped = store.stop(experiment, at_ns=T0 + 200 * S)
    manifest = Bundle.open(stopped.path).manifest
    assert not stopped.valid
    assert manifest["reason"].startswith("not fetched: cpu of prom (http://127.0.0.1:1 does not")
    for _ in range(2):
        (receipt,) = fetching.fetch_requested(store, targets_of(prometheus.address), stopped, {})
    assert len(prometheus.requests) == 1
    assert receipt["points"] == 2 * 201 - 10
    bundle = Bundle.open(stopped.path)
    assert bundle.manifest["valid"]
    assert bundle.manifest["fetched"] == [receipt]
    assert store.find("x", "ada").valid
    archived = store.recorded(stopped)
    assert sorted(set(archived.series["metric"].to_pylist())) == ["cpu", "m"]
    assert archived.points.num_rows == receipt["points"] + 1
    assert len(set(archived.series["series_id"].to_pylist())) == 3
    # as after a kill between the series and the receipt
    del bundle.manifest["fetched"]
    bundle.amend()
    fetching.fetch_requested(store, targets_of(prometheus.address), stopped, {})
    assert store.recorded(stopped).points.num_rows == archived.points.num_rows
    # another request, of a query
    request = {"server": "prom", "query": "other", "metric": "o"}
    fetching.fetch_requested(store, targets_of(prometheus.address), stopped, request)
    assert store.recorded(stopped, "o").points.num_rows == receipt["points"]
    assert store.recorded(stopped, "cpu").points.num_rows == receipt["points"]


def test_unresponsive_server_is_contacted_once(store: Experiments) -> None:
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0])
                    accepted[-1].close()

        threading.Thread(target=close_all, daemon=True).start()
        named = {
            f"m{n}": {"metric": f"m{n}", "server": "prom", "query": f"q{n}"} for n in range(20)
        }
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        targets = Targets({"prom": Target("prom", "prometheus", address)}, named)
        experiment = store.start("x", "ada", at_ns=T0)
        with pytest.raises(Upstream, match=r"m0: .* does not answer.*; m19: "):
            fetching.fetch_named(store, targets, experiment, T0 + S)
    assert len(accepted) == 1
    assert {r["metric"] for r in fetched.receipts_of(experiment) if "error" in r} == set(named)


def test_bad_fetch_requests_are_refused(store: Experiments, prometheus: MetricServer) -> None:
    targets = targets_of(prometheus.address)
    experiment = store.start("x", "ada")
    with pytest.raises(BadInput, match="parse error"):
        fetching.fetch_requested(store, targets, experiment, {"server": "prom", "query": "bad"})
    assert fetched.receipts_of(experiment) == [], "an invalid query left a receipt"
    with pytest.raises(Unknown, match="expected one of prom"):
        fetching.fetch_requested(store, targets, experiment, {"server": "other", "query": "c"})
    with pytest.raises(Unknown, match="expected a query, or one of cpu"):
        fetching.fetch_requested(store, targets, experiment, {"metric": "m"})
    with pytest.raises(BadInput, match="no named metric"):
        fetching.fetch_requested(store, Targets(), experiment, {})
    fetching.fetch_requested(
        store, targets, experiment, {"server": "prom", "query": "c", "metric": "cpu"}
    )
    request = {"server": "prom", "query": "other", "metric": "cpu"}
    with pytest.raises(BadInput, match="found query 'other'; expected 'c'"):
        fetching.fetch_requested(store, targets, experiment, request)
    request = {"server": "prom", "query": "\ud800", "metric": "half"}
    with pytest.raises(BadInput, match="that is no text"):
        fetching.fetch_requested(store, targets, experiment, request)
    too_long = {"server": "prom", "query": "c" * 501}
    with pytest.raises(BadInput, match="expected a metric's name"):
        fetching.fetch_requested(store, targets, experiment, too_long)


def test_password_of_an_address_is_neither_stored_nor_printed(
    store: Experiments, prometheus: MetricServer
) -> None:
    secret = targets_of(f"http://me:secret@{prometheus.address}")
    stopped = stopped_experiment(store, secret)
    assert "secret" not in (stopped.path / "manifest.json").read_text()
    experiment = store.start("y", "ada", at_ns=T0)
    with pytest.raises(Upstream) as error:
        fetching.fetch_named(store, targets_of("http://me:secret@127.0.0.1:1"), experiment, T0 + S)
    assert "secret" not in str(error.value)


def test_unreachable_metric_server_is_a_bad_gateway(
    store: Experiments, tmp_path: Path, prometheus: MetricServer
) -> None:
    down, begin = targets_of("127.0.0.1:1"), int(time.time()) - 300
    app = application(Served([], None), "t", ("testserver",), lambda: store, targets=down)
    with TestClient(app, headers={"Authorization": "Bearer t"}) as client:
        assert client.post("/exp/x", json={"utc_time": begin}).status_code == 201
        responses = [
            client.request("GET", "/exp/x", json={"metric": "cpu"}),
            client.post("/api/v1/experiments/x/fetched", json={}),
        ]
        for response in responses:
            assert response.status_code == 502
            assert "http://127.0.0.1:1 does not answer" in response.json()["detail"]
        response = client.put("/exp/x", json={"utc_time": begin + 200})
        assert response.status_code == 201
        assert "does%20not%20answer" in response.headers["X-Penstock-Not-Fetched"]
    up = targets_of(prometheus.address)
    app = application(Served([], None), "t", ("testserver",), lambda: store, targets=up)
    with TestClient(app, headers={"Authorization": "Bearer t"}) as client:
        client.post("/exp/x", json={"utc_time": begin, "repeat": True})
        request = {"query": "sum(c)", "server": "prom", "step": "0.02s"}
        response = client.request("GET", "/exp/x", json=request)
        assert response.headers["X-Penstock-Query"] == "sum%28c%29"
        assert int(response.headers["X-Penstock-Requests"]) > 1
        response = client.request("GET", "/exp/x", json={**request, "step": "0.01ms"})
        assert response.status_code == 400
        assert "expected a longer step" in response.json()["detail"]
        response = client.put("/exp/x", json={"utc_time": begin + 200})
        assert "X-Penstock-Not-Fetched" not in response.headers
        prometheus.end()
        response = client.request("GET", "/exp/x", json={"metric": "cpu"})
        assert response.status_code == 200
        assert len(response.text.splitlines()) == 202
        assert response.headers["X-Penstock-Requests"] == "1"


def test_queries_of_monex_reach_their_servers(store: Experiments, prometheus: MetricServer) -> None:
    # fails if a query of InfluxDB names no database, or another one
    influx = MetricServer(Influx)
    servers = {"default": Target("default", "influxdb", influx.address)}
    servers["prom"] = Target("prom", "prometheus", prometheus.address)
    targets = Targets(servers, {})
    store.stop(store.start("x", "ada", at_ns=T0), at_ns=T0 + 5 * S)
    rows = text(store, targets, query="c", server="prom", labels=["i"], step="5s").splitlines()
    assert rows[0] == "timestamp,a,b"
    assert len(rows) == 3
    assert text(store, targets, measurement="ebpf", fields=["io"], type="sample").splitlines()[1:]
    selected = "SELECT io FROM ebpf WHERE time >= $start AND time <= $end"
    assert "1.5" in text(store, targets, query=selected, database="mine", metric="io")
    influx.end()
    assert [request["db"] for request in influx.requests] == ["monex", "mine"]
    assert influx.requests[0]["q"].startswith('SELECT "io" FROM "ebpf" WHERE')
    with pytest.raises(BadInput, match="expected metric, or server with query or measurement"):
        text(store, targets, labels=["i"])


def test_fetch_command(tmp_path: Path, prometheus: MetricServer) -> None:
    begin = int(time.time()) - 300
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    environment.pop("PENSTOCK_SERVER", None)

    def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "penstock", *arguments]
        return commands.run(argv, env=environment, capture_output=True, text=True, check=False)

    assert penstock("monitor", "start", "x", "--at", str(begin)).returncode == 0
    fetch = ["monitor", "fetch", "x", "--query", "c", "-m", "cpu", "--from"]
    result = penstock(*fetch, "http://127.0.0.1:1")
    assert result.returncode == 1
    assert "http://127.0.0.1:1 does not answer" in result.stderr
    assert "Traceback" not in result.stderr
    assert penstock("monitor", "stop", "x", "--at", str(begin + 200)).returncode == 0
    result = penstock(*fetch, f"http://{prometheus.address}")
    assert result.returncode == 0, result.stderr
    assert f"cpu: 402 points of {prometheus.address} in 1 request" in result.stderr
    prometheus.end()
    result = penstock("monitor", "get", "x", "-m", "cpu")
    assert len(result.stdout.splitlines()) == 202
    assert penstock("export", "x", "csv", "-o", str(tmp_path / "out")).returncode == 0
    assert len((tmp_path / "out" / "cpu.csv").read_text().splitlines()) == 202


#: a series of InfluxDB, with one column
SERIES = {"name": "m", "values": [[1]]}


@pytest.mark.parametrize(
    ("kind", "answer", "message"),
    [
        (
            "influxdb",
            {"results": [{"series": [{**SERIES, "columns": ["time"], "partial": True}]}]},
            "found a part of the answer",
        ),
        (
            "influxdb",
            {"results": [{"series": [{**SERIES, "columns": ["time", "v"]}]}]},
            "without results of series",
        ),
        (
            "prometheus",
            {"isPartial": True, "data": {"resultType": "matrix", "result": []}},
            "found a part of the answer",
        ),
        (
            "prometheus",
            {
                "data": {"resultType": "matrix", "result": []},
                "warnings": ["receive series from store-1: deadline exceeded"],
            },
            r"found a part of the answer \(receive series from store-1",
        ),
        (
            "prometheus",
            {"data": {"resultType": "matrix", "result": [{"metric": {}, "histograms": [[1, {}]]}]}},
            "found native histograms",
        ),
    ],
)
def test_partial_answers_are_refused(
    kind: str, answer: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "ask", lambda *_, **__: answer)
    settings = {"database": "x"} if kind == "influxdb" else {}
    reader = METRIC_SERVERS.load(kind)("http://127.0.0.1:1", settings)
    with pytest.raises(PenstockError, match=message):
        reader.read("SELECT v FROM m WHERE time > $start AND time < $end", 0, 10, 1)


def test_series_of_several_metrics_stay_apart(
    store: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {kind: Target(kind, kind, "127.0.0.1:1") for kind in ("prometheus", "influxdb")}
    targets = Targets(servers, {})
    store.stop(store.start("x", "ada", at_ns=T0), at_ns=T0 + S)
    result = [
        {"metric": {"__name__": name, "device": "sda"}, "values": [[T0 / S, value]]}
        for name, value in (("node_disk_reads", "1"), ("node_disk_writes", "2"))
    ]
    matrix = {"data": {"resultType": "matrix", "result": result}}
    monkeypatch.setattr(Server, "ask", lambda *_, **__: matrix)
    query = '{__name__=~"node_disk_(reads|writes)"}'
    rows = text(store, targets, query=query, server="prometheus", labels=["name"])
    assert rows == "timestamp,node_disk_reads,node_disk_writes\n1700000000,1,2\n"
    columns = {"name": "disk", "columns": ["time", "busy", "idle"], "values": [[T0, 3, 97]]}
    monkeypatch.setattr(Server, "ask", lambda *_, **__: {"results": [{"series": [columns]}]})
    query = "SELECT busy, idle FROM disk WHERE time >= $start AND time <= $end"
    rows = text(store, targets, query=query, server="influxdb", database="d", labels=["name"])
    assert rows == "timestamp,disk_busy,disk_idle\n1700000000,3,97\n"


def test_integers_of_influxdb_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [9007199254740993, 1, 0.5, 18446744073709551615]
    series = {
        "name": "m",
        "columns": ["time", "v"],
        "values": [[t, v] for t, v in enumerate(values)],
    }
    monkeypatch.setattr(Server, "ask", lambda *_, **__: {"results": [{"series": [series]}]})
    reader = METRIC_SERVERS.load("influxdb")("http://127.0.0.1:1", {"database": "x"})
    query = "SELECT v FROM m WHERE time > $start AND time < $end"
    rows = sorted(reader.read(query, 0, 10, 1).points.to_pylist(), key=lambda r: r["utc_ns"])
    assert [r["integer"] for r in rows] == [9007199254740993, None, None, None]
    assert [r["float"] for r in rows] == [None, 1.0, 0.5, 2.0**64]


def test_influxdb_series_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        {"series": [{"name": "m", "columns": ["time", "mean"], "values": [[1, value]]}]}
        for value in (1.5, 2.5)
    ]
    monkeypatch.setattr(Server, "ask", lambda *_, **__: {"results": results})
    reader = METRIC_SERVERS.load("influxdb")("http://127.0.0.1:1", {"database": "x"})
    one = "SELECT mean(v) FROM m WHERE host='{}' AND time > $start AND time < $end"
    with pytest.raises(BadInput, match=r"found 'm_mean' several times for .*such as those of AS"):
        reader.read("; ".join(one.format(host) for host in "ab"), 0, 10, 1)


def test_graphite_series_of_one_name_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(*names: tuple[str, str]) -> list[dict[str, Any]]:
        tagged = [{"target": target, "tags": {"name": name}} for target, name in names]
        return [{**s, "datapoints": [[float(n), 1]]} for n, s in enumerate(tagged)]

    reader = METRIC_SERVERS.load("graphite")("http://127.0.0.1:1", {})
    reply = answered(("a", "a"), ("keepLastValue(a)", "a"))
    monkeypatch.setattr(Server, "ask", lambda *_, **__: reply)
    table = reader.read("group(a,keepLastValue(a))", 0, 9 * S, S).points
    assert table["labels"].to_pylist() == [
        '{"name":"a"}',
        '{"name":"a","target":"keepLastValue(a)"}',
    ]
    monkeypatch.setattr(Server, "ask", lambda *_, **__: answered(*[("x", "x")] * 3))
    with pytest.raises(BadInput, match=r"found several series 'x' for .*expected different names"):
        reader.read('alias(servers.*.cpu,"x")', 0, 9 * S, S)


def test_remarks_on_a_query_are_no_partial_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    remark = "PromQL info: metric might not be a counter"
    answer = {"data": {"resultType": "matrix", "result": []}, "warnings": [remark]}
    monkeypatch.setattr(Server, "ask", lambda *_, **__: answer)
    reader = METRIC_SERVERS.load("prometheus")("http://127.0.0.1:1", {})
    assert reader.read("rate(m[5s])", 0, S, S).points.num_rows == 0


def test_non_finite_graphite_values_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [[1.5, 1], [float("nan"), 2], [float("inf"), 3], [None, 4]]
    monkeypatch.setattr(Server, "ask", lambda *_, **__: [{"target": "a", "datapoints": rows}])
    result = METRIC_SERVERS.load("graphite")("http://127.0.0.1:1", {}).read(
        "a", 0, 9 * 10**9, 10**9
    )
    assert result.points.column("float").to_pylist() == [1.5]
