"""Collectors with arbitrary input: stored points, refused input, and survival of the receiver."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import importlib
import json
import math
import pickle
import random
import resource
import socket
import socketserver
import ssl
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import BadInput, PenstockError
from penstock.host.probe.clock_offset import Exchange, Offset, offset_of
from penstock.parts.monitoring.collectors.columns import table_of, unit_of
from penstock.parts.monitoring.collectors.graphite import GraphiteReceiver
from penstock.parts.monitoring.collectors.http_push import (
    InfluxReceiver,
    RemoteWriteReceiver,
    snapped,
)
from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.collectors.scrape import Scraper
from penstock.parts.monitoring.collectors.settings import checked_collectors
from penstock.parts.monitoring.servers.prometheus import MOST_POINTS, ranges
from penstock.testing import MemorySink
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.unit.test_serve_guarded import certificate

native: Any = importlib.import_module("penstock._native")

SECOND = 1_000_000_000


@contextlib.contextmanager
def at_work(collector: Any, sink: MemorySink) -> Iterator[Any]:
    with Collecting({"it": collector}, sink):
        yield collector


def post(address: tuple[str, int], path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    url = f"http://{address[0]}:{address[1]}{path}"
    request = urllib.request.Request(url, data=body, method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# ---------------------------------------------------------------- Graphite


def test_lines_of_graphite_in_any_packets_become_points() -> None:
    sink = MemorySink()
    lines = "".join(
        f"host.cpu-{n % 4}.idle {n / 8} {1_700_000_000 + n // 4}\n" for n in range(4000)
    )
    receiver = GraphiteReceiver(
        "g", {"port": 0, "pickle_port": None, "units": {"host.cpu-0.idle": "%"}}
    )
    with at_work(receiver, sink):
        with socket.create_connection(receiver.address) as sent:
            for at in range(0, len(lines), 777):
                sent.sendall(lines[at : at + 777].encode())
        until(lambda: receiver.intake.receipt.stored == 4000)
    table = sink.points("g")
    assert set(table["metric"].to_pylist()) == {f"host.cpu-{n}.idle" for n in range(4)}
    rows = zip(*(table[c].to_pylist() for c in ("metric", "utc_ns", "float", "unit")), strict=True)
    for metric, utc_ns, value, unit in rows:
        n = round(value * 8)
        assert (metric, utc_ns) == (f"host.cpu-{n % 4}.idle", (1_700_000_000 + n // 4) * SECOND)
        assert unit == ("%" if n % 4 == 0 else "")


def test_datagrams_and_pickles() -> None:
    sink = MemorySink()
    receiver = GraphiteReceiver("g", {"port": 0, "pickle_port": 0})
    entries = [("a.b;host=x", (1_700_000_000 + n, n / 2)) for n in range(50)]
    with at_work(receiver, sink):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sent:
            sent.sendto(b"u.v 1 1700000000\nu.v 2 1700000001", receiver.address)
        with socket.create_connection(receiver.pickle_address) as sent:
            for protocol, part in zip(range(5), (entries[n::5] for n in range(5)), strict=True):
                data = pickle.dumps(sorted(part), protocol)
                sent.sendall(struct.pack("!L", len(data)) + data)
        # the parts are interleaved: points before the newest are refused and counted
        until(lambda: receiver.intake.receipt.received == 52)
    receipt = receiver.intake.receipt
    assert receipt.stored + receipt.refused["backwards"] == 52
    stored = {(r["utc_ns"], r["float"]) for r in sink.rows("g") if r["metric"] == "a.b"}
    assert stored >= {(1_700_000_000 * SECOND + n * SECOND, n / 2) for n in range(0, 50, 5)}
    assert {r["labels"] for r in sink.rows("g") if r["metric"] == "a.b"} == {'{"host":"x"}'}
    assert len([r for r in sink.rows("g") if r["metric"] == "u.v"]) == 2


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import os; os._exit(7)",))


def test_invalid_input_is_refused_and_counted() -> None:
    sink = MemorySink()
    receiver = GraphiteReceiver("g", {"port": 0, "pickle_port": 0})
    bad = [
        b"\xff\xfe\x00 1 1\n",
        b"a b c\n",
        b"one two\n",
        b"x nan 1700000000\n",
        b"x inf 1700000000\n",
        b"y 1 1700000005\n",
        b"y 2 1700000004\n",
        b"y 3 1700000005\n",
        b"z;" + b"t=" + b"v" * 5000 + b" 1 1700000000\n",
        b"<html><body>no</body></html>\n",
        b"w 1 99999999999999999999\n",
    ]
    evil = pickle.dumps(_Evil())
    with at_work(receiver, sink):
        with socket.create_connection(receiver.address) as sent:
            sent.sendall(b"".join(bad))
        with socket.create_connection(receiver.address) as sent:
            sent.sendall(b"x" * 100_000)
        with socket.create_connection(receiver.address) as sent:
            sent.sendall(b"cut 1 17000000")
        with socket.create_connection(receiver.pickle_address) as sent:
            sent.sendall(struct.pack("!L", len(evil)) + evil)
        with socket.create_connection(receiver.pickle_address) as sent:
            sent.sendall(struct.pack("!L", 1 << 31))
        receipt = receiver.intake.receipt
        until(lambda: receipt.refused.total() + receipt.refused_messages.total() >= 13)
        with socket.create_connection(receiver.address) as sent:
            sent.sendall(b"alive 1 1700000000\n")
        until(lambda: "alive" in sink.points("g")["metric"].to_pylist())
    # a second value for a time replaces the first, as in Carbon
    assert receipt.refused == {
        "malformed": 4 + 1 + 1,
        "not finite": 2,
        "backwards": 1,
        "too long": 1 + 1,
    }
    assert receipt.refused_messages == {"malformed": 1, "too long": 1}
    assert [r["float"] for r in sink.rows("g") if r["metric"] == "y"] == [1.0, 3.0]
    assert sorted(set(sink.points("g")["metric"].to_pylist())) == ["alive", "y"]


def test_points_wait_while_the_disk_is_full() -> None:
    sink = MemorySink()
    receiver = GraphiteReceiver("g", {"port": 0, "pickle_port": None, "udp": False})
    with at_work(receiver, sink):
        sink.fails = 2
        with socket.create_connection(receiver.address) as sent:
            sent.sendall(b"a 1 1700000000\nwrong\na 2 1700000001\n")
        until(lambda: receiver.intake.receipt.stored == 2)
    receipt = receiver.intake.receipt
    assert receipt.counted["not stored at first"] == 2
    # fails if the wrong line is counted at each of the three attempts
    assert (receipt.received, receipt.refused) == (3, {"malformed": 1})
    assert len(receipt.errors) == 1
    assert [r["float"] for r in sink.rows()] == [1.0, 2.0]


@pytest.mark.host
def test_ten_thousand_silent_connections_block_no_other() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 20_000:
        pytest.skip("the limit of open files is below 20,000")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sink = MemorySink()
    receiver, influx = (
        GraphiteReceiver("g", {"port": 0, "pickle_port": None}),
        InfluxReceiver("i", {"port": 0}),
    )
    silent = []
    try:
        with Collecting({"g": receiver, "i": influx}, sink):
            for n in range(10_000):
                silent.append(socket.create_connection((receiver if n % 2 else influx).address))
                if not n % 2 and n % 8 == 0:
                    with contextlib.suppress(OSError):
                        silent[-1].sendall(b"POST /write HTTP/1.1\r\nHost:")
            with socket.create_connection(receiver.address) as sent:
                sent.sendall(b"alive 1 1700000000\n")
            assert post(influx.address, "/write?db=x", b"alive value=1 1")[0] == 204
            until(lambda: sink.points("g").num_rows == 1)
            lines = receiver._lines
            assert lines is not None
            until(lambda: lines.dropped >= 4000)
    finally:
        for connection in silent:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_incomplete_bodies_use_bounded_memory() -> None:
    """Fails without the common bound, or if the unpacked size of a small body does not count."""
    sink = MemorySink()
    graphite, influx = (
        GraphiteReceiver("g", {"port": 0, "pickle_port": 0}),
        InfluxReceiver("i", {"port": 0}),
    )
    head = b"POST /write HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (30 << 20)
    pickled = struct.pack("!L", 1 << 20)
    packed = gzip.compress(b"\n" * (16 << 20))
    opened: list[socket.socket] = []

    def send_part(address: tuple[str, int], begin: bytes, size: int) -> None:
        opened.append(socket.create_connection(address))
        with contextlib.suppress(ConnectionError):
            opened[-1].sendall(begin)
            opened[-1].sendall(b"x" * size)

    with Collecting({"g": graphite, "i": influx}, sink):
        assert influx._listener is not None
        assert graphite._pickles is not None
        budgets = [influx._listener.room, graphite._pickles.room]
        for budget in budgets:
            budget.most = 16 << 20
        for _ in range(8):
            send_part(influx.address, head, 3 << 20)
        for _ in range(40):
            send_part(graphite.pickle_address, pickled, (1 << 20) - 1)
        for receiver in (influx, graphite):
            until(lambda r=receiver: r.intake.receipt.refused_messages["no room"] >= 3)  # type: ignore[misc]
        assert all(12 << 20 < budget.used <= budget.most for budget in budgets)
        status, message = post(influx.address, "/write?db=x", b"#" * (3 << 20))
        assert status == 503, message
        status, message = post(
            influx.address, "/write?db=x", packed, **{"Content-Encoding": "gzip"}
        )
        assert status == 503, message
        assert post(influx.address, "/write?db=x", b"alive value=1 1")[0] == 204
        data = pickle.dumps([("alive", (1_700_000_000, 1))])
        with socket.create_connection(graphite.pickle_address) as sent:
            sent.sendall(struct.pack("!L", len(data)) + data)
            until(lambda: sink.points("g").num_rows == 1)
        for connection in opened:
            connection.close()
        until(lambda: not any(budget.used for budget in budgets))
        assert post(influx.address, "/write?db=x", b"#" * (3 << 20))[0] == 204
    assert influx.intake.receipt.refused_messages["no room"] >= 5
    assert graphite.intake.receipt.refused_messages["no room"] >= 20
    refusals = [e for b in sink.batches.values() for e in b.events if e.kind == "refused-messages"]
    assert {e.detail.partition(":")[0] for e in refusals} >= {"no room"}


# ---------------------------------------------------------------- InfluxDB's line protocol


def test_a_client_receives_the_refusal_after_a_long_body() -> None:
    receiver = InfluxReceiver("i", {"port": 0})
    body = b"x" * (40 << 20)  # the receiver refuses it at 32 MiB
    head = f"POST /write HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with (
        at_work(receiver, MemorySink()),
        socket.create_connection(receiver.address, 30) as connection,
    ):
        connection.sendall(head.encode() + body)
        response = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert response.startswith("HTTP/1.1 413 ")
    assert "expected a body of at most" in response


def test_write_answers_as_influxdb_does() -> None:
    sink = MemorySink()
    influx = InfluxReceiver("i", {"port": 0})
    with at_work(influx, sink):
        address = influx.address
        assert (
            post(
                address, "/write?db=x&precision=ms", b"disk,host=a busy=0.5,ops=3i 1700000000123\n"
            )[0]
            == 204
        )
        status, body = post(address, "/write?db=x", b"good value=1 5\nbad\nbad value=nan 5\n")
        assert status == 400
        assert json.loads(body)["error"].startswith("partial write: ")
        assert json.loads(body)["error"].endswith("dropped=2")
        assert post(address, "/write?db=x", b"good value=1 5\n")[0] == 204, "repeated"
        assert post(address, "/write?db=x&precision=days", b"good value=1 5\n")[0] == 400
        assert post(address, "/write?db=x", b"")[0] == 204
        assert post(address, "/else", b"")[0] == 404
        assert post(address, "/query", b"q=CREATE+DATABASE+x")[0] == 200
        packed = __import__("gzip").compress(b"packed value=2 6\n")
        assert post(address, "/write?db=x", packed, **{"Content-Encoding": "gzip"})[0] == 204
        assert post(address, "/write?db=x", packed, **{"Content-Encoding": "GZIP"})[0] == 204
        assert post(address, "/write?db=x", packed[:-9], **{"Content-Encoding": "gzip"})[0] == 400
        bomb = __import__("gzip").compress(b"\n" * (64 << 20))
        assert post(address, "/write?db=x", bomb, **{"Content-Encoding": "gzip"})[0] == 400
        sink.fails = 1
        assert post(address, "/write?db=x", b"later value=1 7\n")[0] == 503
        assert post(address, "/write?db=x", b"later value=1 7\n")[0] == 204
        sink.closed = True
        assert post(address, "/write?db=x", b"later value=1 8\n")[0] == 410
    assert sink.rows() == [
        {
            "metric": "disk_busy",
            "labels": '{"host":"a"}',
            "utc_ns": 1_700_000_000_123_000_000,
            "float": 0.5,
        },
        {
            "metric": "disk_ops",
            "labels": '{"host":"a"}',
            "utc_ns": 1_700_000_000_123_000_000,
            "integer": 3,
        },
        {"metric": "good", "labels": "{}", "utc_ns": 5, "float": 1.0},
        {"metric": "packed", "labels": "{}", "utc_ns": 6, "float": 2.0},
        {"metric": "later", "labels": "{}", "utc_ns": 7, "float": 1.0},
    ]


class SlowSink(MemorySink):
    """A sink whose first write waits for the event `go`; it may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, batch: Any) -> Any:
        self.begun.set()
        assert self.go.wait(60)
        return super().write(batch)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_messages_during_a_write_are_stored_together(fails: int) -> None:
    """Fails if each message waits for its own sync, is acknowledged before it is stored, or
    receives the error of another.
    """
    sink, responses = SlowSink(), {}
    receiver = InfluxReceiver("i", {"port": 0})
    sink.fails = fails

    def send(n: int) -> None:
        body = f"m,host=h{n} v={n} 5\n" + "no line\n" * (n == 3)
        responses[n] = post(receiver.address, "/write?db=x", body.encode())

    with at_work(receiver, sink):
        threads = [threading.Thread(target=send, args=(n,)) for n in range(20)]
        threads[0].start()
        assert sink.begun.wait(60)
        for thread in threads[1:]:
            thread.start()
        until(lambda: len(receiver._together._waiting) == 19)
        assert not responses
        sink.go.set()
        for thread in threads:
            thread.join()
    stored = {r["labels"] for r in sink.rows()}
    if fails < 2:
        assert len(stored) == 20 - fails
        assert receiver.intake.receipt.batches == 2 - fails
        assert responses[3][0] == 400
        assert b"partial write: 1 malformed" in responses[3][1]
    statuses = [responses[n][0] for n in range(20) if n not in (0, 3)]
    assert statuses == [204 if fails < 2 else 503] * 18
    assert responses[0][0] == (503 if fails else 204)
    # no acknowledgement for a point that is not stored
    assert all(f'{{"host":"h{n}"}}' in stored for n in range(20) if responses[n][0] == 204)


