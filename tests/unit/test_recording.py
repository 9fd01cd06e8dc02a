"""Values that a program records of itself: at once, or buffered and written in batches by a thread."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import penstock
from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch
from penstock.parts.monitoring.outbox import buffered
from penstock.parts.monitoring.outbox.buffered import Buffered, Series
from penstock.parts.monitoring.outbox.client import Unreachable
from penstock.testing import MemorySink
from tests.support.waiting import until
from tests.unit.shared_runs import own_store
from tests.unit.test_experiment_server import Server

QUEUE = Series("queue", "{}", "1", "integer", ("utc_ns",))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    return own_store(tmp_path, monkeypatch)


def rows(store: Experiments, name: str, metric: str) -> list[tuple[int | None, int | None, object]]:
    recorded = store.recorded(store.find(name, None))
    (row,) = (r for r in recorded.series.to_pylist() if r["metric"] == metric)
    return [
        (p["utc_ns"], p["index"], p[row["type"]])
        for p in recorded.points.to_pylist()
        if p["series_id"] == row["series_id"]
    ]


def point(value: int, at_ns: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([value]), np.array([at_ns])


def test_buffered_points_are_complete_in_few_batches(store: Experiments) -> None:
    """Five thousand calls, two hundred with many values: all points are stored, and batches have no gaps."""
    before = time.time_ns()
    with penstock.experiment("x", every_s=0.05) as x:
        for n in range(5000):
            x.record("queue", n, before + n, unit="1")
            if n % 25 == 0:
                x.record("speed", [n + 0.5, n + 0.75], [before + n, before + n + 1])
        x.record("state", ["on", "off"], [before, before + 1], labels={"node": "a"})
    assert rows(store, "x", "queue") == [(before + n, None, n) for n in range(5000)]
    assert [v for *_, v in rows(store, "x", "speed")] == [
        v for n in range(0, 5000, 25) for v in (n + 0.5, n + 0.75)
    ]
    assert [v for *_, v in rows(store, "x", "state")] == ["on", "off"]
    recorded = store.recorded(store.find("x", None))
    assert "batches" not in recorded.gaps["kind"].to_pylist()
    assert {r["metric"]: r["produced"] for r in recorded.series.to_pylist()} == {
        "queue": 5000,
        "speed": 400,
        "state": 2,
    }


def test_batches_are_written_at_intervals_and_at_the_end() -> None:
    """Batches are numbered from 0, and the last one has the number of points."""
    sink = MemorySink()
    buffer = Buffered(sink.write, "me", math.inf)
    for n in range(250_001):
        buffer.add(QUEUE, *point(n, n))
    assert sink.batches == {}
    buffer.close()
    numbers = sorted(number for _, number in sink.batches)
    assert numbers == [0, 1, 2]
    assert [r["integer"] for r in sink.rows("me")] == list(range(250_001))
    accounts = [[a.produced for a in sink.batches["me", n].accounts] for n in numbers]
    assert accounts == [[], [], [250_001]]
    timed_sink = MemorySink()
    timed = Buffered(timed_sink.write, "me", 0.01)
    timed.add(QUEUE, *point(1, 1))
    until(lambda: timed_sink.batches)
    timed.add(QUEUE, *point(2, 2))
    timed.close()
    assert [r["integer"] for r in timed_sink.rows("me")] == [1, 2]
    assert sorted(number for _, number in timed_sink.batches) in ([0, 1], [0, 1, 2])


class UnreachableStore(MemorySink):
    """A store that does not answer while it is `away`; it may have stored a batch without acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.asked = True, threading.Event()

    def write(self, batch: Batch) -> None:  # type: ignore[override]
        super().write(batch)
        self.asked.set()
        if self.away:
            raise Unreachable("http://nobody: it does not answer")


