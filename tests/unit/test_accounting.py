"""What is said of what came: by a told interval, an inferred one, or none; start-up, refusals, resets."""

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
from tests.unit.test_collectors import post, until

S = 10**9
T0 = 1_700_000_000 * S


def judged(seconds: Iterable[float], lasts_s: float = 60, **more: Any) -> dict[str, Any]:
    """The row of a series with points at these seconds of an experiment."""
    at = [T0 + round(s * S) for s in seconds]
    table = points(metric="m", utc_ns=at, float=[float(n) for n in range(len(at))])
    made = recorded([Batch("s", 0, table, **more)], T0, T0 + round(lasts_s * S))
    (row,) = made.series.to_pylist()
    return row


def pushed(seconds: list[int], interval_s: float | None) -> dict[str, Any]:
    times = pa.chunked_array([[T0 + s * S for s in seconds]])
    values = pa.chunked_array([seconds])
    batches = batches_of(values, metric="v", labels={}, utc_ns=times, interval_s=interval_s)
    (row,) = recorded(batches, T0, T0 + 60 * S).series.to_pylist()
    return row


# ---------------------------------------------------------------- told, inferred, unknown


def test_what_a_file_held_is_not_complete_because_all_of_it_came() -> None:
    """Seconds 0, 1, 2, 3, 30 and 31 of 60: breaks where what came is held against itself."""
    seconds = [0, 1, 2, 3, 30, 31]
    row = pushed(seconds, None)
    assert (row["produced"], row["stored"], row["verdict"]) == (6, 6, "unknown")
    assert (row["interval_ns"], row["interval_from"], row["expected"]) == (None, "", None)
    row = pushed(seconds, 1.0)
    assert (row["verdict"], row["interval_from"], row["interval_ns"]) == ("partial", "told", S)
    assert (row["expected"], row["lost"]) == (60, 54)
    assert pushed(list(range(60)), 1.0)["verdict"] == "complete"
    # a sequence has no interval, and its numbers say it all
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
        # it ended at half of it, and began late
        (range(30), "partial", 30),
        (range(20, 60), "partial", 20),
        (range(9), "unknown", 0),
    ],
)
def test_an_interval_is_inferred_from_ten_points(
    seconds: Iterable[int], verdict: str, lost: int
) -> None:
    row = judged(seconds)
    assert (row["verdict"], row["lost"]) == (verdict, lost)
    inferred = verdict != "unknown"
    assert row["interval_from"] == ("inferred" if inferred else "")
    assert row["interval_ns"] == (S if inferred else None)
    if inferred:
        assert row["expected"] == row["stored"] + lost