def test_a_repeated_numbered_batch_is_stored_once() -> None:
    sink = MemorySink()
    influx = InfluxReceiver("i", {"port": 0})
    body = "".join(f"offset value={n}i {n}\n" for n in range(1000)).encode()
    with at_work(influx, sink):
        for number in (0, 1, 1, 0):
            headers = {"X-Penstock-Batch": f"fio {number}"}
            assert post(influx.address, "/write?db=x", body, **headers)[0] == 204
        assert post(influx.address, "/write?db=x", body, **{"X-Penstock-Batch": "fio"})[0] == 400
    assert sink.points("fio").num_rows == 2000
    assert (influx.intake.receipt.stored, influx.intake.receipt.repeated) == (2000, 2)
    assert influx.intake.receipt.received == 2000


@pytest.mark.parametrize("numbered", [False, True])
def test_a_batch_that_is_sent_again_is_counted_once(numbered: bool) -> None:
    """Fails if the refused point of a batch is counted at each attempt."""
    sink = MemorySink()
    influx = InfluxReceiver("i", {"port": 0})
    headers = {"X-Penstock-Batch": "fio 0"} if numbered else {}
    with at_work(influx, sink):
        sink.fails = 2
        statuses = [
            post(influx.address, "/write?db=x", b"a value=1 5\nwrong\n", **headers)[0]
            for _ in range(3 + numbered)
        ]
    assert statuses == [503, 503, 400] + [400] * numbered
    receipt = influx.intake.receipt
    assert (receipt.received, receipt.stored, receipt.refused) == (2, 1, {"malformed": 1})
    events = [e for b in sink.batches.values() for e in b.events if e.kind == "refused"]
    assert sum(e.count for e in events) == 1


