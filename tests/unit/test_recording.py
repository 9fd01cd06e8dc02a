"""What a program records of itself: at once, or gathered and written in batches beside it."""

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
from tests.unit.shared_runs import own_store
from tests.unit.test_collectors import until
from tests.unit.test_experiment_server import Server

QUEUE = Series("queue", "{}", "1", "integer", ("utc_ns",))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    return own_store(tmp_path, monkeypatch)


def rows(store: Experiments, name: str, metric: str) -> list[tuple[int | None, int | None, object]]:
    made = store.recorded(store.find(name, None))
    (row,) = (r for r in made.series.to_pylist() if r["metric"] == metric)
    return [
        (p["utc_ns"], p["index"], p[row["type"]])
        for p in made.points.to_pylist()
        if p["series_id"] == row["series_id"]
    ]


def one(value: int, at_ns: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([value]), np.array([at_ns])


def test_what_is_gathered_is_all_there_in_few_batches(store: Experiments) -> None:
    """Five thousand calls, two hundred of many values; every one is kept, and batches have no holes."""
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
    made = store.recorded(store.find("x", None))
    assert "batches" not in made.gaps["kind"].to_pylist()
    assert {r["metric"]: r["produced"] for r in made.series.to_pylist()} == {
        "queue": 5000,
        "speed": 400,
        "state": 2,
    }


def test_nothing_is_written_before_its_time_and_all_at_the_end() -> None:
    """Batches are numbered from 0 on, and the last one says how many points there were."""
    sink = MemorySink()
    made = Buffered(sink.write, "me", math.inf)
    for n in range(250_001):
        made.add(QUEUE, *one(n, n))
    assert sink.batches == {}
    made.close()
    numbers = sorted(number for _, number in sink.batches)
    assert numbers == [0, 1, 2]
    assert [r["integer"] for r in sink.rows("me")] == list(range(250_001))
    accounts = [[a.produced for a in sink.batches["me", n].accounts] for n in numbers]
    assert accounts == [[], [], [250_001]]
    slow = MemorySink()
    timed = Buffered(slow.write, "me", 0.01)
    timed.add(QUEUE, *one(1, 1))
    until(lambda: slow.batches)
    timed.add(QUEUE, *one(2, 2))
    timed.close()
    assert [r["integer"] for r in slow.rows("me")] == [1, 2]
    assert sorted(number for _, number in slow.batches) in ([0, 1], [0, 1, 2])


class Away(MemorySink):
    """A store that does not answer while it is `away`; it may have kept what it did not acknowledge."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.asked = True, threading.Event()

    def write(self, batch: Batch) -> None:  # type: ignore[override]
        super().write(batch)
        self.asked.set()
        if self.away:
            raise Unreachable("http://nobody: it does not answer")


def test_a_store_that_is_away_gets_it_once_when_it_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = Away()
    made = Buffered(sink.write, "me", 0.01)
    for n in range(100):
        made.add(QUEUE, *one(n, n))
        if n == 10:
            assert sink.asked.wait(60)
    sink.away = False
    made.close()
    assert [r["integer"] for r in sink.rows("me")] == list(range(100))
    numbers = sorted(number for _, number in sink.batches)
    assert numbers == list(range(len(numbers)))
    assert capsys.readouterr().err.count("trying again") == 1


def test_a_store_that_stays_away_is_told_with_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buffered, "PATIENCE_S", 0.3)
    monkeypatch.setattr(buffered, "MOST_WAITING", 50)
    made = Buffered(Away().write, "me", math.inf)
    for n in range(60):
        made.add(QUEUE, *one(n, n))
    made.close()
    assert capsys.readouterr().err.splitlines()[-1] == "penstock: 60 points were not stored"


def test_what_a_store_refuses_is_raised_by_the_next_call_and_at_the_end() -> None:
    sink = MemorySink()
    sink.fails = 1000
    made = Buffered(sink.write, "me", 0.01)
    made.add(QUEUE, *one(1, 1))

    def fails() -> bool:
        try:
            made.add(QUEUE, *one(2, 2))
        except PenstockError as error:
            return "no space left" in str(error)
        return False

    until(fails)
    with pytest.raises(PenstockError, match="no space left"):
        made.close()


def test_a_text_that_is_none_is_told_at_the_end(
    store: Experiments, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a character among many: what was gathered with it is counted as lost."""

    def block() -> None:
        with penstock.experiment("x", every_s=math.inf) as x:
            x.record("state", ["on"], [1])
            x.record("state", ["\ud800"], [2])

    with pytest.raises(BadInput, match="in column text"):
        block()
    assert "penstock: 2 points were not stored" in capsys.readouterr().err
    assert store.find("x", None).state == "ended"


def test_a_sequence_has_its_numbers_with_times_or_without(store: Experiments) -> None:
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


def test_values_may_be_changed_after_they_were_recorded(store: Experiments) -> None:
    values = np.arange(3.0)
    with penstock.experiment("x", every_s=math.inf) as x:
        x.record("m", values, [1, 2, 3], index=[0, 1, 2])
        values[:] = -1
    assert [v for *_, v in rows(store, "x", "m")] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("options", [{}, {"every_s": 60.0}])
def test_what_is_wrong_is_told_at_once(store: Experiments, options: dict[str, float]) -> None:
    with penstock.experiment("x", **options) as x:
        for wrong, said in (
            (lambda: x.record("m", object()), "expected numbers, texts or truth values"),
            (lambda: x.record("", 1), "found a metric without a name"),
            (lambda: x.record("m", [1, 2], [1]), "found 2 values and 1 of utc_ns"),
            (lambda: x.record("m", 1, index=-1), "found an index below 0"),
            (lambda: x.record("m", np.uint64(1 << 63)), "expected integers below"),
        ):
            with pytest.raises(BadInput, match=said):
                wrong()
        x.record("m", 1)
    assert len(rows(store, "x", "m")) == 1
    for none in (0, -1.0, math.nan):
        with (
            pytest.raises(BadInput, match="expected more than 0"),
            penstock.experiment("y", every_s=none),
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
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (3, b"")
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


def test_a_program_does_not_wait_for_a_server_that_stands_still(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is stopped, everything is recorded, and only then it goes on: it has all of it."""
    with penstock.experiment("x", server=server.url, every_s=0.1) as x:
        begin = time.time_ns()
        x.record("m", 0, begin)
        until(lambda: server.get("x", metric="m").text.count("\n") == 2)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            for n in range(1, 20_001):
                x.record("m", n, begin + n)
            # longer than it may take to answer
            until(lambda: "trying again" in capsys.readouterr().err)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
    lines = server.get("x", metric="m").text.splitlines()[1:]
    assert [int(line.split(",")[1]) for line in lines] == list(range(20_001))
    (told,) = server.http.get("/api/v1/experiments/x/series").json()["series"]
    assert (told["produced"], told["stored"], told["duplicate"]) == (20_001, 20_001, 0)


def test_where_no_experiment_could_be_begun_the_block_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with penstock.experiment("x", server="http://127.0.0.1:1", every_s=0.05) as x:
        x.record("m", 1)
        reached = True
    assert reached
    assert "nothing is recorded" in capsys.readouterr().err
