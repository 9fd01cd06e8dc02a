"""Verdicts on series: declared, inferred, unknown intervals; start-up, refused points, resets."""

from __future__ import annotations

import asyncio
import http.server
import selectors
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.archive.series.expression import derived
from penstock.archive.series.incomplete import of_headers, verdict_of
from penstock.archive.series.series import Recorded as Shown
from penstock.archive.series.series import Series
from penstock.errors import BadInput
from penstock.observe.sampler.samples import SAMPLES_SCHEMA
from penstock.observe.sampler.utilisation import utilisation
from penstock.parts.monitoring.collectors import collector, scrape
from penstock.parts.monitoring.collectors.collector import Receipt
from penstock.parts.monitoring.collectors.graphite import GraphiteReceiver
from penstock.parts.monitoring.collectors.http_push import InfluxReceiver
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.collectors.scrape import Scraper
from penstock.parts.monitoring.experiments.accounting import inferred_interval
from penstock.parts.monitoring.experiments.points import Account, Batch, Event, points
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.outbox.pushing import batches_of
from penstock.parts.monitoring.outbox.sampled import sampled
from penstock.testing import MemorySink
from tests.support.waiting import until
from tests.unit.test_collectors import post

S = 10**9
T0 = 1_700_000_000 * S


def row_of(seconds: Iterable[float], lasts_s: float = 60, **more: Any) -> dict[str, Any]:
    """Row of a series with points at these seconds of an experiment."""
    times = [T0 + round(s * S) for s in seconds]
    table = points(metric="m", utc_ns=times, float=[float(n) for n in range(len(times))])
    result = recorded([Batch("s", 0, table, **more)], T0, T0 + round(lasts_s * S))
    (row,) = result.series.to_pylist()
    return row


def row_of_push(seconds: list[int], interval_s: float | None) -> dict[str, Any]:
    times = pa.chunked_array([[T0 + s * S for s in seconds]])
    values = pa.chunked_array([seconds])
    batches = batches_of(values, metric="v", labels={}, utc_ns=times, interval_s=interval_s)
    (row,) = recorded(batches, T0, T0 + 60 * S).series.to_pylist()
    return row


# ---------------------------------------------------------------- sources of intervals


def test_a_pushed_file_is_not_complete_by_itself() -> None:
    """Seconds 0, 1, 2, 3, 30 and 31 of 60.

    Fails if the stored points are compared only with the received ones.
    """
    seconds = [0, 1, 2, 3, 30, 31]
    row = row_of_push(seconds, None)
    assert (row["produced"], row["stored"], row["verdict"]) == (6, 6, "unknown")
    assert (row["interval_ns"], row["interval_from"], row["expected"]) == (None, "", None)
    row = row_of_push(seconds, 1.0)
    assert (row["verdict"], row["interval_from"], row["interval_ns"]) == ("partial", "told", S)
    assert (row["expected"], row["lost"]) == (60, 54)
    assert row_of_push(list(range(60)), 1.0)["verdict"] == "complete"
    # a sequence has no interval; its indices suffice
    (row,) = recorded(
        batches_of(pa.chunked_array([[7, 8, 9]]), metric="v", labels={}), T0, T0 + S
    ).series.to_pylist()
    assert (row["kind"], row["verdict"]) == ("sequence", "complete")
    with pytest.raises(BadInput, match="without times"):
        list(batches_of(pa.chunked_array([[1]]), metric="v", labels={}, interval_s=1.0))


@pytest.mark.parametrize(
    ("seconds", "verdict", "lost"),
    [
        (range(60), "complete", 0),
        ([s for s in range(60) if s not in (20, 21)], "partial", 2),
        # ended after half of the time, and began late
        (range(30), "partial", 30),
        (range(20, 60), "partial", 20),
        (range(9), "unknown", 0),
    ],
)
def test_an_interval_is_inferred_from_ten_points(
    seconds: Iterable[int], verdict: str, lost: int
) -> None:
    row = row_of(seconds)
    assert (row["verdict"], row["lost"]) == (verdict, lost)
    inferred = verdict != "unknown"
    assert row["interval_from"] == ("inferred" if inferred else "")
    assert row["interval_ns"] == (S if inferred else None)
    if inferred:
        assert row["expected"] == row["stored"] + lost