def test_remote_clients_need_the_token() -> None:
    with pytest.raises(BadInput, match=r"found host 0\.0\.0\.0, which others reach"):
        InfluxReceiver("i", {"host": "0.0.0.0"})
    with pytest.raises(BadInput, match="expected open: true"):
        GraphiteReceiver("g", {"host": "0.0.0.0"})
    influx = InfluxReceiver("i", {"port": 0, "token": "s3cret"})
    with at_work(influx, MemorySink()):
        address = influx.address
        assert post(address, "/write?db=x", b"a value=1 1")[0] == 401
        assert post(address, "/write?db=x", b"a value=1 1", Authorization="Token wrong")[0] == 401
        assert post(address, "/write?db=x", b"a value=1 1", Authorization="Token s3cret")[0] == 204
        assert post(address, "/write?db=x", b"a value=1 2", Authorization="Bearer s3cret")[0] == 204


@pytest.mark.parametrize(("path", "status"), [("/write", 405), ("/query", 200), ("/none", 404)])
def test_a_head_request_gets_the_head_only(path: str, status: int) -> None:
    influx = InfluxReceiver("i", {"port": 0})
    request = f"HEAD {path} HTTP/1.1\r\nHost: x\r\n"
    with at_work(influx, MemorySink()), socket.create_connection(influx.address, 30) as connection:
        connection.sendall(f"{request}\r\n{request}Connection: close\r\n\r\n".encode())
        response = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert response.count(f"HTTP/1.1 {status} ") == 2
    assert all(": " in line for line in response.split("\r\n") if line[:5] not in ("HTTP/", ""))


