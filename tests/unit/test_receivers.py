"""Receivers at their ports, from start to stop: the counts of sent points balance for each of them."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import pickle
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.graphite import GraphiteReceiver
from penstock.parts.monitoring.collectors.http_push import (
    InfluxReceiver,
    RemoteWriteReceiver,
    snapped,
)
from penstock.parts.monitoring.collectors.scrape import Scraper
from penstock.parts.monitoring.conformance import Ledger, Sent, check_balance, check_receiver
from penstock.parts.monitoring.experiments.points import Batch, Event, points
from penstock.parts.monitoring.experiments.recorded import recorded, refusals
from penstock.testing import MemorySink
from tests.support.waiting import until
from tests.unit.test_collectors import OK, at_work, exporting, shown_by

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
V1 = "application/x-protobuf;proto=prometheus.WriteRequest"
V2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"


def posted(
    address: tuple[str, int], path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str]]:
    """Status and headers (in lower case) of a response; the request has no additional headers."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.putrequest("POST", path)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        response.read()
        return response.status, {n.lower(): v for n, v in response.getheaders()}
    finally:
        connection.close()


def pickled(address: tuple[str, int], *messages: bytes, cut: int = 0) -> None:
    """Send pickles on one connection as Carbon's client does, without the last `cut` bytes."""
    with socket.create_connection(address) as sent:
        framed = b"".join(struct.pack("!L", len(m)) + m for m in messages)
        sent.sendall(framed[: len(framed) - cut])


# ---------------------------------------------------------------- Graphite


def test_a_boolean_among_numbers_is_stored_as_a_number() -> None:
    now = time.time_ns() // SECOND

    def send(receiver: Any) -> Ledger:
        entries: list[Any] = [(f"n.{i}", (now, i)) for i in range(499)] + [("flag", (now, True))]
        pickled(receiver.pickle_address, pickle.dumps(entries, protocol=2))
        until(lambda: receiver.intake.receipt.received >= 500)
        return Ledger([Sent(name, {}, now * SECOND) for name, _ in entries])

    outcome = check_receiver(GraphiteReceiver, {"port": 0, "pickle_port": 0}, send)
    flag = next(r for r in outcome.series.to_pylist() if r["metric"] == "flag")
    assert outcome.points.filter(pa_equal(outcome, flag)).column("float").to_pylist() == [1.0]


def pa_equal(outcome: Any, row: Mapping[str, Any]) -> Any:
    import pyarrow.compute as pc

    return pc.equal(outcome.points["series_id"], row["series_id"])


def test_counts_of_graphite_protocols_balance() -> None:
    now = time.time_ns() // SECOND

    def send(receiver: Any) -> Ledger:
        sent = [Sent("a", {}, (now + n) * SECOND) for n in range(3)]
        with socket.create_connection(receiver.address) as lines:
            lines.sendall(b"".join(b"a %d %d\n" % (n, now + n) for n in range(3)))
            lines.sendall(b"a 1 %d\nb nan %d\nwrong\nno end 1 1" % (now, now))
        sent += [Sent("a", {}, 0, "backwards"), Sent("b", {}, now * SECOND, has_value=False)]
        sent += [Sent("?", {}, 0, "malformed")] * 2
        good = pickle.dumps([("c", (now, 1)), ("c", (now + 3600, 2)), ("c", (now, None))])
        # a malformed pickle does not close the connection: the next one may be valid
        pickled(receiver.pickle_address, b"no pickle", good)
        pickled(receiver.pickle_address, good, cut=2)
        pickled(receiver.pickle_address, b"x" * ((1 << 20) + 1))
        sent += [Sent("c", {}, now * SECOND), Sent("c", {}, now * SECOND + HOUR)]
        sent += [Sent("c", {}, 0, "malformed")]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.sendto(b"d 1 %d" % now, receiver.address)
        sent += [Sent("d", {}, now * SECOND)]
        receipt = receiver.intake.receipt
        until(lambda: receipt.received >= len(sent) and receipt.refused_messages.total() >= 3)
        return Ledger(sent, {"malformed": 1, "broke off": 1, "too long": 1})

    outcome = check_receiver(GraphiteReceiver, {"port": 0, "pickle_port": 0}, send)
    row = next(r for r in outcome.series.to_pylist() if r["metric"] == "c")
    # its times are full seconds: the current second may precede the start
    assert (row["stored"], row["outside"]) in ((1, 1), (0, 2))


# ---------------------------------------------------------------- line protocol