def test_irregular_points_have_no_interval() -> None:
    """Fails if the median of any times is taken for an interval."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(S, 500)).astype(np.int64)
    assert inferred_interval(times) is None
    # half of the points of each second are lost: the interval is still a second
    stored = np.sort(rng.choice(500, 300, replace=False)) * S
    assert inferred_interval(stored) == S
    row = row_of(times / S, lasts_s=600)
    assert (row["verdict"], row["expected"], row["lost"]) == ("unknown", None, 0)


def test_points_of_another_time_do_not_count() -> None:
    for seconds in (range(-50, -10), range(-3, 0)):
        assert row_of(seconds)["verdict"] == "unusable"
    assert row_of(range(-50, -10), accounts=(Account("m", interval_ns=S),))["verdict"] == "unusable"


@pytest.mark.parametrize(
    ("seconds", "lost", "outside"),
    [
        # the sender runs before and after the experiment
        (set(range(-30, 90)) - {20, 40, 41}, 3, 59),
        # its clock is 10 s ahead: points missing at the start arrive after the end
        (set(range(10, 71)) - {20, 40, 41}, 3, 10),
        # its clock is an hour ahead for a while, or from some time on
        ({*range(20), *range(25, 60), *range(3620, 3625)}, 0, 5),
        ({*range(50), *range(3650, 3660)}, 0, 10),
    ],
)
def test_points_outside_the_experiment_fill_no_gap(
    seconds: set[int], lost: int, outside: int
) -> None:
    row = row_of(sorted(seconds), accounts=(Account("m", interval_ns=S),))
    assert (row["lost"], row["outside"]) == (lost, outside)


def test_a_late_point_is_not_lost() -> None:
    late = [t + (0.7 if t % 10 == 5 else 0) for t in range(60)]
    row = row_of(late, accounts=(Account("m", interval_ns=S),))
    assert (row["lost"], row["expected"], row["verdict"]) == (0, 60, "complete")


def test_too_few_points_of_an_interval_are_partial_whatever_their_spacing() -> None:
    """One point every 1.4 s instead of every second: no hole is longer than 1.5 intervals."""
    row = row_of(np.arange(0, 60, 1.4), accounts=(Account("m", interval_ns=S),))
    assert row["verdict"] == "partial"
    assert row["stored"] + row["lost"] == row["expected"] >= 59


# ---------------------------------------------------------------- start-up and end


def starting(until_s: float) -> Event:
    return Event("starting", T0 + S // 10, T0 + round(until_s * S), detail="the collector starting")


def test_the_time_before_the_first_poll_is_reported_and_no_gap() -> None:
    seconds = [0.34 + n / 20 for n in range(90)]
    account = Account("m", interval_ns=S // 20, expected=90, since_ns=T0 + round(0.34 * S))
    table = points(metric="m", utc_ns=[T0 + round(s * S) for s in seconds], float=seconds)
    events = (starting(0.34), Event("ending", T0 + round(4.84 * S)))
    result = recorded([Batch("s", 0, table, (account,), events)], T0, T0 + 5 * S)
    (row,) = result.series.to_pylist()
    assert (row["stored"], row["expected"], row["lost"], row["gaps"]) == (90, 90, 0, 0)
    assert row["verdict"] == "complete"
    first, last = result.gaps.to_pylist()
    assert (first["kind"], first["start_utc_ns"]) == ("starting", T0)
    assert first["end_utc_ns"] == T0 + round(0.34 * S)
    assert (first["detail"], last["kind"]) == ("the collector starting", "ending")


def test_the_absence_of_a_collector_is_lost_time() -> None:
    """The collector is absent for 30 of 60 s.

    Fails if any time before its start, or after its end, is excused.
    """
    late = [T0 + s * S for s in range(30, 60)]
    account = Account("m", interval_ns=S, expected=30, since_ns=late[0])
    row = row_of(range(30, 60), accounts=(account,), events=(starting(30),))
    assert (row["lost"], row["expected"], row["verdict"]) == (30, 60, "partial")
    ended = Event("ending", T0 + 30 * S)
    account = Account("m", interval_ns=S, expected=30, since_ns=T0)
    row = row_of(range(30), accounts=(account,), events=(starting(0), ended))
    assert (row["lost"], row["expected"], row["verdict"]) == (30, 60, "partial")
    # a restarted collector runs to the end
    restarted = Event("starting", T0 + 31 * S, T0 + 31 * S)
    row = row_of(range(60), accounts=(Account("m", interval_ns=S),), events=(ended, restarted))
    assert row["verdict"] == "complete"


def test_lost_points_are_those_that_the_collector_counted() -> None:
    """At 50 ms the gaps are jitter, except one: expected, stored and lost points agree."""
    seconds = np.arange(100) * 0.05 + np.where(np.arange(100) % 7 == 3, 0.04, 0.0)
    stored = np.delete(seconds, 50)
    for expected, lost in ((99, 0), (100, 1), (101, 2)):
        account = Account("m", interval_ns=S // 20, expected=expected, since_ns=T0)
        row = row_of(stored, lasts_s=5, accounts=(account,))
        assert (row["stored"], row["expected"], row["lost"]) == (99, expected, lost)


class Target:
    """An exporter with changeable text; without text it fails."""

    def __init__(self, text: str) -> None:
        self.text = text
        target = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = target.text.encode()
                self.send_response(200 if body else 503)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"


@pytest.fixture
def target() -> Iterator[Target]:
    running = Target("busy_ratio 0.5\n")
    yield running
    running.server.shutdown()
    running.server.server_close()


def scraped(target: Target, interval_s: float, polls: int) -> tuple[Recorded, Any]:
    """Scrape from 0.3 s after the start of the experiment to 0.3 s before its end."""
    sink = MemorySink()
    begin = time.time_ns() - 3 * S // 10
    settings = {"targets": [{"url": target.url, "instance": "n"}], "interval_s": interval_s}
    scraper = Scraper("s", settings)
    with Collecting({"s": scraper}, sink):
        until(lambda: scraper.targets[0].due >= polls)
    return recorded(sink.batches.values(), begin, time.time_ns() + 3 * S // 10), scraper.targets[0]


def test_counts_of_scraped_points_agree(target: Target) -> None:
    """Missed scrapes are lost points, also on a busy host; the start-up loses none."""
    result, stats = scraped(target, 0.01, 100)
    for row in result.series.to_pylist():
        assert row["expected"] == row["stored"] + row["lost"], row
        assert row["lost"] <= stats.missed + stats.failed, row
    kinds = [g["kind"] for g in result.gaps.to_pylist() if g["kind"] != "lost"]
    assert kinds == ["starting", "ending"]


class Clock(selectors.DefaultSelector):
    """A clock that advances only where an event loop would wait."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(None if timeout is None else 0)
        if not events and timeout:
            self.now_s += timeout
        return events

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(self.now_s * S)

    def time_ns(self) -> int:
        return T0 + round((self.now_s - 1000) * S)


