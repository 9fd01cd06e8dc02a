"""Inputs from the network or from a push: points, exposed metrics, collectors."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import pickle
import struct
from decimal import Decimal
from typing import Any

import h11
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.collector import FailedError
from penstock.parts.monitoring.collectors.columns import table_of, unit_of
from penstock.parts.monitoring.collectors.http_get import HttpConnection
from penstock.parts.monitoring.collectors.http_push import snapped, unsnapped
from penstock.parts.monitoring.collectors.products.swift import rates
from penstock.parts.monitoring.collectors.settings import checked_collectors
from penstock.parts.monitoring.experiments.points import Batch, checked
from penstock.parts.monitoring.outbox.pushing import batches_of, column_of, parsed, rows_where
from penstock.parts.monitoring.usage.swift_bandwidth import Bandwidth
from tests.fuzz import mutate as of
from tests.fuzz.drive import Target, plain

_native: Any = importlib.import_module("penstock._native")

_OBJECT_PATHS = (b"/sdb1/12/AUTH_a/c/gr\xc3\xbcn.dat", b"/sdb1/12/a/c/o/\xff?x", b"/bwinfo")


def _object_request(content: bytes) -> bool:
    """A request to an object server with penstock's filter: its answer is JSON for any request."""
    path = content.decode("latin-1")
    request = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_RANGE": path, "REMOTE_ADDR": path}

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"x"]

    bandwidth = Bandwidth(app, {})
    b"".join(bandwidth(request, lambda *_: None))
    bandwidth._token = b"the-token-of-the-filter"
    authorised = {"PATH_INFO": "/osinfo", "HTTP_X_PENSTOCK_TOKEN": bandwidth._token.decode()}
    answer = json.loads(b"".join(bandwidth({**request, **authorised}, lambda *_: None)))
    assert "error" not in answer
    return bool(answer)


_LINES = (
    b'disk,host=a,dev=sd\\ a busy=0.5,ops=3i,name="a \\"b\\", c",up=t 1700000000123456789\n'
    b"# a comment\npower,outlet=1 value=1.5\n\npower,outlet=1 watts=2.5,volts=230i 1700000003000000000\n",
)

_GRAPHITE = (b"a.b 1.5 1700000000\na.b;host=x;dev=y 2 1700000000.25\nc 3 -1\nd nan 5\n",)

_EXPOSITIONS = (
    b'# HELP a b\n# TYPE a counter\na{x="1",y="a\\"b}\\n",} 3 1700000000123\nb 4\nc{z=""} +Inf\n',
    b'a_bucket{le="1"} 17 1700000000.5 # {id="x"} 0.3 170\nb 2\n# EOF\n',
)

_PICKLES = [
    pickle.dumps([("a.b", (1700000000 + n, n / 2)) for n in range(4)] + [["c", [1, "2"]]], protocol)
    for protocol in range(6)
]
# invalid points: objects, sets, truth values, texts in escapes, numbers of more than 64 bits
_PICKLES += [
    pickle.dumps(
        [("a\\é\n'", (1, True)), ("b", (2, {3: {4}})), ("c", (Decimal(1), 2**70)), None], protocol
    )
    for protocol in range(6)
]


def _points(protocol: str, *arguments: Any) -> Any:
    """Process a message as a receiver does, up to a table for a sink."""

    def feed(data: bytes) -> None:
        reader = _native.PointReader(most_series=50)
        for _ in range(2):
            getattr(reader, protocol)(data, *arguments)
            table, _ = table_of(reader.take(), unit_of)
            checked(Batch("fuzzed", 0, table))

    return feed


class _DiscardingTransport(asyncio.Transport):
    """A transport that discards all data."""

    def write(self, data: Any) -> None:
        """Discard the data."""

    def abort(self) -> None:
        """Do nothing: there is no connection."""

    def is_closing(self) -> bool:
        return False


