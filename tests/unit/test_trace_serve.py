"""A served trace: views counted from the requests, over HTTP on loopback."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import uvicorn

from penstock.parts.server import index
from penstock.parts.server.app import application
from penstock.parts.server.traces import Served
from tests.examples.trace_page import START_NS, events, write_bundle
from tests.unit.test_trace_page import transfers

TOKEN = "a-word-of-many-letters"
EventArray = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def io_events() -> EventArray:
    return events(60_000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, io_events: EventArray) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    bundle = write_bundle(folder / "bundle", io_events, names={1: "/data/</script>"})
    served = Served([bundle], folder)
    app = application(served, TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
    assert not served.folder.exists()


def get(url: str) -> tuple[bytes, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read(), response.headers


def status(url: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(url)
    return int(refused.value.code)


def view(address: str, file_id: int = 1, **parameters: Any) -> tuple[Any, bytes]:
    query = urllib.parse.urlencode(parameters)
    content, headers = get(f"{address}/api/traces/0/files/{file_id}/view?{query}")
    return json.loads(headers["X-Penstock-View"]), content


def test_the_page_may_connect_only_to_its_server(address: str) -> None:
    text = get(address + "/api/traces/0/page")[0].decode()
    assert "connect-src 'self'" in text
    assert "penstockDetail" in text
    assert "/data/</script>" not in text


def test_traces_files_and_tables(address: str, io_events: EventArray) -> None:
    (listed_trace,) = json.loads(get(address + "/api/traces")[0])
    assert listed_trace["tables"]["io_events"] == len(io_events)
    files = json.loads(get(address + "/api/traces/0/files")[0])
    assert sum(files[0]["drawn"]) == len(transfers(io_events, files[0]["file_id"]))
    rows = json.loads(get(address + "/api/traces/0/tables/io_events?first=10&most=5")[0])
    assert len(rows) == 5
    assert status(address + "/api/traces/0/tables/..%2Fmanifest") == 404
    assert status(address + "/api/traces/3/files") == 404


@pytest.mark.parametrize("axis", ["number", "time"])
def test_a_wide_view_counts_every_request_once(
    address: str, io_events: EventArray, monkeypatch: pytest.MonkeyPatch, axis: str
) -> None:
    monkeypatch.setattr(index, "MOST_POINTS", 1000)
    requests = transfers(io_events, 1)
    end = len(requests) if axis == "number" else int(requests["t_ns"].max()) - START_NS + 1
    span = {"axis": axis, "x0": 0, "x1": end, "y0": 0, "y1": 1 << 31}
    head, content = view(address, **span, columns=300, rows=100)
    assert head["form"] == "counts"
    counts = np.frombuffer(content, "<u4").reshape(300, 100, 3)
    write = int((requests["op"] >= 32).sum())
    assert counts.sum(axis=(0, 1)).tolist() == [len(requests) - write, write, 0]
    _, content = view(address, **(span | {"x1": end / 2}), columns=300, rows=100)
    abscissa = (
        np.arange(len(requests))
        if axis == "number"
        else requests["t_ns"].astype(np.int64) - START_NS
    )
    assert np.frombuffer(content, "<u4").sum() == (abscissa < end / 2).sum() < len(requests)


def test_a_narrow_view_has_single_requests(address: str, io_events: EventArray) -> None:
    requests = transfers(io_events, 1)
    head, content = view(address, axis="number", x0=1000, x1=1499.5, y0=0, y1=1 << 40)
    assert (head["form"], head["n"], head["first"]) == ("points", 500, 1000)
    n = head["n"]
    t = np.frombuffer(content, "<i8", n, 4 * n)
    key = np.frombuffer(content, "<u8", n, 12 * n)
    latency = np.frombuffer(content, "<u8", n, 24 * n)
    expected = requests[1000:1500]
    assert np.array_equal(t, expected["t_ns"].astype(np.int64) - START_NS)
    assert np.array_equal(key & ((1 << 62) - 1), expected["offset_bytes"].astype(np.uint64))
    assert np.array_equal(key >> 62, (expected["op"] >= 32).astype(np.uint64))
    assert np.array_equal(latency, expected["latency_ns"])


def test_invalid_parameters_are_refused(address: str) -> None:
    base = f"{address}/api/traces/0/files/1/view"
    assert status(f"{base}?x0=5&x1=1&y0=0&y1=9") == 400
    assert status(f"{base}?x0=nan&x1=1&y0=0&y1=9") == 422
    assert status(f"{base}?x0=0&x1=1e300&y0=0&y1=9") == 422
    assert status(f"{address}/api/traces/0/files/99/view?x0=0&x1=1&y0=0&y1=9") == 404