def test_unsigned_numbers_of_64_bits_are_stored() -> None:
    now = time.time_ns()

    def send(receiver: Any) -> Ledger:
        body = b"pool,name=tank alloc=2590195507200u,free=18446744073709551615u %d" % now
        assert posted(receiver.address, "/write", body)[0] == 204
        return Ledger([Sent(f"pool_{f}", {"name": "tank"}, now) for f in ("alloc", "free")])

    outcome = check_receiver(InfluxReceiver, {"port": 0}, send)
    types = {r["metric"]: r["type"] for r in outcome.series.to_pylist()}
    assert types == {"pool_alloc": "integer", "pool_free": "float"}
    assert sorted(v for v in outcome.points["float"].to_pylist() if v is not None) == [2.0**64]


def test_counts_of_line_protocol_balance() -> None:
    now = time.time_ns()
    token = {"Authorization": "Token s3cret"}

    def send(receiver: Any) -> Ledger:
        def post(body: bytes, path: str = "/write", **headers: str) -> int:
            return posted(receiver.address, path, body, {**token, **headers})[0]

        assert post(b"m v=1 %d" % now) == 204
        assert post(b"m v=1 %d" % now) == 204, "a repeated point"
        assert post(b"m a=1,v=x,b=2 %d\nm v=2 %d" % (now, now + 1)) == 400
        assert post(b"far v=1 %d" % (now + HOUR)) == 204
        assert post("m,t=\u200b v=1".encode()) == 400, "a name that cannot be printed"
        odd = {"X-Penstock-Batch": "numbered 0"}
        assert post(b"n v=1 %d\nwrong" % now, **odd) == 400, "numbered, and not all of it stored"
        messages = {"unauthorized": 0, "another path": 0, "malformed": 0}
        for credentials in ({"Authorization": "Token wrong"}, {"Authorization": ""}):
            assert post(b"m v=3", **credentials) == 401
            messages["unauthorized"] += 1
        assert post(b"m v=3", "/else") == 404
        messages["another path"] += 1
        cut = gzip.compress(b"m v=3")[:-9]
        assert post(cut, **{"Content-Encoding": "gzip"}) == 400
        assert post(b"m v=3", "/write?precision=days") == 400
        members = gzip.compress(b"g v=1 %d\n" % now) + gzip.compress(b"g v=2 %d\n" % (now + 1))
        assert post(members, **{"Content-Encoding": "gzip"}) == 204, "two members of gzip"
        assert post(members + cut, **{"Content-Encoding": "gzip"}) == 400
        assert post(gzip.compress(b"\n") * 101, **{"Content-Encoding": "gzip"}) == 400
        messages["malformed"] += 4
        with socket.create_connection(receiver.address) as half:
            half.sendall(b"POST /write HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nm v=")
        until(lambda: receiver.intake.receipt.refused_messages["broke off"])
        with socket.create_connection(receiver.address) as probe:
            probe.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # a request without points
            probe.recv(100)
        sent = [Sent("m_v", {}, now), Sent("m_v", {}, now, "duplicate"), Sent("m_v", {}, now + 1)]
        sent += [Sent("?", {}, 0, "malformed")] * 5 + [Sent("far_v", {}, now + HOUR)]
        sent += [Sent("n_v", {}, now), Sent("g_v", {}, now), Sent("g_v", {}, now + 1)]
        return Ledger(sent, {**messages, "broke off": 1})

    check_receiver(InfluxReceiver, {"port": 0, "token": "s3cret"}, send)


# ---------------------------------------------------------------- remote write