async def at_once(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def test_the_start_up_of_a_scraper_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 s with a start-up of 0.34 s are complete; one failed poll in ten makes them partial."""
    for every, verdict in ((10**9, "complete"), (10, "partial")):
        clock = Clock()
        monkeypatch.setattr(scrape, "time", clock)
        monkeypatch.setattr(collector, "time", clock)
        # otherwise this clock advances while a thread writes
        monkeypatch.setattr(asyncio, "to_thread", at_once)
        sink = MemorySink()
        requests = 0

        async def get(_: Any, every: int = every) -> tuple[bytes, bool]:
            nonlocal requests
            requests += 1
            if requests % every == 0:
                raise OSError("not now")
            return b"busy_ratio 0.5\n", False

        async def work(sink: MemorySink = sink, get: Any = get) -> Scraper:
            await asyncio.sleep(0.34)
            scraper = Scraper("s", {"targets": ["http://n:1/"], "interval_s": 0.01})
            monkeypatch.setattr(scraper, "_get", get)
            await scraper.start(sink)
            await asyncio.sleep(4.3)
            await scraper.stop()
            return scraper

        loop = asyncio.SelectorEventLoop(clock)
        monkeypatch.setattr(loop, "time", clock.time)
        try:
            scraper = loop.run_until_complete(work())
        finally:
            loop.close()
        result = recorded(sink.batches.values(), T0, T0 + 5 * S)
        rows = {r["metric"]: r for r in result.series.to_pylist()}
        row = rows["busy_ratio"]
        assert (row["verdict"], row["interval_ns"]) == (verdict, S // 100), (
            row,
            result.gaps.to_pylist()[:4],
        )
        assert row["stored"] + row["lost"] == row["expected"] >= 430
        assert row["lost"] == scraper.targets[0].failed
        assert rows["scrape_success"]["verdict"] == "complete"


def test_scrapes_of_an_absent_target_are_lost(target: Target) -> None:
    """The target answers from its tenth scrape on."""
    target.text, text = "", target.text
    sink = MemorySink()
    begin = time.time_ns()
    scraper = Scraper("s", {"targets": [target.url], "interval_s": 0.05, "timeout_s": 60})
    with Collecting({"s": scraper}, sink):
        until(lambda: scraper.targets[0].failed >= 10)
        target.text = text
        until(lambda: scraper.targets[0].succeeded >= 10)
        target.text += "later_ratio 1\n"
        until(lambda: scraper.targets[0].succeeded >= 20)
    result = recorded(sink.batches.values(), begin, time.time_ns())
    rows = {r["metric"]: r for r in result.series.to_pylist()}
    busy, later = rows["busy_ratio"], rows["later_ratio"]
    assert busy["lost"] == busy["expected"] - busy["stored"] >= 10
    assert busy["verdict"] == "partial"
    # a metric that appeared later was not expected earlier
    assert later["expected"] - scraper.targets[0].missed < busy["stored"]
    assert later["lost"] == later["expected"] - later["stored"]


# ---------------------------------------------------------------- receivers


def test_a_receiver_with_an_interval_reports_lost_points() -> None:
    sink = MemorySink()
    lost = {17, 400, 401, 402, 999}
    lines = [f"power watts={n} {T0 + n * 10_000_000}\n" for n in range(1001) if n not in lost]
    receiver = InfluxReceiver("in", {"port": 0, "interval_s": 0.01})
    with Collecting({"in": receiver}, sink):
        for at in range(0, len(lines), 100):
            status, _ = post(receiver.address, "/write", "".join(lines[at : at + 100]).encode())
            assert status == 204
    (row,) = recorded(sink.batches.values(), T0, T0 + 10 * S).series.to_pylist()
    assert (row["interval_from"], row["stored"], row["lost"]) == ("told", 996, 5)
    assert row["expected"] == 1001
    with pytest.raises(BadInput, match="interval_s 0"):
        GraphiteReceiver("g", {"port": 0, "interval_s": 0})


def test_refused_points_are_reported_for_their_source() -> None:
    sink = MemorySink()
    receiver = InfluxReceiver("in", {"port": 0})
    with Collecting({"in": receiver}, sink) as collecting:
        good = f"m v=1 {T0}\n".encode()
        assert post(receiver.address, "/write", good)[0] == 204
        bad = b"m v=x 1\nm\nm v= 2\n, 3\n"
        status, response = post(receiver.address, "/write", bad)
        assert status == 400
        assert b"dropped=4" in response
        # the same batch again: nothing is lost
        assert post(receiver.address, "/write", good)[0] == 204
    result = recorded(sink.batches.values(), T0, T0 + 3 * S)
    (row,) = result.series.to_pylist()
    assert (row["refused"], row["verdict"]) == (4, "unknown")
    refused = [g for g in result.gaps.to_pylist() if g["kind"] == "refused"]
    assert sum(g["missing"] for g in refused) == 4
    assert all(g["source"] == "in" and "found" in g["detail"] for g in refused)
    verdict = verdict_of({"m_v": row}, False, result.gaps.to_pylist())
    assert any("in: " in line and "points refused" in line for line in verdict.lines)
    parsed = of_headers(verdict.headers())
    assert parsed.lines == verdict.lines
    assert not parsed.refuses
    receipt = collecting.receipts["in"].document()
    assert receipt["refused"]["duplicate"] == 1
    assert sum(n for why, n in receipt["refused"].items() if why != "duplicate") == 4
    assert receipt["told"]


def test_errors_are_reported_with_their_reason() -> None:
    sink = MemorySink()
    receiver = InfluxReceiver("in", {"port": 0, "token": "right"})
    with Collecting({"in": receiver}, sink):
        right, wrong = ({"Authorization": f"Token {token}"} for token in ("right", "wrong"))
        assert post(receiver.address, "/write", b"m v=1", **wrong)[0] == 401
        assert post(receiver.address, "/write", b"m v=x", **right)[0] == 400
        assert post(receiver.address, "/else", b"m v=1", **right)[0] == 404
    gaps = recorded(sink.batches.values(), T0, T0 + S).gaps.to_pylist()
    details = {g["detail"] for g in gaps if g["kind"].startswith("refused")}
    assert details == {
        "unauthorized: found another token; expected that of the receiver",
        "malformed: line 1: found a field's value that is no number, text or boolean",
        "another path: found /else; expected /write",
    }


def test_refused_points_of_a_numbered_batch_are_reported_once() -> None:
    sink = MemorySink()
    receiver = InfluxReceiver("in", {"port": 0})
    body = f"m v=1 {T0}\nm v=x {T0 + 1}\n".encode()
    with Collecting({"in": receiver}, sink):
        for _ in range(2):
            post(receiver.address, "/write", body, **{"X-Penstock-Batch": "me 0"})
    result = recorded(sink.batches.values(), T0, T0 + S)
    (row,) = result.series.to_pylist()
    assert (row["source"], row["refused"]) == ("me", 1)


def test_a_receipt_since_an_earlier_one() -> None:
    receipt = Receipt("s")
    receipt.refused["malformed"] += 2
    receipt.add_error("one")
    before = receipt.copy()
    receipt.refused["malformed"] += 3
    receipt.stored += 5
    receipt.add_error("two")
    document = receipt.document(before)
    assert (document["refused"], document["stored"], document["told"]) == (
        {"malformed": 3},
        5,
        ["two"],
    )
    assert receipt.document()["refused"] == {"malformed": 5}


# ---------------------------------------------------------------- counters


SHOWN = "#  TYPE\tserved  counter\nserved {0}\nrequests_total {0}\nprocess_start_time_seconds {1}\n"


def test_a_restarted_exporter_is_a_reset_and_a_restart(target: Target) -> None:
    """The counter falls from 50 to 0, and the start time changes."""
    target.text = SHOWN.format(50, 1000)
    sink = MemorySink()
    begin = time.time_ns()
    settings = {"targets": [{"url": target.url, "instance": "a"}], "interval_s": 0.05}
    scraper = Scraper("s", settings)
    with Collecting({"s": scraper}, sink):
        until(lambda: scraper.targets[0].succeeded >= 5)
        target.text = SHOWN.format(0, 1001)
        succeeded = scraper.targets[0].succeeded
        until(lambda: scraper.targets[0].succeeded >= succeeded + 5)
    result = recorded(sink.batches.values(), begin, time.time_ns())
    rows = {r["metric"]: r for r in result.series.to_pylist()}
    # one counter by its name, one by its type; the complete target restarted
    for metric, resets in (("requests_total", 1), ("served", 1), ("scrape_success", 0)):
        assert (rows[metric]["resets"], rows[metric]["restarts"]) == (resets, 1), metric
    events = [g for g in result.gaps.to_pylist() if g["kind"] in ("reset", "restart")]
    assert sorted(g["kind"] for g in events) == ["reset", "reset", "restart"]
    reset = next(g for g in events if g["series_id"] == rows["requests_total"]["series_id"])
    assert reset["detail"] == "from 50 to 0"


def counters(values: dict[str, list[float]], labels: str = "{}", **more: Any) -> Recorded:
    batches = [
        Batch(
            "s",
            n,
            points(metric=m, labels=labels, utc_ns=[T0 + i * S for i in range(len(v))], float=v),
            **more,
        )
        for n, (m, v) in enumerate(values.items())
    ]
    return recorded(batches, T0, T0 + 60 * S)


def test_only_counters_are_reset_and_only_targets_restart() -> None:
    down = [3.0, 5.0, 1.0, 2.0, 0.0]
    result = counters({"a_total": down, "gauge": down, "process_start_time_seconds": [9.0] * 5})
    assert {r["metric"]: (r["resets"], r["restarts"]) for r in result.series.to_pylist()} == {
        "a_total": (2, 0),
        "gauge": (0, 0),
        "process_start_time_seconds": (0, 0),
    }
    # adjusting the host's clock moves the start by at most one second; no counter fell
    (row, _) = counters(
        {"a_total": [1, 2, 3], "process_start_time_seconds": [100.0, 100.9, 100.0]}
    ).series.to_pylist()
    assert (row["resets"], row["restarts"]) == (0, 0)
    # a counter that passed its old value after a restart: only the start time shows it
    (row, _) = counters(
        {"a_total": [1, 2, 3], "process_start_time_seconds": [100.0, 100.0, 160.0]}
    ).series.to_pylist()
    assert (row["resets"], row["restarts"]) == (0, 1)
    # an event reported by a collector is counted once
    seen = Event("reset", T0 + 2 * S, metric="a_total", labels="{}")
    (row,) = counters({"a_total": [1, 5, 0]}, events=(seen,)).series.to_pylist()
    assert row["resets"] == 1
    (row,) = counters({"c": [1, 5, 0]}, accounts=(Account("c", counter=True),)).series.to_pylist()
    assert row["resets"] == 1


def test_a_restart_belongs_to_one_target() -> None:
    times = [T0, T0 + S]
    table = pa.concat_tables(
        points(metric=metric, labels=f'{{"instance":"{instance}"}}', utc_ns=times, float=values)
        for instance, start in (("a", [1.0, 50.0]), ("b", [1.0, 1.0]))
        for metric, values in (("up_seconds", [1.0, 2.0]), ("process_start_time_seconds", start))
    )
    result = recorded([Batch("s", 0, table)], T0, T0 + S)
    restarts = {(r["metric"], r["labels"]): r["restarts"] for r in result.series.to_pylist()}
    assert restarts["up_seconds", '{"instance":"a"}'] == 1
    assert restarts["up_seconds", '{"instance":"b"}'] == 0


def test_a_rate_over_a_reset_is_an_empty_cell() -> None:
    series = Series("requests_total", np.arange(4.0), np.array([40.0, 50.0, 0.0, 10.0]), "")
    (rate,) = derived(Shown([series], start_utc_ns=T0), "r", "rate(requests_total)").series
    finite = np.isfinite(rate.y)
    assert rate.y[finite].tolist() == [10.0, 10.0]
    assert (rate.y[finite] >= 0).all()
    assert 2.0 not in rate.x[finite]


def samples(values: list[float], cumulative: bool) -> pa.Table:
    rows = {
        "t_ns": [n * S for n in range(len(values))],
        "source": ["disk"] * len(values),
        "entity": ["vda"] * len(values),
        "metric": ["reads"] * len(values),
        "unit": ["1"] * len(values),
        "value": values,
        "cumulative": [cumulative] * len(values),
    }
    return pa.table(rows, schema=SAMPLES_SCHEMA)


def test_samples_of_a_long_command_are_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    # a minute at 100 Hz has more points than the limit of a batch, which refused all of them
    table = samples([float(n) for n in range(100)], True)
    tables = {"samples": table, "utilisation": utilisation(table, hz=100, cpus=1)}
    complete = recorded(sampled(tables, 99, T0), T0, T0 + 99 * S)
    monkeypatch.setattr("penstock.parts.monitoring.outbox.sampled.MOST_POINTS", 30)
    batches = sampled(tables, 99, T0)
    assert [b.number for b in batches if b.source == "samples"] == [0, 1, 2, 3]
    assert max(b.points.num_rows for b in batches) == 30
    parts = recorded(batches, T0, T0 + 99 * S)
    assert parts.series.equals(complete.series)
    assert parts.points.equals(complete.points)


@pytest.mark.parametrize(("cumulative", "resets"), [(True, 1), (False, 0)])
def test_a_decreasing_counter_of_the_sampler_is_a_reset(cumulative: bool, resets: int) -> None:
    """The utilisation has an empty cell at the reset, and no point is missing."""
    table = samples([float(n) for n in (*range(50), *range(50))], cumulative)
    used = utilisation(table, hz=100, cpus=1)
    result = recorded(sampled({"samples": table, "utilisation": used}, 99, T0), T0, T0 + 99 * S)
    rows = {r["metric"]: r for r in result.series.to_pylist()}
    assert (rows["disk_reads"]["resets"], rows["disk_reads"]["verdict"]) == (resets, "complete")
    computed = [r for r in rows.values() if r["source"] == "utilisation"]
    assert all((r["lost"], r["verdict"]) == (0, "complete") for r in computed)
    # half of the samples are missing, and as many of the computed values
    half = table.slice(0, 50)
    tables = {"samples": half, "utilisation": utilisation(half, hz=100, cpus=1)}
    result = recorded(sampled(tables, 99, T0), T0, T0 + 99 * S)
    assert {r["verdict"] for r in result.series.to_pylist()} == {"partial"}
