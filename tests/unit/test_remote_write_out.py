"""Series of `penstock export X remote-write`, sent to a receiver that accepts, refuses or fails."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock.archive.catalogue import local_user
from penstock.errors import BadInput, NoAnswer, Upstream
from penstock.parts.monitoring.collectors.http_push import InfluxReceiver, RemoteWriteReceiver
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels, points
from penstock.parts.monitoring.queries import remote_write
from penstock.parts.monitoring.queries.remote_write import TOKEN, RemoteWrite
from penstock.testing import MemorySink
from tests.unit.shared_runs import T0, S, made, own_store, penstock, refused
from tests.unit.test_collectors import at_work

MS = 10**6


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN, raising=False)
    return own_store(tmp_path, monkeypatch)


def at(receiver: Any) -> str:
    return "http://{}:{}".format(*receiver.address)


def two_nodes(store: Experiments, seconds: int = 60) -> Path:
    at_s = np.arange(float(seconds))
    series = {("disk.busy", node): (at_s, at_s * n + 0.5) for n, node in enumerate(("a", "b"))}
    return made(store, "x", series, lasted_s=float(seconds)).path


def test_each_point_arrives_once_under_a_valid_prometheus_name(store: Experiments) -> None:
    two_nodes(store)
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        url = at(receiver)
        result = penstock("export", "x", "remote-write", "--to", url, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["to"] == f"{url}/api/v1/write"
    (run,) = document["runs"]
    assert (run["points"], run["series"], run["requests"]) == (120, 2, 1)
    assert not receiver.intake.receipt.refused
    labels = {
        "node": "a",
        "penstock_experiment": "x#1",
        "penstock_metric": "disk.busy",
        "penstock_source": "test",
    }
    samples = {(r["metric"], r["labels"], r["utc_ns"], r["float"]) for r in sink.rows("r")}
    assert samples == {
        ("disk_busy", canonical_labels({**labels, "node": node}), T0 + k * S, k * n + 0.5)
        for n, node in enumerate(("a", "b"))
        for k in range(60)
    }


def test_series_that_differ_in_a_changed_label_stay_apart(store: Experiments) -> None:
    """Fails if a label replaces another: of two series with one time, a server keeps one."""
    running = store.start("x", local_user(), at_ns=T0)
    own = [
        {"a.b": "1", "a-b": "3"},
        {"a.b": "2", "a-b": "3"},
        # points of earlier experiments, fetched from a Prometheus
        {"penstock_experiment": "old#1", "penstock_source": "s"},
        {"penstock_experiment": "old#2", "penstock_source": "s"},
    ]
    texts = [canonical_labels(labels) for labels in own]
    table = points(metric="m", labels=texts, utc_ns=[T0] * 4, float=[0.0, 1.0, 2.0, 3.0])
    store.sink(running).write(Batch("test", 0, table))
    run = store.stop(running, at_ns=T0 + S).path
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        assert RemoteWrite(at(receiver)).send(run).points == 4
    assert not receiver.intake.receipt.refused
    added = {"penstock_experiment": "x#1", "penstock_source": "test"}
    assert {r["float"]: json.loads(str(r["labels"])) for r in sink.rows("r")} == {
        0.0: {"a_b": "3;1", **added},
        1.0: {"a_b": "3;2", **added},
        2.0: {"exported_penstock_experiment": "old#1", "exported_penstock_source": "s", **added},
        3.0: {"exported_penstock_experiment": "old#2", "exported_penstock_source": "s", **added},
    }


def test_requests_are_ordered_by_time_and_bounded(
    store: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if series are sent one after the other: Prometheus refuses points an hour before its newest."""
    run = two_nodes(store)
    monkeypatch.setattr(remote_write, "BATCH_POINTS", 14)
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        sent = RemoteWrite(at(receiver)).send(run)
    assert (sent.points, sent.requests) == (120, 9)
    batches = [batch.points["utc_ns"].to_pylist() for _, batch in sorted(sink.batches.items())]
    assert [len(times) for times in batches] == [14] * 8 + [8]
    for before, after in itertools.pairwise(batches):
        assert max(before) <= min(after)


def test_a_request_covers_half_an_hour_at_most(store: Experiments) -> None:
    at_s = np.arange(0.0, 7200.0, 600.0)
    run = made(store, "x", {("m", ""): (at_s, at_s)}, lasted_s=7200.0).path
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        sent = RemoteWrite(at(receiver)).send(run)
    assert (sent.points, sent.requests) == (12, 4)
    assert [r["float"] for r in sink.rows("r")] == at_s.tolist()


@contextlib.contextmanager
def losing(url: str) -> Iterator[str]:
    """A proxy to a server that loses the response to the first request."""
    lost: list[bytes] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, content = post(url, self.path, body, self.headers)
            if not lost:
                lost.append(body)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
    assert lost


