"""Acceptance cases of experiment monitoring that are in no other test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.shared_runs import T0, S, made, own_store, penstock
from tests.unit.test_experiment_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.end()


def test_a_quarter_of_a_second_at_a_hundred_hertz(server: Server) -> None:
    """Start and end keep their nanoseconds; points at 100 Hz between them are 25 or 26 rows."""
    start, end = 1512056178_123456789, 1512056178_373456789
    response = server.http.post("/exp/q", content='{"utc_time": 1512056178.123456789}')
    assert response.status_code == 201
    times = [start - 5_000_000 + 10_000_000 * k for k in range(40)]
    assert server.push("q", 0, times, list(range(40))).status_code == 201
    assert (
        server.http.put("/exp/q", content='{"utc_time": 1512056178.373456789}').status_code == 201
    )
    experiment = server.http.get("/api/v1/experiments/q").json()
    assert (experiment["start_ns"], experiment["end_ns"]) == (start, end)
    rows = server.get("q", metric="m").text.splitlines()[1:]
    inside = [t for t in times if start <= t <= end]
    assert [r.split(",")[0] for r in rows] == [f"{t // S}.{t % S:09}".rstrip("0") for t in inside]
    assert abs(len(rows) - 25) <= 1


def test_series_that_begin_late_and_end_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Series from 0, 3 and 5 s, one of them to 7 s: empty cells outside, values in their rows."""
    monkeypatch.chdir(tmp_path)
    store = own_store(tmp_path, monkeypatch)
    series = {}
    for node, low, high in (("a", 0, 10), ("b", 3, 10), ("c", 5, 7)):
        times = np.arange(low, high + 1.0)
        series["m", node] = (times, times * 10)
    made(store, "late", series, lasted_s=10)
    penstock(*"monitor get late -m m --label node --type duration -o late.csv".split())
    rows = Path("late.csv").read_text().splitlines()
    assert rows[0] == "duration,a,b,c"
    for t, row in enumerate(rows[1:]):
        b, c = (t * 10 if t >= 3 else ""), (t * 10 if 5 <= t <= 7 else "")
        assert row == f"{t},{t * 10},{b},{c}"
    assert len(rows) == 12


def test_a_hundred_curves_from_a_file_and_from_a_server(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 curves in the SVG; the same bytes from the archived file and from the live server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_RUNTIME", server.environment["PENSTOCK_RUNTIME"])
    assert server.http.post("/exp/torrent", json={"utc_time": T0 // S}).status_code == 201
    times = (T0 + np.arange(0, 300, 5) * S).tolist()
    for peer in range(100):
        value = [min(100, max(0, t - peer)) for t in range(0, 300, 5)]
        labels = {"node": f"peer{peer:02}"}
        options = {"labels": labels, "source": f"p{peer}"}
        assert server.push("torrent", 0, times, value, metric="done", **options).status_code == 201
    url = f"{server.url}/exp/torrent/data?metric=done&type=duration"
    # live: the experiment is running
    first = penstock("plot", url, "lines", "-o", "live.svg")
    assert first.exit_code == 0, first.output
    Path("done.csv").write_bytes(server.http.get(url.removeprefix(server.url)).content)
    for name in ("one.svg", "two.svg"):
        assert penstock("plot", "done.csv", "lines", "-o", name).exit_code == 0
    svg = Path("one.svg").read_bytes()
    assert svg == Path("two.svg").read_bytes() == Path("live.svg").read_bytes()
    curves = re.findall(r'<path d="([^"]*)"[^>]*clip-path', svg.decode())
    assert sum(len(re.findall(r"[ML]", path)) > 20 for path in curves) == 100