def test_invalid_http_is_refused_or_disconnected() -> None:
    influx = InfluxReceiver("i", {"port": 0})
    sink = MemorySink()
    with at_work(influx, sink):
        for raw in (
            b"\x16\x03\x01\x02\x00" * 50,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /write HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            b"POST /write HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
            b"POST /write HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\nabc",
        ):
            with socket.create_connection(influx.address) as sent, contextlib.suppress(OSError):
                sent.sendall(raw)
                sent.shutdown(socket.SHUT_WR)
                sent.settimeout(60)
                response = sent.recv(100)
                assert response == b"" or response.startswith(b"HTTP/1.1 4"), response
        assert post(influx.address, "/write?db=x", b"alive value=1 1")[0] == 204


# ---------------------------------------------------------------- remote write


def write_request() -> Any:
    """The message as defined by the protocol's own library."""
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", package="w", syntax="proto3")
    kinds = {"string": 9, "double": 1, "int64": 3, "message": 11}
    for message, fields in {
        "Label": [("name", 1, "string", ""), ("value", 2, "string", "")],
        "Sample": [("value", 1, "double", ""), ("timestamp", 2, "int64", "")],
        "TimeSeries": [("labels", 1, "message", "Label"), ("samples", 2, "message", "Sample")],
        "WriteRequest": [("timeseries", 1, "message", "TimeSeries")],
    }.items():
        kind_of_message = file.message_type.add(name=message)
        for name, number, kind, of in fields:
            kind_of_message.field.add(
                name=name,
                number=number,
                type=kinds[kind],
                label=3 if of else 1,
                type_name=f".w.{of}" if of else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("w.WriteRequest"))