def varint(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def of_bytes(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def version_2(now_ms: int, value: float = 3.0) -> bytes:
    """A message of remote write 2.0: one sample of `m{a="b"}`, one native histogram, an exemplar."""
    symbols = b"".join(of_bytes(4, s) for s in (b"", b"__name__", b"m", b"a", b"b"))
    sample = b"\x09" + struct.pack("<d", value) + b"\x10" + varint(now_ms)
    refs = of_bytes(1, bytes([1, 2, 3, 4]))
    return symbols + of_bytes(5, refs + of_bytes(2, sample) + of_bytes(4, b""))


def test_remote_write_2_is_stored_and_its_response_has_the_counts() -> None:
    now_ms = time.time_ns() // 1_000_000

    def send(receiver: Any) -> Ledger:
        def post(message: bytes, kind: str | None, **headers: str) -> tuple[int, dict[str, str]]:
            request_headers = {"Content-Encoding": "snappy", **headers}
            request_headers |= {} if kind is None else {"Content-Type": kind}
            return posted(receiver.address, "/api/v1/write", snapped(message), request_headers)

        def written(headers: Mapping[str, str]) -> list[str]:
            names = ("samples", "histograms", "exemplars")
            return [headers[f"x-prometheus-remote-write-{n}-written"] for n in names]

        message = version_2(now_ms)
        status, headers = post(message, V2)
        assert (status, written(headers)) == (204, ["1", "0", "0"])
        assert post(message, V2)[0] == 204, "a repeated sample"
        assert written(post(message, V2)[1]) == ["1", "0", "0"], "the sample is stored already"
        status, headers = post(message, V1)
        assert status == 400, "2.0 with the content type of 1.0"
        histogram = of_bytes(5, of_bytes(1, bytes([1, 2, 3, 4])) + of_bytes(3, b"") * 2)
        status, headers = post(version_2(now_ms + 1) + histogram, V2)
        assert (status, written(headers)) == (400, ["1", "0", "0"]), "histograms are not stored"
        label = of_bytes(1, of_bytes(1, b"__name__") + of_bytes(2, b"old"))
        old = of_bytes(1, label + of_bytes(2, b"\x10" + varint(now_ms)))
        for kind in (None, "application/x-protobuf", V1, V1.upper()):
            assert post(old, kind)[0] == 204, kind
        unsupported = [
            (message, "application/x-protobuf;proto=io.prometheus.write.v3.Request", {}),
            (b"{}", "application/json", {}),
            (message, V2, {"Content-Encoding": "zstd"}),
        ]
        for body, kind, coding in unsupported:
            assert post(body, kind, **coding)[0] == 415, kind
        assert post(message[:-1], V2)[0] == 400
        at = now_ms * 1_000_000
        labels = {"a": "b"}
        sent = [Sent("m", labels, at), Sent("m", labels, at + 1_000_000), Sent("old", {}, at)]
        sent += [Sent("m", labels, at, "duplicate")] * 2 + [Sent("old", {}, at, "duplicate")] * 3
        sent += [Sent("m", labels, 0, "native histogram")] * 2
        return Ledger(sent, {"malformed": 2, "unsupported": 3})

    check_receiver(RemoteWriteReceiver, {"port": 0}, send)


# ---------------------------------------------------------------- targets


FEDERATED = (
    b"# TYPE up untyped\n"
    b'up{instance="a:9100",job="node"} 1 1697174393576\n'
    b'up{instance="b:9100",job="node"} 0 1697174393576\n'
    b'up{instance="c:9100",job="node"} 1 1697174393576\n'
)


@pytest.mark.parametrize("honor", [False, True])
def test_a_target_with_several_instances_keeps_their_labels(honor: bool) -> None:
    sink = MemorySink()
    with exporting(text=FEDERATED) as url:
        target = {"url": url, "instance": "prom", "labels": {"job": "fed"}, "honor_labels": honor}
        scraper = Scraper("s", {"targets": [target], "interval_s": 0.05})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].due >= 4)
    assert not scraper.intake.receipt.refused
    labels = [json.loads(str(r["labels"])) for r in sink.rows() if r["metric"] == "up"]
    if honor:
        assert {s["instance"] for s in labels} == {"a:9100", "b:9100", "c:9100"}
        assert {s["job"] for s in labels} == {"node"}
    else:
        assert {s["exported_instance"] for s in labels} == {"a:9100", "b:9100", "c:9100"}
        assert {(s["instance"], s["job"], s["exported_job"]) for s in labels} == {
            ("prom", "fed", "node")
        }
    own = {str(r["labels"]) for r in sink.rows() if r["metric"] == "scrape_success"}
    assert own == {'{"instance":"prom","job":"fed"}'}


def test_points_with_times_of_their_target_are_not_one_per_scrape() -> None:
    """Fails if a scrape that repeats a point lacks one: a federation shows each point until the next."""
    sink = MemorySink()
    with exporting(text=FEDERATED) as url:
        settings = {"targets": [url], "interval_s": 0.05, "own_times": True}
        scraper = Scraper("s", settings)
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].due >= 4)
    assert scraper.intake.receipt.refused["duplicate"] >= 9
    accounts = {a.metric: a for b in sink.batches.values() for a in b.accounts}
    assert (accounts["up"].interval_ns, accounts["up"].expected) == (None, None)
    assert accounts["scrape_success"].expected == scraper.targets[0].due


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"__name__": "c"}, {"a": 1}, {"a": "\n"}])
def test_invalid_labels_of_a_target_are_refused(labels: Any) -> None:
    with pytest.raises(BadInput, match=r"^s: found label "):
        Scraper("s", {"targets": [{"url": "http://h", "labels": labels}]})


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("application/openmetrics-text; version=1.0.0", b"a 1\nb 2\n", "no # EOF"),
        ("application/openmetrics-text; version=1.0.0", b"a 1\n# EO\n", "no # EOF"),
        ("text/plain", b"a 1\nb 2", "breaks off in a line"),
    ],
)
def test_a_truncated_response_is_a_failed_scrape(kind: str, body: bytes, message: str) -> None:
    """Fails if a number without its last digits is stored."""
    sink = MemorySink()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode()
    with contextlib.contextmanager(shown_by)(head, body, b"") as url:
        scraper = Scraper("s", {"targets": [url], "interval_s": 0.05, "timeout_s": 60})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].failed >= 3)
    assert any(message in error for error in scraper.intake.receipt.errors), (
        scraper.intake.receipt.errors
    )
    assert {r["metric"] for r in sink.rows()} == {
        "scrape_success",
        "scrape_duration_seconds",
        "scrape_lateness_seconds",
    }
    assert {r["float"] for r in sink.rows() if r["metric"] == "scrape_success"} == {0.0}