def post(url: str, path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
    response = httpx.post(url + path, content=body, headers=dict(headers), timeout=60)
    return response.status_code, response.content


def test_a_lost_response_duplicates_no_point(store: Experiments) -> None:
    run, messages = two_nodes(store), []
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink), losing(at(receiver)) as url:
        sent = RemoteWrite(url, tell=messages.append).send(run)
    assert sink.points("r").num_rows == sent.points == 120
    assert len(messages) == 1


def test_unsupported_points_are_counted(store: Experiments) -> None:
    experiment = store.start("x", local_user(), at_ns=T0)
    for number, columns in enumerate(
        (
            {"metric": "count", "utc_ns": [T0 - S, T0, T0 + S], "integer": [1, 2, 3]},
            {"metric": "up", "utc_ns": [T0, T0 + S], "boolean": [True, False]},
            {"metric": "state", "utc_ns": [T0, T0 + S], "text": ["on", "off"]},
            {"metric": "offset", "index": [0, 1, 2, 3], "float": [4.0, 2.0, 3.0, 1.0]},
            # 100 points in 50 ms
            {
                "metric": "fast",
                "utc_ns": T0 + np.arange(100) * MS // 2,
                "float": np.arange(100.0),
            },
        )
    ):
        store.sink(experiment).write(Batch("test", number, points(**columns)))
    run = store.stop(experiment, at_ns=T0 + 2 * S).path
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        sent = RemoteWrite(at(receiver)).send(run)
    assert dict(sent.omitted) == {
        "of sequences": 4,
        "texts": 2,
        "outside of its marks": 1,
        "before another of the same millisecond": 50,
    }
    values: dict[str, list[float]] = {}
    for row in sorted(sink.rows("r"), key=lambda r: (r["metric"], r["utc_ns"])):
        values.setdefault(row["metric"], []).append(row["float"])
    assert values == {
        "count": [2.0, 3.0],
        "up": [1.0, 0.0],
        "fast": list(np.arange(1.0, 100.0, 2)),
    }
    assert sent.points == 54


def test_requests_to_a_temporarily_failing_server_are_repeated(store: Experiments) -> None:
    run = two_nodes(store)
    sink, messages = MemorySink(), []
    sink.fails = 2
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        sent = RemoteWrite(at(receiver), tell=messages.append).send(run)
    assert sink.points("r").num_rows == sent.points == 120
    assert len(messages) == 2
    assert all("found status 503" in line and line.endswith("trying again") for line in messages)


def test_a_failing_or_missing_server_is_reported(store: Experiments) -> None:
    run = two_nodes(store)
    sink = MemorySink()
    sink.fails = 1000
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with (
        at_work(receiver, sink),
        pytest.raises(Upstream, match=r"found status 503 .*; 0 points were sent before"),
    ):
        RemoteWrite(at(receiver), patience_s=0.5).send(run)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NoAnswer, match="does not answer"):
            RemoteWrite(url, patience_s=0.2).send(run)


def test_refused_points_are_sent_once_and_the_servers_message_is_shown(store: Experiments) -> None:
    run = two_nodes(store)
    sink, messages = MemorySink(), []
    sink.closed = True
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with (
        at_work(receiver, sink),
        pytest.raises(Upstream, match=r"found status 410 .*the experiment has ended"),
    ):
        RemoteWrite(at(receiver), tell=messages.append).send(run)
    assert messages == []
    not_remote_write = InfluxReceiver("i", {"port": 0})
    with (
        at_work(not_remote_write, MemorySink()),
        pytest.raises(
            BadInput, match=r"found status 404 .*expected a URL that accepts remote write"
        ),
    ):
        RemoteWrite(at(not_remote_write)).send(run)


def test_the_token_comes_from_its_environment_variable(
    store: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes(store)
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0, "token": "s3cret"})
    with at_work(receiver, sink):
        # the token of a penstock server is not sent to other servers
        monkeypatch.setenv("PENSTOCK_TOKEN", "s3cret")
        message = refused("export", "x", "remote-write", "--to", at(receiver))
        assert "found status 401" in message
        assert f"expected its token in ${TOKEN}" in message
        monkeypatch.setenv(TOKEN, "s3cret")
        result = penstock("export", "x", "remote-write", "--to", at(receiver))
    assert result.exit_code == 0, result.output
    assert "120 points of 2 series in 1 requests\n" in result.stdout


def test_wrong_arguments_are_refused(store: Experiments) -> None:
    two_nodes(store)
    assert "expected remote-write --to URL" in refused("export", "x", "remote-write")
    assert "expected remote-write --to URL" in refused("export", "x", "csv", "--to", "http://a")
    argv = ("export", "x", "remote-write", "--to", "prom:9090")
    assert "expected http://HOST:PORT" in refused(*argv)
    assert "expected one of them" in refused(*argv, "-o", "y")
    made(store, "empty", {})
    assert "found no number with a time" in refused(
        "export", "empty", "remote-write", "--to", "http://127.0.0.1:1"
    )