def _http_answer(data: bytes) -> None:
    """An answer of a scraper's target, in two packets, and the end of its connection."""

    async def receive() -> None:
        connection = HttpConnection()
        connection.connection_made(_DiscardingTransport())
        request = h11.Request(method="GET", target="/metrics", headers=[("Host", "x")])
        response = asyncio.ensure_future(connection.get(request))
        await asyncio.sleep(0)
        for part in (data[: len(data) // 3], data[len(data) // 3 :]):
            connection.data_received(part)
        connection.connection_lost(None)
        with contextlib.suppress(FailedError, EOFError):
            await asyncio.wait_for(response, 10)

    asyncio.run(receive())


_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\na 1\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\na 1\n\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 500\r\nConnection: close\r\n\r\nno",
)


def _push_file(suffix: str) -> Any:
    """Process a pushed file, up to batches for a sink."""

    def feed(data: bytes) -> bool:
        table = parsed(io.BytesIO(data), suffix, "fuzzed")
        batches = 0
        for name in table.column_names[:5]:
            with contextlib.suppress(BadInput):
                values = column_of(rows_where(table, {}), name)
                for batch in batches_of(values, metric="m", labels={}, batch_points=2):
                    checked(batch)
                    batches += 1
        return batches > 0

    return feed


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}), sink)
    return sink.getvalue()


def _collectors(data: bytes) -> bool:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return bool(checked_collectors(config))


def _remote_write(data: bytes) -> None:
    _points("remote_write")(unsnapped(data))


def _remote_writes() -> list[bytes]:
    message = _native.remote_write_message(
        [("m", {"a": "b"}), ("n_bytes", {})], [[(1, 0.5), (2, 1.5)], [(3, 7.0)]]
    )
    return [bytes(message)]


def _remote_writes2() -> list[bytes]:
    """A message of remote write 2.0: a sample, a histogram and an exemplar of `m{a="b"}`."""
    symbols = b"".join(bytes([0x22, len(s)]) + s for s in (b"", b"__name__", b"m", b"a", b"b"))
    sample = b"\x12\x0c\x09" + struct.pack("<d", 3.0) + b"\x10\xe8\x07"
    series = b"\x0a\x04\x01\x02\x03\x04" + sample + b"\x1a\x00\x22\x00"
    return [symbols + bytes([0x2A, len(series)]) + series]


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        plain("http-answer", of.of_text(*_ANSWERS), _http_answer),
        plain("line-protocol", of.of_text(*_LINES), _points("line_protocol", 5, 1)),
        plain("graphite-lines", of.of_text(*_GRAPHITE), _points("graphite", 5)),
        plain("graphite-pickle", of.of_bytes(*_PICKLES), _points("pickle", 5), ValueError),
        *(
            plain(
                f"shown-metrics-{n}",
                of.of_text(text),
                _points("exposition", 5, bool(n), True, {"i": "n", "x": "y"}, bool(n)),
                ValueError,  # truncated OpenMetrics
            )
            for n, text in enumerate(_EXPOSITIONS)
        ),
        plain("remote-write", of.of_bytes(*_remote_writes()), _points("remote_write"), ValueError),
        plain(
            "remote-write-2", of.of_bytes(*_remote_writes2()), _points("remote_write2"), ValueError
        ),
        plain(
            "remote-write-packed",
            of.of_bytes(*(snapped(message) for message in _remote_writes())),
            _remote_write,
            ValueError,
            BadInput,
        ),
        plain(
            "swift-bwinfo",
            of.of_json({"sdb1": {"insta": 1.5, "mean1min": 2}, "sdb2": {"insta": None}}),
            lambda d: bool(rates(d)),
            BadInput,
        ),
        plain("swift-request", of.of_text(*_OBJECT_PATHS), _object_request),
        *(
            plain(f"push-{suffix}", make(*seeds), _push_file(f".{suffix}"), BadInput, cost=8)
            for suffix, make, seeds in (
                ("csv", of.of_text, (b"a,b,c\n1,x,0.5\n2,y,1.5\n", b"t,v\n1,\n2,3\n")),
                ("jsonl", of.of_text, (b'{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n',)),
                ("parquet", of.of_bytes, (_parquet(),)),
            )
        ),
        plain(
            "collectors",
            of.of_text(
                b'{"d": {"type": "scrape", "targets": ["http://h:1/m"], "experiments": "x*"}}',
                b'{"snmp": {"host": "h", "outlets": [{"oid": "1.3.6.1", "metric": "m"}]}}',
            ),
            _collectors,
            BadInput,
        ),
    ]
