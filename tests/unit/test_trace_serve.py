"""A served trace: views counted from the requests, asked over real HTTP on loopback."""

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
Made = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def made() -> Made:
    return events(60_000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, made: Made) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    bundle = write_bundle(folder / "bundle", made, names={1: "/data/</script>"})
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
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read(), answer.headers


def status(url: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(url)
    return int(refused.value.code)


def view(address: str, file_id: int = 1, **asked: Any) -> tuple[Any, bytes]:
    query = urllib.parse.urlencode(asked)
    content, headers = get(f"{address}/api/traces/0/files/{file_id}/view?{query}")
    return json.loads(headers["X-Penstock-View"]), content


def test_the_page_is_served_and_may_ask_its_server_only(address: str) -> None:
    text = get(address + "/api/traces/0/page")[0].decode()
    assert "connect-src 'self'" in text
    assert "penstockDetail" in text
    assert "/data/</script>" not in text


def test_traces_files_and_tables(address: str, made: Made) -> None:
    (told,) = json.loads(get(address + "/api/traces")[0])
    assert told["tables"]["io_events"] == len(made)
    files = json.loads(get(address + "/api/traces/0/files")[0])
    assert sum(files[0]["drawn"]) == len(transfers(made, files[0]["file_id"]))
    rows = json.loads(get(address + "/api/traces/0/tables/io_events?first=10&most=5")[0])
    assert len(rows) == 5
    assert status(address + "/api/traces/0/tables/..%2Fmanifest") == 404
    assert status(address + "/api/traces/3/files") == 404


@pytest.mark.parametrize("axis", ["number", "time"])
def test_a_wide_view_counts_every_request_once(
    address: str, made: Made, monkeypatch: pytest.MonkeyPatch, axis: str
) -> None:
    monkeypatch.setattr(index, "MOST_POINTS", 1000)
    mine = transfers(made, 1)
    end = len(mine) if axis == "number" else int(mine["t_ns"].max()) - START_NS + 1
    span = {"axis": axis, "x0": 0, "x1": end, "y0": 0, "y1": 1 << 31}
    head, content = view(address, **span, columns=300, rows=100)
    assert head["form"] == "counts"
    counts = np.frombuffer(content, "<u4").reshape(300, 100, 3)
    write = int((mine["op"] >= 32).sum())
    assert counts.sum(axis=(0, 1)).tolist() == [len(mine) - write, write, 0]
    _, content = view(address, **(span | {"x1": end / 2}), columns=300, rows=100)
    along = np.arange(len(mine)) if axis == "number" else mine["t_ns"].astype(np.int64) - START_NS
    assert np.frombuffer(content, "<u4").sum() == (along < end / 2).sum() < len(mine)


def test_a_narrow_view_gives_the_requests_themselves(address: str, made: Made) -> None:
    mine = transfers(made, 1)
    head, content = view(address, axis="number", x0=1000, x1=1499.5, y0=0, y1=1 << 40)
    assert (head["form"], head["n"], head["first"]) == ("points", 500, 1000)
    n = head["n"]
    t = np.frombuffer(content, "<i8", n, 4 * n)
    key = np.frombuffer(content, "<u8", n, 12 * n)
    latency = np.frombuffer(content, "<u8", n, 24 * n)
    some = mine[1000:1500]
    assert np.array_equal(t, some["t_ns"].astype(np.int64) - START_NS)
    assert np.array_equal(key & ((1 << 62) - 1), some["offset_bytes"].astype(np.uint64))
    assert np.array_equal(key >> 62, (some["op"] >= 32).astype(np.uint64))
    assert np.array_equal(latency, some["latency_ns"])


def test_nonsense_is_refused(address: str) -> None:
    base = f"{address}/api/traces/0/files/1/view"
    assert status(f"{base}?x0=5&x1=1&y0=0&y1=9") == 400
    assert status(f"{base}?x0=nan&x1=1&y0=0&y1=9") == 422
    assert status(f"{base}?x0=0&x1=1e300&y0=0&y1=9") == 422
    assert status(f"{address}/api/traces/0/files/99/view?x0=0&x1=1&y0=0&y1=9") == 404