def test_remote_write_agrees_with_the_protocol_s_library() -> None:
    request = write_request()()
    for n in range(3):
        series = request.timeseries.add()
        for name, value in (
            ("__name__", "disk_read_bytes_total"),
            ("dev", f"sd{n}"),
            ("empty", ""),
        ):
            series.labels.add(name=name, value=value)
        for k in range(4):
            series.samples.add(value=n + k / 4, timestamp=1_700_000_000_000 + k)
    request.timeseries[0].samples.add(value=float("nan"), timestamp=1_700_000_000_009)
    sink = MemorySink()
    receiver = RemoteWriteReceiver("r", {"port": 0})
    with at_work(receiver, sink):
        address = receiver.address
        assert post(address, "/api/v1/write", snapped(request.SerializeToString()))[0] == 204
        assert post(address, "/api/v1/write", request.SerializeToString())[0] == 400, (
            "not compressed"
        )
        assert post(address, "/api/v1/write", snapped(b"\x0a\xff\xff"))[0] == 400
        assert post(address, "/api/v1/write", b"\xff\xff\xff\xff\x0f" + b"x" * 10)[0] == 400, (
            "4 GiB"
        )
    rows = sink.rows("r")
    assert len(rows) == 12
    assert rows[5] == {
        "metric": "disk_read_bytes_total",
        "labels": '{"dev":"sd1"}',
        "utc_ns": 1_700_000_000_001_000_000,
        "float": 1.25,
        "unit": "B",
    }
    assert receiver.intake.receipt.refused["not finite"] == 1
    sent = native.remote_write_message(
        [("m", {"a": "b"}), ("n", {})], [[(1, 0.5), (-2, 1.5)], [(3, float("inf"))]]
    )
    back = write_request().FromString(sent)
    assert [(label.name, label.value) for label in back.timeseries[0].labels] == [
        ("__name__", "m"),
        ("a", "b"),
    ]
    assert [(s.timestamp, s.value) for s in back.timeseries[0].samples] == [(1, 0.5), (-2, 1.5)]
    assert back.timeseries[1].samples[0].value == float("inf")


def points_of(reader: Any) -> list[tuple[str, dict[str, str], int, float]]:
    """Points read by a reader."""
    columns = reader.take()
    return [
        (columns["metrics"][m], json.loads(columns["label_sets"][ls]), ns, value)
        for m, ls, ns, value in zip(
            np.frombuffer(columns["metric"], np.int32),
            np.frombuffer(columns["labels"], np.int32),
            np.frombuffer(columns["utc_ns"], np.int64).tolist(),
            np.frombuffer(columns["bits"], np.float64).tolist(),
            strict=True,
        )
    ]


_word = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=8)
_sample = st.tuples(
    st.integers(-(10**12), 9 * 10**12), st.floats(allow_nan=False, allow_infinity=False)
)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            _word,
            st.dictionaries(_word.filter(lambda n: n != "__name__"), _word, max_size=3),
            st.lists(_sample, max_size=5),
        ),
        max_size=5,
    )
)
def test_any_remote_write_reads_and_writes_as_by_the_protocols_library(series: list[Any]) -> None:
    kind = write_request()
    request = kind()
    for metric, labels, samples in series:
        entry = request.timeseries.add()
        for name, value in sorted({"__name__": metric, **labels}.items()):
            entry.labels.add(name=name, value=value)
        for at_ms, value in samples:
            entry.samples.add(timestamp=at_ms, value=value)
    reader = native.PointReader(in_order=False)
    report = reader.remote_write(request.SerializeToString())
    assert not report["refused"], report["told"]
    expected = [(m, ls, t * 1_000_000, v) for m, ls, samples in series for t, v in samples]
    assert points_of(reader) == expected
    names = [(metric, labels) for metric, labels, _ in series]
    sent = native.remote_write_message(names, [samples for *_, samples in series])
    assert kind.FromString(sent) == request


# ---------------------------------------------------------------- scraper

_name = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
_label = st.dictionaries(
    _name.filter(lambda n: n != "le"),
    st.text(
        st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(' "\\\n{}=,#'),
        min_size=1,
        max_size=8,
    ),
    max_size=3,
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(_name, _label, st.floats(allow_nan=False, allow_infinity=False)), max_size=8)
)
def test_the_text_format_reads_as_its_own_library_reads_it(rows: list[Any]) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    lines = [
        f"{name}{{{','.join(f'{k}={chr(34)}{escaped(v)}{chr(34)}' for k, v in labels.items())}}} {value!r}\n"
        for name, labels, value in rows
    ]
    text = "".join(lines)
    expected = [
        (s.name, s.labels, s.value)
        for family in text_string_to_metric_families(text)
        for s in family.samples
    ]
    reader = native.PointReader(in_order=False)
    report = reader.exposition(text.encode(), 5, False, False, {})
    assert not report["refused"], report["told"]
    read = [(m, ls, value) for m, ls, _, value in points_of(reader)]

    def ordered(rows: list[Any]) -> list[Any]:
        return sorted(((m, sorted(ls.items()), v) for m, ls, v in rows), key=repr)

    assert ordered(read) == ordered(expected)


