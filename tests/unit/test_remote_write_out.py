"""Series that `penstock export X remote-write` sends to a receiver that takes, refuses, or fails a while."""

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


def test_each_point_arrives_once_under_a_name_that_prometheus_takes(store: Experiments) -> None:
    two_nodes(store)
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        url = at(receiver)
        done = penstock("export", "x", "remote-write", "--to", url, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["to"] == f"{url}/api/v1/write"
    (run,) = told["runs"]
    assert (run["points"], run["series"], run["requests"]) == (120, 2, 1)
    assert not receiver.intake.receipt.refused
    of = {
        "node": "a",
        "penstock_experiment": "x#1",
        "penstock_metric": "disk.busy",
        "penstock_source": "test",
    }
    found = {(r["metric"], r["labels"], r["utc_ns"], r["float"]) for r in sink.rows("r")}
    assert found == {
        ("disk_busy", canonical_labels({**of, "node": node}), T0 + k * S, k * n + 0.5)
        for n, node in enumerate(("a", "b"))
        for k in range(60)
    }


def test_requests_go_by_time_and_are_bounded(
    store: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks where one series goes after the other: Prometheus takes nothing of an hour before its newest."""
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
    """A way to a server on which the answer to the first request is lost."""
    lost: list[bytes] = []

    class Way(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, said = post(url, self.path, body, self.headers)
            if not lost:
                lost.append(body)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Way) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
    assert lost


def post(url: str, path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
    answer = httpx.post(url + path, content=body, headers=dict(headers))
    return answer.status_code, answer.content


def test_an_answer_that_is_lost_doubles_nothing(store: Experiments) -> None:
    run, said = two_nodes(store), []
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink), losing(at(receiver)) as url:
        sent = RemoteWrite(url, tell=said.append).send(run)
    assert sink.points("r").num_rows == sent.points == 120
    assert len(said) == 1


def test_what_has_no_place_in_it_is_counted(store: Experiments) -> None:
    begun = store.start("x", local_user(), at_ns=T0)
    for number, columns in enumerate(
        (
            {"metric": "count", "utc_ns": [T0 - S, T0, T0 + S], "integer": [1, 2, 3]},
            {"metric": "up", "utc_ns": [T0, T0 + S], "boolean": [True, False]},
            {"metric": "state", "utc_ns": [T0, T0 + S], "text": ["on", "off"]},
            {"metric": "offset", "index": [0, 1, 2, 3], "float": [4.0, 2.0, 3.0, 1.0]},
            # 100 of them in 50 ms
            {
                "metric": "fast",
                "utc_ns": T0 + np.arange(100) * MS // 2,
                "float": np.arange(100.0),
            },
        )
    ):
        store.sink(begun).write(Batch("test", number, points(**columns)))
    run = store.stop(begun, at_ns=T0 + 2 * S).path
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


def test_a_server_that_fails_for_a_while_is_asked_again(store: Experiments) -> None:
    run = two_nodes(store)
    sink, said = MemorySink(), []
    sink.fails = 2
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        sent = RemoteWrite(at(receiver), tell=said.append).send(run)
    assert sink.points("r").num_rows == sent.points == 120
    assert len(said) == 2
    assert all("found status 503" in line and line.endswith("trying again") for line in said)


def test_a_server_that_goes_on_failing_or_is_not_there_is_told(store: Experiments) -> None:
    run = two_nodes(store)
    sink = MemorySink()
    sink.fails = 1000
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with (
        at_work(receiver, sink),
        pytest.raises(Upstream, match=r"found status 503 .*; 0 points were sent before"),
    ):
        RemoteWrite(at(receiver), patience_s=0.5).send(run)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(NoAnswer, match="does not answer"):
            RemoteWrite(url, patience_s=0.2).send(run)


def test_what_is_refused_is_sent_once_and_told_with_the_server_s_words(store: Experiments) -> None:
    run = two_nodes(store)
    sink, said = MemorySink(), []
    sink.closed = True
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with (
        at_work(receiver, sink),
        pytest.raises(Upstream, match=r"found status 410 .*the experiment has ended"),
    ):
        RemoteWrite(at(receiver), tell=said.append).send(run)
    assert said == []
    other = InfluxReceiver("i", {"port": 0})
    with (
        at_work(other, MemorySink()),
        pytest.raises(
            BadInput, match=r"found status 404 .*expected a URL that accepts remote write"
        ),
    ):
        RemoteWrite(at(other)).send(run)


def test_the_token_is_of_the_environment(
    store: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes(store)
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0, "token": "s3cret"})
    with at_work(receiver, sink):
        # the token of a server of penstock's is not for others
        monkeypatch.setenv("PENSTOCK_TOKEN", "s3cret")
        told = refused("export", "x", "remote-write", "--to", at(receiver))
        assert "found status 401" in told
        assert f"expected its token in ${TOKEN}" in told
        monkeypatch.setenv(TOKEN, "s3cret")
        done = penstock("export", "x", "remote-write", "--to", at(receiver))
    assert done.exit_code == 0, done.output
    assert "120 points of 2 series in 1 requests\n" in done.stdout


def test_what_is_asked_wrongly_is_refused(store: Experiments) -> None:
    two_nodes(store)
    assert "expected remote-write --to URL" in refused("export", "x", "remote-write")
    assert "expected remote-write --to URL" in refused("export", "x", "csv", "--to", "http://a")
    words = ("export", "x", "remote-write", "--to", "prom:9090")
    assert "expected http://HOST:PORT" in refused(*words)
    assert "expected one of them" in refused(*words, "-o", "y")
    made(store, "empty", {})
    assert "found no number with a time" in refused(
        "export", "empty", "remote-write", "--to", "http://127.0.0.1:1"
    )
