"""Points of servers elsewhere in an experiment: fetched once, read without it, told where it is not."""

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
    """Two instances, a point each second but for a hole of ten in one of them; a query `bad` is none."""

    asked: list[dict[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        said = dict(urllib.parse.parse_qsl(body))
        self.asked.append(said)
        if said["query"] == "bad":
            self.say(400, {"status": "error", "error": "parse error"})
            return
        first, last, step = (float(said[k]) for k in ("start", "end", "step"))
        times = [first + k * step for k in range(int((last - first) / step + 1e-9) + 1)]
        hole = [t for t in times if not 100 <= t - T0 / S < 110]
        result = [
            {"metric": {"__name__": "c", "i": i}, "values": [[t, f"{t % 97:g}"] for t in these]}
            for i, these in (("a", times), ("b", hole))
        ]
        self.say(200, {"status": "success", "data": {"resultType": "matrix", "result": result}})

    def say(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class Influx(Prometheus):
    """One field of one measurement, a point at the begin of each window."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(dict(urllib.parse.parse_qsl(body)))
        series = {"name": "ebpf", "columns": ["time", "io"], "values": [[T0, 1.5]]}
        self.say(200, {"results": [{"series": [series]}]})


class Elsewhere:
    def __init__(self, server: type[Prometheus] = Prometheus) -> None:
        self.asked: list[dict[str, str]] = []
        handler = type("Mine", (server,), {"asked": self.asked})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def prometheus() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.end()


@pytest.fixture
def store(tmp_path: Path) -> Experiments:
    (tmp_path / "home").mkdir()
    return Experiments(Catalogue(tmp_path / "archive.sqlite"), tmp_path / "home")


def targets_of(address: str, query: str = "c") -> Targets:
    named = {"cpu": {"metric": "cpu", "server": "prom", "query": query}}
    return Targets({"prom": Target("prom", "prometheus", address)}, named)


def text(store: Experiments, targets: Targets, **options: Any) -> str:
    return b"".join(answer(store, targets, "x", "ada", options).parts).decode()


def ended(store: Experiments, targets: Targets, seconds: int = 200) -> Any:
    begun = store.start("x", "ada", at_ns=T0)
    store.sink(begun).write(Batch("own", 0, points(metric="m", utc_ns=[T0 + S], float=[1.0])))
    fetching.fetch_named(store, targets, begun, T0 + seconds * S)
    return store.stop(begun, at_ns=T0 + seconds * S)


def test_what_was_fetched_is_in_the_archive_and_the_same_without_the_server(
    store: Experiments, prometheus: Elsewhere
) -> None:
    targets = targets_of(prometheus.address)
    begun = store.start("x", "ada", at_ns=T0)
    fetching.fetch_named(store, targets, begun, T0 + 60 * S)
    before = len(prometheus.asked)
    fetching.fetch_named(store, targets, begun, T0 + LONG * S)
    assert float(prometheus.asked[before]["start"]) == T0 / S + 61, "it goes on where it was"
    again = len(prometheus.asked)
    fetching.fetch_named(store, targets, begun, T0 + LONG * S)
    assert len(prometheus.asked) == again, "what was fetched is not asked for again"
    store.stop(begun, at_ns=T0 + LONG * S)
    found = store.find("x", "ada")
    online = elsewhere.read(
        targets.servers["prom"], Question.of(targets.metrics["cpu"]), T0, T0 + LONG * S
    )
    prometheus.end()
    made = store.recorded(found, "cpu")
    assert made.points.num_rows == online.points.num_rows == 2 * (LONG + 1) - 10
    assert set(made.series["source"].to_pylist()) == {"prom/cpu"}
    assert made.verdict == "unknown"
    (gap,) = made.gaps.to_pylist()
    assert (gap["kind"], gap["detail"]) == ("lost", "10 steps without a value")
    (receipt,) = Bundle.open(found.path).manifest["fetched"]
    assert (receipt["query"], receipt["requests"], receipt["points"]) == (
        "c",
        3,
        made.points.num_rows,
    )
    assert receipt["ranges"][0] == [T0, T0 + 60 * S]
    assert receipt["ranges"][-1][1] == T0 + LONG * S
    asked = text(store, targets, metric="cpu")
    by_name = text(store, Targets(), metric="cpu")
    assert asked == by_name
    assert len(asked.splitlines()) == LONG + 2
    by_query = text(store, Targets(), server="prom", query="c")
    assert by_query.splitlines()[1:] == asked.splitlines()[1:]
    assert by_query.startswith('timestamp,"c{')
    drawn = of_selection(Selection("x", "run", found.path, [found.path]), None)
    assert {s.quantity for s in drawn.series} == {"cpu"}
    with pytest.raises(Unknown):
        text(store, targets, metric="cpu", query="other", server="none")


def test_a_kill_between_batches_and_receipt_doubles_nothing(
    store: Experiments, prometheus: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = targets_of(prometheus.address)
    monkeypatch.setattr(fetching, "BATCH_POINTS", 50)
    begun = store.start("x", "ada", at_ns=T0)
    with monkeypatch.context() as m:
        told = fetched.append

        def killed(live: Path, line: Any) -> None:
            if line["state"] == "kept":
                raise KeyboardInterrupt
            told(live, line)

        m.setattr(fetched, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            fetching.fetch_named(store, targets, begun, T0 + 60 * S)
    assert "not read to its end" in fetched.missing(fetched.receipts_of(begun))
    fetching.fetch_named(store, targets, begun, T0 + 200 * S)
    made = store.recorded(store.stop(begun, at_ns=T0 + 200 * S), "cpu")
    assert made.points.num_rows == 2 * 201 - 10
    assert sum(made.series["duplicate"].to_pylist()) == 0
    assert not any(g["kind"] == "batches" for g in made.gaps.to_pylist())


def test_an_experiment_that_has_ended_is_fetched_for_later(
    store: Experiments, prometheus: Elsewhere
) -> None:
    down = targets_of("127.0.0.1:1")
    begun = store.start("x", "ada", at_ns=T0)
    store.sink(begun).write(Batch("own", 0, points(metric="m", utc_ns=[T0 + S], float=[1.0])))
    with pytest.raises(Upstream, match=r"cpu: http://127\.0\.0\.1:1 does not answer"):
        fetching.fetch_named(store, down, begun, T0 + 200 * S)
    was = store.stop(begun, at_ns=T0 + 200 * S)
    said = Bundle.open(was.path).manifest
    assert not was.valid
    assert said["reason"].startswith("not fetched: cpu of prom (http://127.0.0.1:1 does not")
    for _ in range(2):
        (receipt,) = fetching.fetch_requested(store, targets_of(prometheus.address), was, {})
    assert len(prometheus.asked) == 1
    assert receipt["points"] == 2 * 201 - 10
    bundle = Bundle.open(was.path)
    assert bundle.manifest["valid"]
    assert bundle.manifest["fetched"] == [receipt]
    assert store.find("x", "ada").valid
    made = store.recorded(was)
    assert sorted(set(made.series["metric"].to_pylist())) == ["cpu", "m"]
    assert made.points.num_rows == receipt["points"] + 1
    assert len(set(made.series["series_id"].to_pylist())) == 3
    # a kill after the series, before the receipt
    del bundle.manifest["fetched"]
    bundle.amend()
    fetching.fetch_requested(store, targets_of(prometheus.address), was, {})
    assert store.recorded(was).points.num_rows == made.points.num_rows
    # one more, of a query
    one = {"server": "prom", "query": "other", "metric": "o"}
    fetching.fetch_requested(store, targets_of(prometheus.address), was, one)
    assert store.recorded(was, "o").points.num_rows == receipt["points"]
    assert store.recorded(was, "cpu").points.num_rows == receipt["points"]


def test_a_server_that_says_nothing_is_waited_for_once(store: Experiments) -> None:
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as deaf:

        def close_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(deaf.accept()[0])
                    accepted[-1].close()

        threading.Thread(target=close_all, daemon=True).start()
        named = {
            f"m{n}": {"metric": f"m{n}", "server": "prom", "query": f"q{n}"} for n in range(20)
        }
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        targets = Targets({"prom": Target("prom", "prometheus", address)}, named)
        begun = store.start("x", "ada", at_ns=T0)
        with pytest.raises(Upstream, match=r"m0: .* does not answer.*; m19: "):
            fetching.fetch_named(store, targets, begun, T0 + S)
    assert len(accepted) == 1
    assert {r["metric"] for r in fetched.receipts_of(begun) if "error" in r} == set(named)


def test_what_cannot_be_fetched_is_told(store: Experiments, prometheus: Elsewhere) -> None:
    targets = targets_of(prometheus.address)
    begun = store.start("x", "ada")
    with pytest.raises(BadInput, match="parse error"):
        fetching.fetch_requested(store, targets, begun, {"server": "prom", "query": "bad"})
    assert fetched.receipts_of(begun) == [], "a query that is none is not missed"
    with pytest.raises(Unknown, match="expected one of prom"):
        fetching.fetch_requested(store, targets, begun, {"server": "other", "query": "c"})
    with pytest.raises(Unknown, match="expected a query, or one of cpu"):
        fetching.fetch_requested(store, targets, begun, {"metric": "m"})
    with pytest.raises(BadInput, match="no named metric"):
        fetching.fetch_requested(store, Targets(), begun, {})
    fetching.fetch_requested(
        store, targets, begun, {"server": "prom", "query": "c", "metric": "cpu"}
    )
    said = {"server": "prom", "query": "other", "metric": "cpu"}
    with pytest.raises(BadInput, match="found query 'other'; expected 'c'"):
        fetching.fetch_requested(store, targets, begun, said)
    said = {"server": "prom", "query": "\ud800", "metric": "half"}
    with pytest.raises(BadInput, match="that is no text"):
        fetching.fetch_requested(store, targets, begun, said)
    long = {"server": "prom", "query": "c" * 501}
    with pytest.raises(BadInput, match="expected a metric's name"):
        fetching.fetch_requested(store, targets, begun, long)


def test_a_password_in_an_address_is_neither_kept_nor_told(
    store: Experiments, prometheus: Elsewhere
) -> None:
    secret = targets_of(f"http://me:secret@{prometheus.address}")
    was = ended(store, secret)
    assert "secret" not in (was.path / "manifest.json").read_text()
    begun = store.start("y", "ada", at_ns=T0)
    with pytest.raises(Upstream) as error:
        fetching.fetch_named(store, targets_of("http://me:secret@127.0.0.1:1"), begun, T0 + S)
    assert "secret" not in str(error.value)


def test_over_http_a_server_elsewhere_that_is_down_is_a_bad_gateway(
    store: Experiments, tmp_path: Path, prometheus: Elsewhere
) -> None:
    down, begin = targets_of("127.0.0.1:1"), int(time.time()) - 300
    app = application(Served([], None), "t", ("testserver",), lambda: store, targets=down)
    with TestClient(app, headers={"Authorization": "Bearer t"}) as http_:
        assert http_.post("/exp/x", json={"utc_time": begin}).status_code == 201
        answers = [
            http_.request("GET", "/exp/x", json={"metric": "cpu"}),
            http_.post("/api/v1/experiments/x/fetched", json={}),
        ]
        for got in answers:
            assert got.status_code == 502
            assert "http://127.0.0.1:1 does not answer" in got.json()["detail"]
        got = http_.put("/exp/x", json={"utc_time": begin + 200})
        assert got.status_code == 201
        assert "does%20not%20answer" in got.headers["X-Penstock-Not-Fetched"]
    up = targets_of(prometheus.address)
    app = application(Served([], None), "t", ("testserver",), lambda: store, targets=up)
    with TestClient(app, headers={"Authorization": "Bearer t"}) as http_:
        http_.post("/exp/x", json={"utc_time": begin, "repeat": True})
        asked = {"query": "sum(c)", "server": "prom", "step": "0.02s"}
        got = http_.request("GET", "/exp/x", json=asked)
        assert got.headers["X-Penstock-Query"] == "sum%28c%29"
        assert int(got.headers["X-Penstock-Requests"]) > 1
        got = http_.request("GET", "/exp/x", json={**asked, "step": "0.01ms"})
        assert got.status_code == 400
        assert "expected a longer step" in got.json()["detail"]
        got = http_.put("/exp/x", json={"utc_time": begin + 200})
        assert "X-Penstock-Not-Fetched" not in got.headers
        prometheus.end()
        got = http_.request("GET", "/exp/x", json={"metric": "cpu"})
        assert got.status_code == 200
        assert len(got.text.splitlines()) == 202
        assert got.headers["X-Penstock-Requests"] == "1"


def test_what_monex_asks_of_servers_is_asked_of_them(
    store: Experiments, prometheus: Elsewhere
) -> None:
    # would break with a query of InfluxDB that goes to no database, or to another
    influx = Elsewhere(Influx)
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
    assert [said["db"] for said in influx.asked] == ["monex", "mine"]
    assert influx.asked[0]["q"].startswith('SELECT "io" FROM "ebpf" WHERE')
    with pytest.raises(BadInput, match="expected metric, or server with query or measurement"):
        text(store, targets, labels=["i"])


def test_from_the_command_line(tmp_path: Path, prometheus: Elsewhere) -> None:
    begin = int(time.time()) - 300
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    environment.pop("PENSTOCK_SERVER", None)

    def penstock(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "penstock", *words]
        return commands.run(line, env=environment, capture_output=True, text=True, check=False)

    assert penstock("monitor", "start", "x", "--at", str(begin)).returncode == 0
    fetch = ["monitor", "fetch", "x", "--query", "c", "-m", "cpu", "--from"]
    done = penstock(*fetch, "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1 does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert penstock("monitor", "stop", "x", "--at", str(begin + 200)).returncode == 0
    done = penstock(*fetch, f"http://{prometheus.address}")
    assert done.returncode == 0, done.stderr
    assert f"cpu: 402 points of {prometheus.address} in 1 request" in done.stderr
    prometheus.end()
    done = penstock("monitor", "get", "x", "-m", "cpu")
    assert len(done.stdout.splitlines()) == 202
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
            {"data": {"resultType": "matrix", "result": [{"metric": {}, "histograms": [[1, {}]]}]}},
            "found native histograms",
        ),
    ],
)
def test_answers_that_lack_a_part_are_refused(
    kind: str, answer: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "ask", lambda *_, **__: answer)
    settings = {"database": "x"} if kind == "influxdb" else {}
    reader = METRIC_SERVERS.load(kind)("http://127.0.0.1:1", settings)
    with pytest.raises(PenstockError, match=message):
        reader.read("SELECT v FROM m WHERE time > $start AND time < $end", 0, 10, 1)


def test_numbers_of_graphite_that_are_not_finite_are_no_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [[1.5, 1], [float("nan"), 2], [float("inf"), 3], [None, 4]]
    monkeypatch.setattr(Server, "ask", lambda *_, **__: [{"target": "a", "datapoints": rows}])
    kept = METRIC_SERVERS.load("graphite")("http://127.0.0.1:1", {}).read("a", 0, 9 * 10**9, 10**9)
    assert kept.points.column("float").to_pylist() == [1.5]