def test_an_unreachable_store_gets_each_point_once_after_its_return(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = UnreachableStore()
    buffer = Buffered(sink.write, "me", 0.01)
    for n in range(100):
        buffer.add(QUEUE, *point(n, n))
        if n == 10:
            assert sink.asked.wait(60)
    sink.away = False
    buffer.close()
    assert [r["integer"] for r in sink.rows("me")] == list(range(100))
    numbers = sorted(number for _, number in sink.batches)
    assert numbers == list(range(len(numbers)))
    assert capsys.readouterr().err.count("trying again") == 1


def test_points_lost_to_an_unreachable_store_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buffered, "PATIENCE_S", 0.3)
    monkeypatch.setattr(buffered, "MOST_WAITING", 50)
    buffer = Buffered(UnreachableStore().write, "me", math.inf)
    for n in range(60):
        buffer.add(QUEUE, *point(n, n))
    buffer.close()
    assert capsys.readouterr().err.splitlines()[-1] == "penstock: 60 points were not stored"


def test_an_error_of_the_store_is_raised_by_the_next_call_and_at_the_end() -> None:
    sink = MemorySink()
    sink.fails = 1000
    buffer = Buffered(sink.write, "me", 0.01)
    buffer.add(QUEUE, *point(1, 1))

    def fails() -> bool:
        try:
            buffer.add(QUEUE, *point(2, 2))
        except PenstockError as error:
            return "no space left" in str(error)
        return False

    until(fails)
    with pytest.raises(PenstockError, match="no space left"):
        buffer.close()