def test_a_response_with_a_length_needs_no_final_newline() -> None:
    sink = MemorySink()
    parts = (OK + b"Content-Length: 7\r\n\r\na 1\nb 2",)
    with contextlib.contextmanager(shown_by)(*parts) as url:
        scraper = Scraper("s", {"targets": [url], "interval_s": 0.05, "timeout_s": 60})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].succeeded >= 2)
    assert {"a", "b"} <= {r["metric"] for r in sink.rows()}


def test_quantiles_without_observations_leave_series_complete() -> None:
    """A summary without observations, and one that has some later: both series are complete."""
    sink = MemorySink()
    text = b'# TYPE d summary\nd{quantile="0.5"} NaN\nd_count 0\n'
    start_ns = time.time_ns()
    with exporting(text=text) as url:
        scraper = Scraper("s", {"targets": [url], "interval_s": 0.05, "timeout_s": 60})
        with at_work(scraper, sink):
            until(lambda: scraper.targets[0].due >= 20)
    outcome = recorded([sink.batches[k] for k in sorted(sink.batches)], start_ns, time.time_ns())
    row = next(r for r in outcome.series.to_pylist() if r["metric"] == "d")
    due = scraper.targets[0].due
    assert row["stored"] == 0
    assert row["without_value"] >= due - 1 - scraper.targets[0].missed
    if not scraper.targets[0].missed:
        assert row["verdict"] == "complete", row
        assert outcome.verdict == "complete"
    assert scraper.intake.receipt.refused["not finite"] == row["without_value"]


# ---------------------------------------------------------------- verdicts of an experiment


def test_refused_messages_leave_a_source_incomplete() -> None:
    at = 10 * SECOND
    event = Event("refused-messages", at, at, detail="unauthorized: found no token", count=3)
    empty = Batch("lp", 0, points(metric=[]), events=[event])
    outcome = recorded([empty], 0, 20 * SECOND)
    assert outcome.verdict == "unusable"
    assert str(refusals(outcome)["lp"]) == "3 messages refused (unauthorized)"
    times = [n * SECOND for n in range(20)]
    table = points(metric=["m"] * 20, utc_ns=times, float=[1.0] * 20)
    outcome = recorded([Batch("lp", 0, table, events=[event])], 0, 20 * SECOND)
    assert outcome.series["verdict"].to_pylist() == ["complete"]
    assert outcome.verdict == "partial"


@pytest.mark.parametrize(
    ("reason", "count", "verdict"),
    [
        ("not finite", 500, "complete"),
        ("stale", 500, "complete"),
        ("malformed", 1, "complete"),
        ("malformed", 3, "partial"),
        ("native histogram", 500, "partial"),
    ],
)
def test_refused_points_count_unless_they_had_no_value(
    reason: str, count: int, verdict: str
) -> None:
    event = Event("refused", 5, 5, detail=f"{reason}: line 3: found it", count=count)
    times = [n * SECOND for n in range(200)]
    table = points(metric=["m"] * 200, utc_ns=times, float=[1.0] * 200)
    outcome = recorded([Batch("s", 0, table, events=[event])], 0, 200 * SECOND)
    assert outcome.verdict == verdict


def test_a_count_that_does_not_balance_is_detected() -> None:
    """The suite itself: a forgotten point, a point counted twice, one under another reason."""
    table = points(metric=["m"] * 2, utc_ns=[1, 2], float=[1.0, 2.0])
    outcome = recorded([Batch("it", 0, table)], 0, 10)
    receipt = type(at_receipt())("it", received=2, stored=2)
    good = [Sent("m", {}, 1), Sent("m", {}, 2)]
    check_balance(Ledger(good), outcome, receipt, (0, 10))
    for wrong in (
        Ledger(good[:1]),
        Ledger([*good, Sent("m", {}, 3)]),
        Ledger([*good, Sent("n", {}, 3)]),
        Ledger([*good, Sent("m", {}, 3, "malformed")]),
        Ledger(good, {"unauthorized": 1}),
    ):
        with pytest.raises(AssertionError):
            check_balance(wrong, outcome, receipt, (0, 10))
    with pytest.raises(AssertionError):
        check_balance(Ledger(good), outcome, receipt, (0, 1))


def at_receipt() -> Any:
    from penstock.parts.monitoring.collectors.collector import Receipt

    return Receipt("it")