class Exporter(http.server.BaseHTTPRequestHandler):
    """A minimal exporter."""

    protocol_version = "HTTP/1.1"
    text, kind, status, wait_s = b"up 1\n", "text/plain; version=0.0.4", 200, 0.0

    def do_GET(self) -> None:
        time.sleep(self.wait_s)
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def exporting(tls: ssl.SSLContext | None = None, **attributes: Any) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Mine", (Exporter,), attributes)
    )
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def test_scrapes_lie_on_a_grid_and_are_counted() -> None:
    sink = MemorySink()
    with exporting(text=b"busy_ratio 0.5\nbad line here x\n") as url:
        scraper = Scraper("s", {"targets": [{"url": url, "instance": "n-0"}], "interval_s": 0.05})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].succeeded >= 20)
    receipt = scraper.intake.receipt
    rows = sink.points("s").to_pandas()
    good = rows[rows.metric == "scrape_success"]
    assert receipt.counted["due"] == len(good) + receipt.counted["missed"]
    late = rows[rows.metric == "scrape_lateness_seconds"].float
    offsets = good.utc_ns.to_numpy() - np.round(late.to_numpy() * 1e9).astype(np.int64)
    phases = ((offsets - offsets[0]) / 50e6 + 0.5) % 1
    # due times lie on a grid: the rest is the time between two readings of a clock, seldom long
    assert np.median(np.abs(phases - np.median(phases))) < 0.02
    assert set(rows[rows.metric == "busy_ratio"].unit) == {"1"}
    assert set(rows.labels) == {'{"instance":"n-0"}'}
    accounts = [a for b in sink.batches.values() for a in b.accounts]
    # the interval is reported at once to show gaps after a kill; due points at the end
    first, last = [a for a in accounts if a.metric == "busy_ratio"]
    assert first.expected is None
    assert first.interval_ns == last.interval_ns == 50_000_000
    assert last.expected == scraper.targets[0].due
    assert receipt.refused["malformed"] == scraper.targets[0].succeeded


def test_the_host_of_an_ipv6_target_has_brackets() -> None:
    """Servers refuse a request whose header Host is no host and port."""
    url = f"http://[::1]:{free_port()}/metrics"
    scraper = Scraper("s", {"targets": [url], "interval_s": 60})
    with at_work(scraper, MemorySink()):
        until(lambda: scraper.targets[0].request is not None)
    target = scraper.targets[0]
    assert target.instance == f"[::1]:{target.port}"
    assert target.request is not None
    assert dict(target.request.headers)[b"host"] == target.instance.encode()


def test_only_chosen_series_of_a_target_are_kept() -> None:
    sink = MemorySink()
    text = (
        b'disk_busy{device="sda",mode="r"} 1\ndisk_busy{device="sdb",mode="r"} 2\n'
        b'disk_busy{device="dm-0",mode="r"} 3\ndisk_reads 4\ngo_threads 5\n'
    )
    choice = {"keep": ["disk_*"], "drop": ['disk_busy{device="dm-*"*}', "*_reads"]}
    with exporting(text=text) as url:
        target = {"url": url, "instance": "n"}
        settings_of = {"targets": [target], "interval_s": 0.05, "timeout_s": 60, **choice}
        scraper = Scraper("s", settings_of)
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].due >= 4)
    rows = sink.points("s").to_pandas()
    own = {"scrape_success", "scrape_duration_seconds", "scrape_lateness_seconds"}
    assert set(rows.metric) == {"disk_busy", *own}
    assert set(rows[rows.metric == "disk_busy"].float) == {1.0, 2.0}
    accounts = {a.metric for b in sink.batches.values() for a in b.accounts}
    assert accounts == {"disk_busy", *own}, "no points are expected of dropped series"


@pytest.mark.parametrize(
    "choice",
    [
        {"keep": "disk_*"},
        {"keep": [""]},
        {"drop": ["a" * 501]},
        {"drop": [3]},
        {"keep": ["*"] * 101},
        {"drop": ["a\n"]},
    ],
)
def test_invalid_patterns_are_refused(choice: Any) -> None:
    with pytest.raises(BadInput, match=r"^s: (keep|drop): found .*; expected|found \["):
        Scraper("s", {"targets": ["http://h"], **choice})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"text": b"<html>", "kind": "text/html"}, "found a page in HTML"),
        ({"status": 500}, "found HTTP status 500"),
        ({"wait_s": 3.0}, "TimeoutError"),
    ],
)
def test_a_target_without_metrics_fails_alone(attributes: Any, message: str) -> None:
    sink = MemorySink()
    with exporting(**attributes) as bad, exporting() as good:
        settings_of = {"targets": [bad, good], "interval_s": 0.2, "timeout_s": 0.3}
        if "wait_s" not in attributes:
            settings_of["timeout_s"] = 60
        scraper = Scraper("s", settings_of)
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].failed >= 2 and scraper.targets[1].succeeded >= 1)
    assert any(message in error for error in scraper.intake.receipt.errors), (
        scraper.intake.receipt.errors
    )
    rows = sink.points("s").to_pandas()
    success = rows[rows.metric == "scrape_success"].groupby("labels", observed=True).float
    assert success.max().min() == 0.0
    assert success.max().max() == 1.0