def test_what_happens_now_and_then_has_no_interval() -> None:
    """Breaks where the median of any times is taken for an interval."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(S, 500)).astype(np.int64)
    assert inferred_interval(times) is None
    # half of what comes each second got lost: it still comes each second
    kept = np.sort(rng.choice(500, 300, replace=False)) * S
    assert inferred_interval(kept) == S
    row = judged(times / S, lasts_s=600)
    assert (row["verdict"], row["expected"], row["lost"]) == ("unknown", None, 0)


def test_points_of_another_time_are_nothing_of_this_experiment() -> None:
    for seconds in (range(-50, -10), range(-3, 0)):
        assert judged(seconds)["verdict"] == "unusable"
    assert judged(range(-50, -10), accounts=(Account("m", interval_ns=S),))["verdict"] == "unusable"


@pytest.mark.parametrize(
    ("seconds", "lost", "outside"),
    [
        # of a sender that goes on before and after the experiment
        (set(range(-30, 90)) - {20, 40, 41}, 3, 59),
        # its clock is 10 s ahead: what is missing at the begin came after the end
        (set(range(10, 71)) - {20, 40, 41}, 3, 10),
        # its clock was an hour ahead for a while, or from some time on
        ({*range(20), *range(25, 60), *range(3620, 3625)}, 0, 5),
        ({*range(50), *range(3650, 3660)}, 0, 10),
    ],
)
def test_points_outside_explain_no_hole_between_others(
    seconds: set[int], lost: int, outside: int
) -> None:
    row = judged(sorted(seconds), accounts=(Account("m", interval_ns=S),))
    assert (row["lost"], row["outside"]) == (lost, outside)


def test_a_point_that_came_late_is_not_a_lost_one() -> None:
    late = [t + (0.7 if t % 10 == 5 else 0) for t in range(60)]
    row = judged(late, accounts=(Account("m", interval_ns=S),))
    assert (row["lost"], row["expected"], row["verdict"]) == (0, 60, "complete")


def test_too_few_points_of_an_interval_are_partial_whatever_their_spacing() -> None:
    """Every 1.4 s instead of every second: no hole is longer than one and a half."""
    row = judged(np.arange(0, 60, 1.4), accounts=(Account("m", interval_ns=S),))
    assert row["verdict"] == "partial"
    assert row["stored"] + row["lost"] == row["expected"] >= 59


# ---------------------------------------------------------------- who had not begun


def starting(until_s: float) -> Event:
    return Event("starting", T0 + S // 10, T0 + round(until_s * S), detail="the collector starting")


def test_before_the_first_poll_is_no_gap_and_is_told() -> None:
    seconds = [0.34 + n / 20 for n in range(90)]
    account = Account("m", interval_ns=S // 20, expected=90, since_ns=T0 + round(0.34 * S))
    table = points(metric="m", utc_ns=[T0 + round(s * S) for s in seconds], float=seconds)
    events = (starting(0.34), Event("ending", T0 + round(4.84 * S)))
    made = recorded([Batch("s", 0, table, (account,), events)], T0, T0 + 5 * S)
    (row,) = made.series.to_pylist()
    assert (row["stored"], row["expected"], row["lost"], row["gaps"]) == (90, 90, 0, 0)
    assert row["verdict"] == "complete"
    first, last = made.gaps.to_pylist()
    assert (first["kind"], first["start_utc_ns"]) == ("starting", T0)
    assert first["end_utc_ns"] == T0 + round(0.34 * S)
    assert (first["detail"], last["kind"]) == ("the collector starting", "ending")


def test_a_collector_that_came_or_went_by_far_was_away() -> None:
    """Planted: 30 of 60 s without it; complete where any time before it, or after it, is let pass."""
    late = [T0 + s * S for s in range(30, 60)]
    account = Account("m", interval_ns=S, expected=30, since_ns=late[0])
    row = judged(range(30, 60), accounts=(account,), events=(starting(30),))
    assert (row["lost"], row["expected"], row["verdict"]) == (30, 60, "partial")
    gone = Event("ending", T0 + 30 * S)
    account = Account("m", interval_ns=S, expected=30, since_ns=T0)
    row = judged(range(30), accounts=(account,), events=(starting(0), gone))
    assert (row["lost"], row["expected"], row["verdict"]) == (30, 60, "partial")
    # one that began again goes on to the end
    again = Event("starting", T0 + 31 * S, T0 + 31 * S)
    row = judged(range(60), accounts=(Account("m", interval_ns=S),), events=(gone, again))
    assert row["verdict"] == "complete"


def test_what_is_lost_is_what_the_collector_counted() -> None:
    """At 50 ms all holes of jitter, but a single one: expected, stored and lost agree."""
    seconds = np.arange(100) * 0.05 + np.where(np.arange(100) % 7 == 3, 0.04, 0.0)
    kept = np.delete(seconds, 50)
    for expected, lost in ((99, 0), (100, 1), (101, 2)):
        account = Account("m", interval_ns=S // 20, expected=expected, since_ns=T0)
        row = judged(kept, lasts_s=5, accounts=(account,))
        assert (row["stored"], row["expected"], row["lost"]) == (99, expected, lost)


class Target:
    """An exporter whose text may change, or which may fail."""

    def __init__(self, text: str) -> None:
        self.text = text
        shows = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = shows.text.encode()
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
    made = Target("busy_ratio 0.5\n")
    yield made
    made.server.shutdown()
    made.server.server_close()


def scraped(target: Target, interval_s: float, polls: int) -> tuple[Recorded, Any]:
    """A scraper from its start, 0.3 s after the experiment's, to its stop, 0.3 s before the end."""
    sink = MemorySink()
    begin = time.time_ns() - 3 * S // 10
    wanted = {"targets": [{"url": target.url, "instance": "n"}], "interval_s": interval_s}
    scraper = Scraper("s", wanted)
    with Collecting({"s": scraper}, sink):
        until(lambda: scraper.targets[0].due >= polls)
    return recorded(sink.batches.values(), begin, time.time_ns() + 3 * S // 10), scraper.targets[0]


def test_what_is_scraped_of_a_real_target_agrees(target: Target) -> None:
    """Every 10 ms: what was missed, however busy this host is, is what is lost; its start-up is not."""
    made, it = scraped(target, 0.01, 100)
    for row in made.series.to_pylist():
        assert row["expected"] == row["stored"] + row["lost"], row
        assert row["lost"] <= it.missed + it.failed, row
    told = [g["kind"] for g in made.gaps.to_pylist() if g["kind"] != "lost"]
    assert told == ["starting", "ending"]


class Clock(selectors.DefaultSelector):
    """Time that passes only where an event loop would wait for it."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(None if timeout is None else 0)
        if not found and timeout:
            self.now_s += timeout
        return found

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


def test_every_ten_milliseconds_from_its_first_poll_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 s of which it took 0.34 s to begin are complete; planted: one poll in ten that fails is partial."""
    for every, verdict in ((10**9, "complete"), (10, "partial")):
        clock = Clock()
        monkeypatch.setattr(scrape, "time", clock)
        monkeypatch.setattr(collector, "time", clock)
        # the clock goes on while a thread writes
        monkeypatch.setattr(asyncio, "to_thread", at_once)
        sink = MemorySink()
        asked = 0

        async def shows(_: Any, every: int = every) -> tuple[bytes, bool]:
            nonlocal asked
            asked += 1
            if asked % every == 0:
                raise OSError("not now")
            return b"busy_ratio 0.5\n", False

        async def work(sink: MemorySink = sink, shows: Any = shows) -> Scraper:
            await asyncio.sleep(0.34)
            scraper = Scraper("s", {"targets": ["http://n:1/"], "interval_s": 0.01})
            monkeypatch.setattr(scraper, "_get", shows)
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
        made = recorded(sink.batches.values(), T0, T0 + 5 * S)
        rows = {r["metric"]: r for r in made.series.to_pylist()}
        row = rows["busy_ratio"]
        assert (row["verdict"], row["interval_ns"]) == (verdict, S // 100), (
            row,
            made.gaps.to_pylist()[:4],
        )
        assert row["stored"] + row["lost"] == row["expected"] >= 430
        assert row["lost"] == scraper.targets[0].failed
        assert rows["scrape_success"]["verdict"] == "complete"


def test_a_target_that_was_not_there_at_first_lost_that(target: Target) -> None:
    """Planted: it answers from its tenth scrape on."""
    target.text, text = "", target.text
    sink = MemorySink()
    begin = time.time_ns()
    scraper = Scraper("s", {"targets": [target.url], "interval_s": 0.05})
    with Collecting({"s": scraper}, sink):
        until(lambda: scraper.targets[0].failed >= 10)
        target.text = text
        until(lambda: scraper.targets[0].succeeded >= 10)
        target.text += "later_ratio 1\n"
        until(lambda: scraper.targets[0].succeeded >= 20)
    made = recorded(sink.batches.values(), begin, time.time_ns())
    rows = {r["metric"]: r for r in made.series.to_pylist()}
    busy, later = rows["busy_ratio"], rows["later_ratio"]
    assert busy["lost"] == busy["expected"] - busy["stored"] >= 10
    assert busy["verdict"] == "partial"
    # what it began to show later was not expected before
    assert later["expected"] < busy["stored"]
    assert later["lost"] == later["expected"] - later["stored"]


# ---------------------------------------------------------------- receivers


def test_a_receiver_that_knows_its_interval_tells_what_is_lost() -> None:
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


def test_what_was_refused_is_told_with_the_series_of_its_source() -> None:
    sink = MemorySink()
    receiver = InfluxReceiver("in", {"port": 0})
    with Collecting({"in": receiver}, sink) as collecting:
        good = f"m v=1 {T0}\n".encode()
        assert post(receiver.address, "/write", good)[0] == 204
        bad = b"m v=x 1\nm\nm v= 2\n, 3\n"
        status, said = post(receiver.address, "/write", bad)
        assert status == 400
        assert b"dropped=4" in said
        # sent again as it was: nothing is lost by that
        assert post(receiver.address, "/write", good)[0] == 204
    made = recorded(sink.batches.values(), T0, T0 + 3 * S)
    (row,) = made.series.to_pylist()
    assert (row["refused"], row["verdict"]) == (4, "unknown")
    refused = [g for g in made.gaps.to_pylist() if g["kind"] == "refused"]
    assert sum(g["missing"] for g in refused) == 4
    assert all(g["source"] == "in" and "found" in g["detail"] for g in refused)
    told = verdict_of({"m_v": row}, False, made.gaps.to_pylist())
    assert any("in: " in line and "points refused" in line for line in told.lines)
    again = of_headers(told.headers())
    assert again.lines == told.lines
    assert not again.refuses
    receipt = collecting.receipts["in"].document()
    assert receipt["refused"]["duplicate"] == 1
    assert sum(n for why, n in receipt["refused"].items() if why != "duplicate") == 4
    assert receipt["told"]


def test_refused_points_of_a_numbered_batch_are_told_with_that_batch() -> None:
    sink = MemorySink()
    receiver = InfluxReceiver("in", {"port": 0})
    body = f"m v=1 {T0}\nm v=x {T0 + 1}\n".encode()
    with Collecting({"in": receiver}, sink):
        for _ in range(2):
            post(receiver.address, "/write", body, **{"X-Penstock-Batch": "me 0"})
    made = recorded(sink.batches.values(), T0, T0 + S)
    (row,) = made.series.to_pylist()
    assert (row["source"], row["refused"]) == ("me", 1)


def test_a_receipt_of_a_part_of_the_time() -> None:
    receipt = Receipt("s")
    receipt.refused["malformed"] += 2
    receipt.add_error("one")
    before = receipt.copy()
    receipt.refused["malformed"] += 3
    receipt.stored += 5
    receipt.add_error("two")
    said = receipt.document(before)
    assert (said["refused"], said["stored"], said["told"]) == ({"malformed": 3}, 5, ["two"])
    assert receipt.document()["refused"] == {"malformed": 5}


# ---------------------------------------------------------------- counters


SHOWN = "# TYPE served counter\nserved {0}\nrequests_total {0}\nprocess_start_time_seconds {1}\n"


def test_an_exporter_that_began_anew_is_a_reset_and_a_restart(target: Target) -> None:
    """Planted: 50, then 0, and another start; breaks where nobody looks for it."""
    target.text = SHOWN.format(50, 1000)
    sink = MemorySink()
    begin = time.time_ns()
    wanted = {"targets": [{"url": target.url, "instance": "a"}], "interval_s": 0.05}
    scraper = Scraper("s", wanted)
    with Collecting({"s": scraper}, sink):
        until(lambda: scraper.targets[0].succeeded >= 5)
        target.text = SHOWN.format(0, 1001)
        done = scraper.targets[0].succeeded
        until(lambda: scraper.targets[0].succeeded >= done + 5)
    made = recorded(sink.batches.values(), begin, time.time_ns())
    rows = {r["metric"]: r for r in made.series.to_pylist()}
    # a counter by its name, one by its type; all of the target began anew
    for metric, resets in (("requests_total", 1), ("served", 1), ("scrape_success", 0)):
        assert (rows[metric]["resets"], rows[metric]["restarts"]) == (resets, 1), metric
    told = [g for g in made.gaps.to_pylist() if g["kind"] in ("reset", "restart")]
    assert sorted(g["kind"] for g in told) == ["reset", "reset", "restart"]
    reset = next(g for g in told if g["series_id"] == rows["requests_total"]["series_id"])
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
    made = counters({"a_total": down, "gauge": down, "process_start_time_seconds": [9.0] * 5})
    assert {r["metric"]: (r["resets"], r["restarts"]) for r in made.series.to_pylist()} == {
        "a_total": (2, 0),
        "gauge": (0, 0),
        "process_start_time_seconds": (0, 0),
    }
    # a host's clock that was set moves the start by a second at most; no counter fell
    (row, _) = counters(
        {"a_total": [1, 2, 3], "process_start_time_seconds": [100.0, 100.9, 100.0]}
    ).series.to_pylist()
    assert (row["resets"], row["restarts"]) == (0, 0)
    # one that counted on beyond where it had been: the start alone tells it
    (row, _) = counters(
        {"a_total": [1, 2, 3], "process_start_time_seconds": [100.0, 100.0, 160.0]}
    ).series.to_pylist()
    assert (row["resets"], row["restarts"]) == (0, 1)
    # what a collector saw itself is counted once
    seen = Event("reset", T0 + 2 * S, metric="a_total", labels="{}")
    (row,) = counters({"a_total": [1, 5, 0]}, events=(seen,)).series.to_pylist()
    assert row["resets"] == 1
    (row,) = counters({"c": [1, 5, 0]}, accounts=(Account("c", counter=True),)).series.to_pylist()
    assert row["resets"] == 1


def test_the_restart_of_one_target_is_none_of_another() -> None:
    at = [T0, T0 + S]
    table = pa.concat_tables(
        points(metric=metric, labels=f'{{"instance":"{it}"}}', utc_ns=at, float=values)
        for it, start in (("a", [1.0, 50.0]), ("b", [1.0, 1.0]))
        for metric, values in (("up_seconds", [1.0, 2.0]), ("process_start_time_seconds", start))
    )
    made = recorded([Batch("s", 0, table)], T0, T0 + S)
    restarts = {(r["metric"], r["labels"]): r["restarts"] for r in made.series.to_pylist()}
    assert restarts["up_seconds", '{"instance":"a"}'] == 1
    assert restarts["up_seconds", '{"instance":"b"}'] == 0


def test_a_rate_over_a_reset_is_an_empty_cell() -> None:
    series = Series("requests_total", np.arange(4.0), np.array([40.0, 50.0, 0.0, 10.0]), "")
    (made,) = derived(Shown([series], start_utc_ns=T0), "r", "rate(requests_total)").series
    finite = np.isfinite(made.y)
    assert made.y[finite].tolist() == [10.0, 10.0]
    assert (made.y[finite] >= 0).all()
    assert 2.0 not in made.x[finite]


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


def test_what_a_long_command_left_comes_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    # planted: a minute at 100 Hz has more points than a batch may have, and was refused as a whole
    table = samples([float(n) for n in range(100)], True)
    tables = {"samples": table, "utilisation": utilisation(table, hz=100, cpus=1)}
    whole = recorded(sampled(tables, 99, T0), T0, T0 + 99 * S)
    monkeypatch.setattr("penstock.parts.monitoring.outbox.sampled.MOST_POINTS", 30)
    batches = sampled(tables, 99, T0)
    assert [b.number for b in batches if b.source == "samples"] == [0, 1, 2, 3]
    assert max(b.points.num_rows for b in batches) == 30
    parts = recorded(batches, T0, T0 + 99 * S)
    assert parts.series.equals(whole.series)
    assert parts.points.equals(whole.points)


@pytest.mark.parametrize(("cumulative", "resets"), [(True, 1), (False, 0)])
def test_a_counter_of_the_sampler_that_went_back_is_a_reset(cumulative: bool, resets: int) -> None:
    """And its utilisation has an empty cell there, of which nothing is missing."""
    table = samples([float(n) for n in (*range(50), *range(50))], cumulative)
    used = utilisation(table, hz=100, cpus=1)
    made = recorded(sampled({"samples": table, "utilisation": used}, 99, T0), T0, T0 + 99 * S)
    rows = {r["metric"]: r for r in made.series.to_pylist()}
    assert (rows["disk_reads"]["resets"], rows["disk_reads"]["verdict"]) == (resets, "complete")
    computed = [r for r in rows.values() if r["source"] == "utilisation"]
    assert all((r["lost"], r["verdict"]) == (0, "complete") for r in computed)
    # half of it not sampled: what is computed from it lacks as much
    half = table.slice(0, 50)
    tables = {"samples": half, "utilisation": utilisation(half, hz=100, cpus=1)}
    made = recorded(sampled(tables, 99, T0), T0, T0 + 99 * S)
    assert {r["verdict"] for r in made.series.to_pylist()} == {"partial"}