def test_an_invalid_text_is_reported_at_the_end(
    store: Experiments, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a surrogate pair: all points of its batch count as lost."""

    def block() -> None:
        with penstock.experiment("x", every_s=math.inf) as x:
            x.record("state", ["on"], [1])
            x.record("state", ["\ud800"], [2])

    with pytest.raises(BadInput, match="in column text"):
        block()
    assert "penstock: 2 points were not stored" in capsys.readouterr().err
    assert store.find("x", None).state == "ended"


def test_a_sequence_keeps_its_indices_with_and_without_times(store: Experiments) -> None:
    for options in ({}, {"every_s": 0.05}):
        with penstock.experiment("x", **options) as x:
            for n in range(3):
                x.record("offset", n * 4096, index=n, unit="B")
            x.record("stamped", [1.5, 2.5], [7, 5], index=[0, 1])
            x.record("big", np.arange(3, dtype=np.uint64), index=range(3))
        assert rows(store, "x", "offset") == [(None, 0, 0), (None, 1, 4096), (None, 2, 8192)]
        assert rows(store, "x", "stamped") == [(7, 0, 1.5), (5, 1, 2.5)]
        assert rows(store, "x", "big") == [(None, n, n) for n in range(3)]
        series = store.recorded(store.find("x", None)).series.to_pylist()
        assert {(r["kind"], r["verdict"]) for r in series} == {("sequence", "complete")}


def test_times_of_numpy_and_pandas_are_converted_to_nanoseconds(store: Experiments) -> None:
    ns = 1_700_000_000_123_000_000
    times = (np.datetime64(ns, "ns"), np.datetime64(ns // 10**6, "ms"), pd.DatetimeIndex([ns]))
    zoned = pd.DatetimeIndex([ns], tz="UTC").tz_convert("Asia/Kolkata").as_unit("us")
    times = (*times, pd.DatetimeIndex([ns]).as_unit("us"), zoned, pd.Series(zoned))
    times = (*times, float(ns // 10**9) * 1e9)
    with penstock.experiment("x") as x:
        for n, time in enumerate(times):
            x.record(f"m{n}", 1.0, time)
    recorded = [rows(store, "x", f"m{n}")[0][0] for n in range(len(times))]
    assert recorded == [ns] * 6 + [1_700_000_000 * 10**9]


def test_values_may_be_changed_after_they_were_recorded(store: Experiments) -> None:
    values = np.arange(3.0)
    with penstock.experiment("x", every_s=math.inf) as x:
        x.record("m", values, [1, 2, 3], index=[0, 1, 2])
        values[:] = -1
    assert [v for *_, v in rows(store, "x", "m")] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("options", [{}, {"every_s": 60.0}])
def test_wrong_arguments_are_refused_at_once(store: Experiments, options: dict[str, float]) -> None:
    with penstock.experiment("x", **options) as x:
        for wrong, message in (
            (lambda: x.record("m", object()), "expected numbers, texts or truth values"),
            (lambda: x.record("", 1), "found a metric without a name"),
            (lambda: x.record("m", [1, 2], [1]), "found 2 values and 1 of utc_ns"),
            (lambda: x.record("m", 1, index=-1), "found an index below 0"),
            (lambda: x.record("m", np.uint64(1 << 63)), "expected integers below"),
            # seconds since 1970
            (lambda: x.record("m", 1, 1_700_000_000.25), "expected times in ns since 1970 UTC"),
            (lambda: x.record("m", 1, np.datetime64("NaT")), "expected times in ns since 1970 UTC"),
            (lambda: x.record("m", 1, index=0.5), "expected numbers from 0"),
            (lambda: x.record("m", 1, index=np.datetime64(1, "s")), "expected numbers from 0"),
        ):
            with pytest.raises(BadInput, match=message):
                wrong()
        x.record("m", 1)
        with pytest.raises(BadInput, match="m: found unit 'ms'; expected '', as before"):
            x.record("m", 2, unit="ms")
        with pytest.raises(BadInput, match=r"m: found axes \('index',\); expected \('utc_ns',\)"):
            x.record("m", 2, index=0)
        x.record("m", 2, unit="ms", labels={"of": "another series"})
    series = store.recorded(store.find("x", None)).series.to_pylist()
    assert [(r["unit"], r["stored"]) for r in series] == [("ms", 1), ("", 1)]
    for interval in (0, -1.0, math.nan):
        with (
            pytest.raises(BadInput, match="expected more than 0"),
            penstock.experiment("y", every_s=interval),
        ):
            raise AssertionError
    assert [e.name for e in store.listed(None)] == ["x"]


def test_an_exception_and_an_exit_lose_nothing(store: Experiments, tmp_path: Path) -> None:
    text = """
import math, sys, penstock
with penstock.experiment("gone", every_s=math.inf) as x:
    for n in range(1000):
        x.record("m", n, n, index=n)
    sys.exit(3)
"""
    result = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True)
    assert (result.returncode, result.stderr) == (3, b"")
    assert [v for *_, v in rows(store, "gone", "m")] == list(range(1000))
    assert store.find("gone", None).state == "aborted"
    with contextlib.suppress(ZeroDivisionError), penstock.experiment("x", every_s=math.inf) as x:
        x.record("m", 1)
        raise ZeroDivisionError
    assert len(rows(store, "x", "m")) == 1
    manifest = Bundle.open(store.find("x", None).path).manifest
    assert manifest["state"] == "aborted"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server(tmp_path)
    monkeypatch.setenv("PENSTOCK_RUNTIME", running.environment["PENSTOCK_RUNTIME"])
    yield running
    running.end()


def test_a_program_does_not_wait_for_a_suspended_server(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is suspended while points are recorded, then resumes: it has all of them."""
    with penstock.experiment("x", server=server.url, every_s=0.1) as x:
        begin = time.time_ns()
        x.record("m", 0, begin)
        until(lambda: server.get("x", metric="m").text.count("\n") == 2)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            for n in range(1, 20_001):
                x.record("m", n, begin + n)
            # longer than the timeout of a request
            until(lambda: "trying again" in capsys.readouterr().err)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
    lines = server.get("x", metric="m").text.splitlines()[1:]
    assert [int(line.split(",")[1]) for line in lines] == list(range(20_001))
    (series,) = server.http.get("/api/v1/experiments/x/series").json()["series"]
    assert (series["produced"], series["stored"], series["duplicate"]) == (20_001, 20_001, 0)


def test_the_block_runs_even_if_no_experiment_could_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with penstock.experiment("x", server="http://127.0.0.1:1", every_s=0.05) as x:
        x.record("m", 1)
        reached = True
    assert reached
    assert "nothing is recorded" in capsys.readouterr().err