def shown_by(*parts: bytes, wait_s: float = 0.0) -> Iterator[str]:
    """A target that answers each request with these bytes, and closes the connection after an empty
    part.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while True:
                    while (line := self.rfile.readline()) != b"\r\n":
                        if not line:
                            return
                    for part in parts:
                        if not part:
                            return
                        self.wfile.write(part)
                        self.wfile.flush()
                        time.sleep(wait_s)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"Content-Length: 8\r\n\r\na 1\n", b"b 2\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n4;x=y\r\nb 2", b"\n\r\n0\r\n\r\n"),
        (OK + b"transfer-encoding: chunked\r\n\r\n8\r\na 1\nb 2\n\r\n0\r\nX: y\r\n\r\n",),
        (OK + b"\r\na 1\n", b"b 2\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length:8\r\n\r\na 1\nb 2\n",),
        (OK + b"Connection: close\r\nContent-Length: 8\r\n\r\na 1\nb 2\n", b""),
        tuple(bytes([c]) for c in OK + b"Content-Length: 8\r\n\r\na 1\nb 2\n"),
    ],
)
def test_responses_in_all_valid_forms_are_read(parts: tuple[bytes, ...]) -> None:
    """Fails if a body is cut at the end of a packet, the size of a chunk is read as a metric, or a
    closed connection is used again.
    """
    sink = MemorySink()
    with contextlib.contextmanager(shown_by)(*parts) as url:
        scraper = Scraper("s", {"targets": [url], "interval_s": 0.05, "timeout_s": 60})
        with at_work(scraper, sink):
            until(lambda: sum(r["metric"] == "b" for r in sink.rows()) >= 4)
    rows = [(r["metric"], r["float"]) for r in sink.rows() if not r["metric"].startswith("scrape")]
    assert set(rows) == {("a", 1.0), ("b", 2.0)}
    assert rows.count(("a", 1.0)) == rows.count(("b", 2.0))
    assert not scraper.intake.receipt.counted["failed"], scraper.intake.receipt.errors


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((b"SSH-2.0-x\r\n",), "found no HTTP"),
        ((b"HTTP/1.1 999 x\r\n\r\n",), "found no HTTP"),
        ((OK + b"Content-Length: 99999999\r\n\r\n",), "found more than 16777216 bytes"),
        ((OK + b"Content-Length: x\r\n\r\n",), "bad Content-Length"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n",), "illegal chunk header"),
        ((OK + b"Transfer-Encoding: gzip\r\n\r\n",), "Transfer-Encoding"),
        ((OK + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",), "a coding"),
        ((OK + b"X: " + b"y" * 70_000,), "a head of more than"),
        ((OK + b"Content-Length: 8\r\n\r\na 1", b""), "a connection that was closed"),
        ((b"",), "a connection that was closed"),
        ((OK + b"\r\n", *[b"a 1\n" * 262_144] * 17, b""), "found more than 16777216 bytes"),
    ],
)
def test_an_invalid_response_is_reported_and_scrapes_go_on(
    parts: tuple[bytes, ...], message: str
) -> None:
    sink = MemorySink()
    with contextlib.contextmanager(shown_by)(*parts) as url, exporting() as good:
        scraper = Scraper("s", {"targets": [url, good], "interval_s": 0.1, "timeout_s": 60})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].failed >= 2 and scraper.targets[1].due >= 4)
    assert any(message in error for error in scraper.intake.receipt.errors), (
        scraper.intake.receipt.errors
    )
    assert {r["metric"] for r in sink.rows() if not r["metric"].startswith("scrape")} == {"up"}


def test_an_endless_response_exceeds_its_timeout() -> None:
    """A target that sends a line now and then for ever exceeds its timeout."""
    sink = MemorySink()
    forever = (OK + b"\r\n", *[b"a 1\n"] * 400)
    with contextlib.contextmanager(shown_by)(*forever, wait_s=0.05) as url, exporting() as good:
        scraper = Scraper("s", {"targets": [url, good], "interval_s": 0.2, "timeout_s": 0.5})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].failed >= 3 and scraper.targets[1].due >= 8)
    assert any("TimeoutError" in error for error in scraper.intake.receipt.errors)
    assert scraper.targets[0].missed >= 3
    assert "a" not in {r["metric"] for r in sink.rows()}


def test_series_of_equal_targets_are_distinct() -> None:
    """Fails if two targets share the state of a series."""
    sink = MemorySink()
    with exporting(text=b"x 1\n") as first, exporting(text=b"x 2\n") as second:
        settings_of = {"targets": [first, second], "interval_s": 0.05, "timeout_s": 60}
        scraper = Scraper("s", settings_of)
        with at_work(scraper, sink):
            until(lambda: min(t.due for t in scraper.targets) >= 5)
    rows = {(r["labels"], r["float"]) for r in sink.rows() if r["metric"] == "x"}
    assert {value for _, value in rows} == {1.0, 2.0}
    assert len(rows) == len({labels for labels, _ in rows}) == 2
    accounts = [a for b in sink.batches.values() for a in b.accounts if a.metric == "x"]
    at_the_end = [a.expected for a in accounts if a.expected is not None]
    assert sorted(at_the_end) == sorted(t.due for t in scraper.targets)


def test_only_verified_https_targets_receive_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target with its own certificate is scraped, with the token, only by a scraper that trusts
    the certificate.
    """
    cert, key = certificate(tmp_path, name="exporter.example")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    authorizations: list[str] = []

    def answer(self: Any) -> None:
        authorizations.append(self.headers.get("Authorization", ""))
        Exporter.do_GET(self)

    monkeypatch.setenv("MY_TOKEN", "s3cret")
    with exporting(tls, text=b"x 1\n", do_GET=answer) as url:
        for trusted in (False, True):
            options = {"ca": str(cert), "token_from": "MY_TOKEN"} if trusted else {}
            settings = {"targets": [url], "interval_s": 0.05, "timeout_s": 60, **options}
            scraper = Scraper("s", settings)
            sink = MemorySink()
            with at_work(scraper, sink):
                until(lambda of=scraper: of.targets[0].due >= 5)
            good = {r["float"] for r in sink.rows() if r["metric"] == "scrape_success"}
            assert good == {float(trusted)}
            assert bool(authorizations) == trusted
            if not trusted:
                assert any(
                    "certificate verify failed" in error for error in scraper.intake.receipt.errors
                )
        assert set(authorizations) == {"Bearer s3cret"}
        other = url.replace("127.0.0.1", "localhost")
        settings = {"targets": [other], "interval_s": 0.05, "ca": str(cert)}
        scraper = Scraper("s", settings)
        with at_work(scraper, MemorySink()):
            until(lambda: scraper.targets[0].due >= 3)
        assert scraper.targets[0].succeeded == 0, "the certificate is for another name"
        scraper = Scraper("s", {"targets": [url], "ca": str(cert), "token_from": "NOT_THERE"})
        with pytest.raises(BadInput, match=r"found no token in \$NOT_THERE"):
            Collecting({"s": scraper}, MemorySink()).start()
        scraper = Scraper("s", {"targets": [url], "ca": str(key)})
        with pytest.raises(BadInput, match="expected PEM"):
            Collecting({"s": scraper}, MemorySink()).start()


def test_invalid_settings_are_refused() -> None:
    for settings_of, message in (
        ({"targets": []}, "found 0 targets"),
        ({"targets": ["ftp://x"]}, "expected http://HOST:PORT/PATH"),
        ({"targets": ["http://x:99999"]}, "expected http://HOST:PORT/PATH"),
        ({"targets": ["x"], "interval_s": 0.001}, r"expected 0\.01 to 86400"),
        ({"targets": ["x"], "every": 1}, "found every; expected targets"),
        ({"targets": ["https://x", "y"], "token_from": "T"}, "expected https for all"),
        ({}, "found no targets"),
    ):
        with pytest.raises(BadInput, match=message):
            collectors_of({"s": {"type": "scrape", **settings_of}})
    with pytest.raises(BadInput, match="found collector 'nothing'; expected scrape"):
        collectors_of({"nothing": {}})


def test_a_port_in_use_stops_all_receivers() -> None:
    first = InfluxReceiver("a", {"port": 0})
    with at_work(first, MemorySink()):
        second, third = (
            GraphiteReceiver("b", {"port": 0}),
            InfluxReceiver("c", {"port": first.address[1]}),
        )
        with pytest.raises(PenstockError, match="address already in use"):
            Collecting({"b": second, "c": third}, MemorySink()).start()


# ---------------------------------------------------------------- clocks, ranges, units


def test_the_clock_offset_is_that_of_the_quickest_exchange() -> None:
    draw = random.Random(1)
    exchanges = []
    for _ in range(8):
        forth, back = draw.randrange(1000, 90_000), draw.randrange(1000, 90_000)
        sent = draw.randrange(10**12)
        exchanges.append(Exchange(sent, sent + forth + 300_000_000, sent + forth + back))
    offset = offset_of(exchanges)
    assert abs(offset.offset_ns - 300_000_000) <= offset.bound_ns
    later = Offset(offset.offset_ns + 5_000_000, offset.bound_ns, 8)
    assert offset.drift(later) == 5_000_000 - 2 * offset.bound_ns
    assert later.drift(later) == 0
    assert offset.bound_ns == min((e.received_ns - e.sent_ns + 1) // 2 for e in exchanges)
    with pytest.raises(BadInput, match="found 7 exchanges; expected at least 8"):
        offset_of(exchanges[:7])


@pytest.mark.parametrize("steps", [0, 1, MOST_POINTS - 1, MOST_POINTS, 25_200, 3 * MOST_POINTS - 1])
def test_ranges_cover_each_step_once(steps: int) -> None:
    start, step = 1_700_000_000_000_000_000, 1_000_000_000
    parts = list(ranges(start, start + steps * step + step // 2, step))
    times = [t for first, last in parts for t in range(first, last + 1, step)]
    assert times == [start + k * step for k in range(steps + 1)]
    assert max((last - first) // step + 1 for first, last in parts) <= MOST_POINTS
    assert len(parts) == -(-(steps + 1) // MOST_POINTS)


def test_units_by_name_and_unprintable_names() -> None:
    names = ["node_cpu_seconds_total", "go_memstats_alloc_bytes", "up", "a_ratio", "x_total"]
    assert [unit_of(m) for m in names] == ["s", "B", "", "1", ""]
    reader = native.PointReader()
    reader.graphite("ok 1 1\nbad\u200b 1 1\n".encode(), 5)
    columns = reader.take()
    table, odd = table_of(columns)
    assert (table["metric"].to_pylist(), odd.tolist()) == (["ok"], [False, True])
    empty, _ = table_of(native.PointReader().take())
    assert empty.num_rows == 0
    assert pa.types.is_dictionary(table["metric"].type)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1, 0, 1e18, 10**400])
@pytest.mark.parametrize(
    ("kind", "key"), [("scrape", "interval_s"), ("scrape", "timeout_s"), ("graphite", "interval_s")]
)
def test_times_of_settings_are_bounded(kind: str, key: str, seconds: float) -> None:
    own = {"targets": ["http://h:1/m"]} if kind == "scrape" else {}
    with pytest.raises(BadInput, match=rf"found {key} .*; expected 0\.0"):
        checked_collectors({"a": {"type": kind, key: seconds, **own}})
