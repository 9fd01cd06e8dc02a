"""Experiments: names, repeats, phases, users, durability, bundles, completeness and exports."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import Catalogue
from penstock.errors import BadInput, PenstockError, Refused
from penstock.host.probe.clock_offset import Offset
from penstock.parts.monitoring.experiments.experiment import Taken, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.import_series import take_in
from penstock.parts.monitoring.experiments.points import (
    Account,
    Batch,
    Closed,
    Event,
    checked,
    points,
)
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.experiments.spool import Spool
from penstock.parts.monitoring.experiments.targets import Targets
from penstock.parts.monitoring.experiments.timestamps import (
    moment_ns,
    name_and_repeat,
    seconds_text,
)
from penstock.parts.monitoring.outbox.client import clocks
from penstock.parts.monitoring.queries.answers import answer
from penstock.parts.monitoring.queries.export import as_bytes, joined, numbers_as_text

T0 = 1_700_000_000_000_000_000
S = 10**9


@pytest.fixture
def store(tmp_path: Path) -> Experiments:
    (tmp_path / "home").mkdir()
    return Experiments(Catalogue(tmp_path / "archive.sqlite"), tmp_path / "home")


def reopened(store: Experiments) -> Experiments:
    """Open the same store as another process does."""
    return Experiments(Catalogue(store.catalogue.place), store.home)


def batch(
    number: int, times_s: list[float], values: list[float], metric: str = "m", **more
) -> Batch:
    times = [T0 + round(t * S) for t in times_s]
    return Batch("s", number, points(metric=metric, utc_ns=times, float=values, unit="B"), **more)


def csv(store: Experiments, name: str, metric: str, **options) -> str:
    experiment = store.find(name, "ada")
    end = experiment.end_ns or T0 + 3600 * S
    table = joined(store.recorded(experiment, metric), metric, experiment.start_ns, end, **options)
    assert table is not None
    return b"".join(as_bytes(table, "csv")).decode()


def test_a_bare_name_is_the_latest_repeat(store: Experiments) -> None:
    for number in (1, 2, 3):
        running = store.start("x", "ada", at_ns=T0 + number)
        assert running.repeat == number
        store.stop(running, at_ns=T0 + number + 1)
    assert store.find("x", "ada").repeat == 3
    assert store.find("x#2", "ada").start_ns == T0 + 2
    with pytest.raises(Unknown):
        store.find("x#4", "ada")
    with pytest.raises(Taken):
        store.start("x", "ada", repeat=False)


def test_one_name_runs_once(store: Experiments) -> None:
    store.start("x", "ada")
    with pytest.raises(Taken):
        store.start("x", "ada")
    assert store.start("x", "bob").repeat == 1


def test_users_see_own_and_shared_experiments(store: Experiments) -> None:
    for user in ("ada", "bob"):
        for number in range(5):
            experiment = store.start(
                f"{user}-{number}",
                user,
                tags=["even"] if number % 2 == 0 else [],
                shared=number == 4,
            )
            if number != 3:
                store.stop(experiment)
    assert [e.name for e in store.listed("ada")] == [*(f"ada-{i}" for i in range(5)), "bob-4"]
    assert [e.name for e in store.listed("ada", owner="bob")] == ["bob-4"]
    assert [e.name for e in store.listed("bob", tag="even")] == ["ada-4", "bob-0", "bob-2", "bob-4"]
    assert [e.name for e in store.listed("bob", state="running")] == ["bob-3"]
    with pytest.raises(Unknown):
        store.find("bob-1", "ada")
    assert store.find("bob-4", "ada").owner == "bob"
    with pytest.raises(Refused):
        store.find("bob-4", "ada", to_change=True)


def test_the_end_of_a_phase_ends_nested_phases(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.mark(running, "begin", "load", T0 + 1)
    store.mark(running, "begin", "warm-up", T0 + 2)
    with pytest.raises(BadInput, match="found an end 2 ns before the begin of load or a phase in"):
        store.mark(running, "end", "load", T0)
    store.mark(running, "end", "load", T0 + 3)
    with pytest.raises(Taken):
        store.mark(running, "end", "warm-up")
    store.mark(running, "begin", "measure", T0 + 4)
    store.mark(running, "note", "the fan is loud", T0 + 5)
    store.mark(running, "begin", "late", T0 + 7)
    ended = store.stop(running, at_ns=T0 + 6)
    assert [(p.name, p.start_ns - T0, p.end_ns - T0) for p in ended.phases] == [
        ("load", 1, 3),
        ("load/warm-up", 2, 3),
        ("measure", 4, 6),
        ("measure/late", 7, 7),
    ]
    assert ended.notes == ((T0 + 5, "the fan is loud"),)
    assert reopened(store).find("x", "ada") == ended


def test_an_ended_experiment_is_an_ordinary_bundle(store: Experiments) -> None:
    running = store.start("a/b c", "ada", at_ns=T0, params={"disk": "fast"}, tags=["t"])
    store.sink(running).write(batch(0, [0, 1], [1.0, 2.0]))
    ended = store.stop(running, at_ns=T0 + 2 * S, exit_status=0)
    bundle = Bundle.open(ended.path)
    assert bundle.manifest["levels"] == {"disk": "fast"}
    assert {"series", "points", "gaps", "marks", "clocks", "phases"} <= set(bundle.tables)
    assert pd.read_parquet(ended.path / "points.parquet")["float"].tolist() == [1.0, 2.0]
    assert pq.read_schema(ended.path / "points.parquet").field("utc_ns").metadata[b"unit"] == b"ns"
    assert not running.live.exists()
    # the bundle suffices to restore the catalogue
    before = store.listed("ada")
    store.catalogue.rebuild([])
    assert store.listed("ada") == []
    assert store.adopt() == 1
    assert store.listed("ada") == before


def test_a_rebuilt_catalogue_lists_running_experiments(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.catalogue.rebuild([])
    store.adopt()
    assert store.stop(store.find("x", "ada"), at_ns=T0 + 1).state == "ended"
    assert running.path.is_dir()


def test_one_metric_of_a_running_experiment_reads_as_among_all(store: Experiments) -> None:
    # fails if losses, refusals or restarts of one metric depend on the metrics read with it
    running = store.start("x", "ada", at_ns=T0)
    sampling = {"interval_ns": S, "counter": True}
    batches = [
        batch(0, [0, 1, 2], [1, 2, 3], metric="m", accounts=[Account("m", expected=9, **sampling)]),
        batch(1, [0, 1, 2], [5, 4, 6], metric="n_total"),
        batch(
            3, [3, 4], [7, 8], metric="m", accounts=[Account("m", expected=12, late=2, **sampling)]
        ),
        batch(4, [], [], events=[Event("refused", T0, count=5, detail="malformed: x")]),
        batch(5, [], [], accounts=[Account("silent", expected=4, interval_ns=S)]),
    ]
    labels = ['{"node":"a"}', '{"node":"b"}', '{"node":"a"}']
    mixed = points(metric=["m", "o", "m"], labels=labels, utc_ns=[T0] * 3, integer=[1, 2, 3])
    events = [
        Event("disabled", T0 + S, T0 + 2 * S, "o", labels[1]),
        Event("gap", T0 + 5 * S, T0 + 6 * S, "m", labels[0]),
        Event("restart", T0 + 7 * S),
    ]
    for item in [*batches, Batch("t", 0, mixed, events=events), Batch("u", 0, points(metric=[]))]:
        store.sink(running).write(item)
    experiment, spool, end_ns = store.find("x", "ada"), Spool(running.live), T0 + 20 * S
    complete = recorded(spool.batches(), T0, end_ns)
    names = complete.series["metric"].to_pylist()
    assert sorted(names) == ["m", "m", "n_total", "o", "silent"]

    def rows_of(read: Recorded, metric: str) -> list[list[dict]]:
        series = [r for r in read.series.to_pylist() if r["metric"] == metric]
        ids = {r.pop("series_id"): number for number, r in enumerate(series)}
        parts = [series]
        for table in (read.points, read.gaps):
            rows = [r for r in table.to_pylist() if r["series_id"] in (*ids, None)]
            parts.append([{**r, "series_id": ids.get(r["series_id"])} for r in rows])
        return parts

    for metric in {*names, "none"}:
        alone = recorded(spool.batches(metric), T0, end_ns)
        assert rows_of(alone, metric) == rows_of(complete, metric)
        for read in (alone, store.recorded(experiment, metric)):
            assert set(read.series["metric"].to_pylist()) == {metric} & set(names)
            assert read.points.num_rows == len(rows_of(complete, metric)[1])


def test_a_retried_batch_is_ignored_in_each_process(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    assert not store.sink(running).write(batch(0, [0, 1], [1, 2])).duplicate
    second = reopened(store)
    assert second.sink(running).write(batch(0, [0, 1], [7, 7])).duplicate
    assert not second.sink(running).write(batch(1, [2], [3])).duplicate
    assert store.sink(running).write(batch(1, [2], [9])).duplicate
    assert store.sink(running).next_number("s") == 2
    store.stop(running, at_ns=T0 + 3 * S)
    assert csv(store, "x", "m").splitlines()[1:] == [
        f"{T0 // S},1",
        f"{T0 // S + 1},2",
        f"{T0 // S + 2},3",
    ]


def test_a_torn_batch_is_cut_off_and_earlier_ones_stay(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.sink(running).write(batch(0, [0], [1]))
    (file,) = running.live.glob("*.batches")
    intact = file.read_bytes()
    for torn in (1, 23, 24, 25, len(intact) - 1):
        file.write_bytes(intact + intact[:torn])
        assert [b.number for b in Spool(running.live).batches()] == [0]
    damaged = bytearray(intact)
    damaged[-10] ^= 1
    file.write_bytes(intact + damaged)
    sink = reopened(store).sink(running)
    assert not sink.write(batch(1, [1], [2])).duplicate
    assert [b.number for b in Spool(running.live).batches()] == [0, 1]


def test_a_torn_mark_is_written_over(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.mark(running, "begin", "a", T0 + 1)
    with (running.live / "marks.jsonl").open("ab") as file:
        file.write(b'{"kind":"beg')
    assert [p.name for p in store.find("x", "ada").phases] == ["a"]
    store.mark(running, "end", "a", T0 + 2)
    assert store.find("x", "ada").phases[0].end_ns == T0 + 2


def test_the_next_process_completes_an_interrupted_stop(store: Experiments, monkeypatch) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.sink(running).write(batch(0, [0], [1]))
    store.start("y", "ada", at_ns=T0)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("penstock.parts.monitoring.experiments.experiments.write_bundle", killed)
        with pytest.raises(KeyboardInterrupt):
            store.stop(running, at_ns=T0 + 2 * S)
    with pytest.raises(Closed):
        store.sink(running).write(batch(1, [1], [1]))
    assert csv(store, "x", "m").splitlines()[1:] == [f"{T0 // S},1"]
    fresh = reopened(store)
    assert [e.name for e in fresh.resume()] == ["y"]
    ended = fresh.find("x", "ada")
    assert (ended.state, ended.end_ns) == ("ended", T0 + 2 * S)
    assert csv(fresh, "x", "m").splitlines()[1:] == [f"{T0 // S},1"]


def test_resume_keeps_an_experiment_that_is_just_starting(
    store: Experiments, tmp_path: Path
) -> None:
    """Fails if `resume` takes an early start time for that of an abandoned experiment."""
    resumed = []

    class Slow(Catalogue):
        def start(self, row: dict, tagged: Iterable[str]) -> bool:
            inserted = super().start(row, tagged)
            # a server calls `resume` after the insertion of the row, before the rename
            resumed.append(Experiments(store.catalogue, store.home).resume())
            return inserted

    slow = Experiments(Slow(store.catalogue.place), store.home)
    running = slow.start("old", "ada", at_ns=T0)
    assert resumed == [[]]
    assert [e.name for e in store.resume()] == ["old"]
    store.mark(running, "note", "there")


@pytest.mark.parametrize("named", [False, True])
def test_resume_forgets_an_experiment_killed_during_start(store: Experiments, named: bool) -> None:
    """The start is unacknowledged before the rename of the directory, and valid after it."""
    place, home = store.catalogue.place, store.home
    program = (
        "import os, sys; from pathlib import Path\n"
        "from penstock.archive.catalogue import Catalogue\n"
        "from penstock.parts.monitoring.experiments import experiments\n"
        f"store = experiments.Experiments(Catalogue(Path({str(place)!r})), Path({str(home)!r}))\n"
        "rename = os.rename\n"
        "def killed(*words):\n"
        f"    if {named}: rename(*words)\n"
        "    os.kill(os.getpid(), 9)\n"
        "os.rename = killed\n"
        f"store.start('k', 'ada', at_ns={T0})\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert len(store.catalogue.search(name="k")) == 1
    assert [e.name for e in store.resume()] == ["k"] * named
    assert len(store.catalogue.search(name="k")) == named
    assert len(list((home / "ada").iterdir())) == named


def test_the_timeout_ends_an_experiment(store: Experiments) -> None:
    store.start("x", "ada", at_ns=T0, timeout_s=5)
    assert store.resume() == []
    ended = store.find("x", "ada")
    assert (ended.state, ended.end_ns) == ("closed-by-timeout", T0 + 5 * S)
    assert not ended.valid


def test_removed_experiments_are_retained_for_seven_days(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    trash = store.remove(running)
    assert (trash / "manifest.json").is_file()
    with pytest.raises(Unknown):
        store.find("x", "ada")
    os.utime(trash, (trash.stat().st_mtime - 6.9 * 86_400,) * 2)
    store.resume()
    assert trash.is_dir()
    os.utime(trash, (trash.stat().st_mtime - 0.2 * 86_400,) * 2)
    store.resume()
    assert not trash.exists()


@pytest.mark.parametrize(
    "bad",
    [
        {"metric": ["m"], "utc_ns": [1]},
        {"metric": ["m"], "float": [1.0]},
        {"metric": ["m"], "utc_ns": [1], "float": [1.0], "integer": [1]},
        {"metric": [""], "utc_ns": [1], "float": [1.0]},
        {"metric": ["m\n"], "utc_ns": [1], "float": [1.0]},
        {"metric": ["m"], "labels": ['{"b": 1}'], "utc_ns": [1], "float": [1.0]},
        {"metric": ["m"], "index": [-1], "float": [1.0]},
        {"metric": ["m"], "utc_ns": [1 << 63], "float": [1.0]},
        {"metric": ["m", "n"], "utc_ns": [1], "float": [1.0]},
    ],
)
def test_invalid_points_are_refused(bad: dict) -> None:
    with pytest.raises(BadInput, match=r"found .*expected"):
        checked(Batch("s", 0, points(**bad)))


def test_rows_are_joined_by_time_never_by_position(store: Experiments) -> None:
    # series from t = 0, 3, 5 s; one stops at 7 s
    running = store.start("x", "ada", at_ns=T0)
    for node, first, last in (("a", 0, 9), ("b", 3, 9), ("c", 5, 7)):
        times = np.arange(first, last + 1)
        table = points(
            metric="m", labels=f'{{"node":"{node}"}}', utc_ns=T0 + times * S, integer=times * 10
        )
        store.sink(running).write(Batch(node, 0, table))
    store.stop(running, at_ns=T0 + 9 * S)
    text = csv(store, "x", "m", axis="duration", labels=["node"])
    assert text.splitlines() == [
        "duration,a,b,c",
        *("0,0,,", "1,10,,", "2,20,,", "3,30,30,", "4,40,40,", "5,50,50,50", "6,60,60,60"),
        *("7,70,70,70", "8,80,80,", "9,90,90,"),
    ]
    frame = pd.read_csv(io.StringIO(text), index_col="duration")
    assert frame["c"].dropna().index.tolist() == [5, 6, 7]


def test_a_long_table_over_a_sequence_has_a_series_for_each_node(
    store: Experiments, tmp_path: Path
) -> None:
    """Fails if a node has the values, or the times, of another."""
    path = tmp_path / "t.csv"
    path.write_text("sample,duration,node,load\n0,0.5,a,1\n0,0.75,b,5\n1,1.5,a,2\n1,1.75,b,6\n")
    ended, number, _ = take_in(store, "ada", "x", path)
    assert number == 4
    recorded = store.recorded(ended)
    names = {r["series_id"]: r["metric"] for r in recorded.series.to_pylist()}
    rows: dict[str, list[tuple[int, int, float]]] = {}
    for p in recorded.points.to_pylist():
        rows.setdefault(names[p["series_id"]], []).append((p["index"], p["utc_ns"], p["float"]))
    assert rows == {
        "load a": [(0, 500_000_000, 1.0), (1, 1_500_000_000, 2.0)],
        "load b": [(0, 750_000_000, 5.0), (1, 1_750_000_000, 6.0)],
    }


def test_data_of_a_repeated_phase_are_those_of_each_occurrence(store: Experiments) -> None:
    """Fails if the points between two phases of one name belong to them."""
    running = store.start("x", "ada", at_ns=T0)
    times = [T0 + k * S for k in range(10)]
    table = points(metric="m", utc_ns=times, float=[float(k) for k in range(10)])
    store.sink(running).write(Batch("s", 0, table))
    for name, low, high in (("load", 1, 2), ("idle", 3, 5), ("load", 6, 7)):
        store.mark(running, "begin", name, T0 + low * S)
        store.mark(running, "end", name, T0 + high * S)
    store.stop(running, at_ns=T0 + 10 * S)
    request = {"metric": "m", "phase": "load", "type": "duration"}
    parts = answer(store, Targets(), "x", "ada", request).parts
    rows = b"".join(parts).decode().splitlines()
    assert rows == ["duration,m", "1,1", "2,2", "6,6", "7,7"]


def test_times_are_corrected_to_the_store_s_clock_on_request(store: Experiments) -> None:
    """Clock of the sender: 300 ms ahead at the start, 310 ms at the end.

    Fails if the offset has the wrong sign, or if only one of the two measurements is applied.
    """
    running = store.start("x", "ada", at_ns=T0)
    sink, ahead_ns = store.sink(running), [300_000_000, 310_000_000]
    times = [T0 + k * S + ahead_ns[0] + k * 1_000_000 for k in range(11)]
    table = points(metric="m", utc_ns=times, float=[float(k) for k in range(11)])
    sink.write(Batch("samples", 0, table))
    sink.write(Batch("others", 0, points(metric="n", utc_ns=[T0 + 5], float=[1.0])))
    sink.write(Batch("of no clock", 0, points(metric="m", index=[0, 1], float=[1.0, 2.0])))
    measured = [
        (times[0], Offset(-ahead_ns[0], 1000, 8)),
        (times[10], Offset(-ahead_ns[1], 1000, 8)),
    ]
    sink.write(clocks(measured, ["samples"]))
    store.stop(running, at_ns=T0 + 10 * S)

    def times_of(**options: str) -> list[str]:
        request = {"metric": "m", **options}
        parts = answer(store, Targets(), "x", "ada", request).parts
        return [row.split(",")[0] for row in b"".join(parts).decode().splitlines()[1:]]

    assert len(times_of()) == 10  # the last point is outside the marks by the sender's clock
    assert times_of(clocks="corrected") == [seconds_text(T0 + k * S) for k in range(11)]
    with pytest.raises(BadInput, match="found no measured clock"):
        times_of(metric="n", clocks="corrected")
    with pytest.raises(BadInput, match="expected recorded or corrected"):
        times_of(clocks="x")


def test_times_have_nanoseconds_and_rows_lie_between_the_marks(store: Experiments) -> None:
    # a run of 250 ms at 100 Hz
    running = store.start("x", "ada", at_ns=T0 + 7)
    times = T0 + 7 + np.arange(-2, 28) * 10_000_000
    store.sink(running).write(Batch("s", 0, points(metric="m", utc_ns=times, integer=times)))
    ended = store.stop(running, at_ns=T0 + 7 + 250_000_000)
    assert (ended.start_ns, ended.end_ns) == (T0 + 7, T0 + 250_000_007)
    rows = csv(store, "x", "m").splitlines()[1:]
    assert len(rows) == 26
    assert rows[0] == f"{T0 // S}.000000007,{T0 + 7}"
    assert rows[1] == f"{T0 // S}.010000007,{T0 + 10_000_007}"


def test_points_are_sorted_and_the_last_of_a_time_counts(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.sink(running).write(batch(0, [3, 1, 2, 1], [3, 1, 2, 11]))
    store.stop(running, at_ns=T0 + 5 * S)
    assert csv(store, "x", "m", axis="duration").splitlines()[1:] == ["1,11", "2,2", "3,3"]
    (row,) = store.recorded(store.find("x", "ada")).series.to_pylist()
    assert (row["received"], row["stored"], row["duplicate"]) == (4, 3, 1)


def test_nan_is_not_a_missing_value(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.sink(running).write(batch(0, [0, 1, 2], [float("nan"), float("inf"), 0.0]))
    store.sink(running).write(batch(1, [3], [1], metric="n"))
    store.stop(running, at_ns=T0 + 5 * S)
    assert csv(store, "x", "m", axis="duration").splitlines()[1:] == ["0,NaN", "1,Inf", "2,0"]


def test_a_sequence_is_never_joined_by_time(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    offsets = np.random.default_rng(1).permutation(1000) * 4096
    for number in range(10):
        part = np.arange(number * 100, number * 100 + 100)
        table = points(metric="offset", index=part, integer=offsets[part], unit="B")
        store.sink(running).write(Batch("s", number, table))
    store.stop(running, at_ns=T0 + S)
    frame = pd.read_csv(io.StringIO(csv(store, "x", "offset")))
    assert frame.columns.tolist() == ["sample", "offset"]
    assert (frame["sample"] == np.arange(1000)).all()
    assert (frame["offset"] == offsets).all()
    with pytest.raises(BadInput, match="never joined"):
        csv(store, "x", "offset", axis="timestamp")


@pytest.mark.parametrize("missing", [0, 5])
def test_what_is_lost_is_counted(store: Experiments, missing: int) -> None:
    running = store.start("x", "ada", at_ns=T0)
    index = np.delete(np.arange(1000), [17, 18, 300, 998, 999][:missing])
    table = points(metric="m", index=index, integer=index)
    store.sink(running).write(Batch("s", 0, table, (Account("m", produced=1000),)))
    store.stop(running, at_ns=T0 + S)
    result = store.recorded(store.find("x", "ada"))
    (row,) = result.series.to_pylist()
    assert (row["produced"], row["stored"], row["lost"]) == (1000, 1000 - missing, missing)
    assert sum(g["missing"] for g in result.gaps.to_pylist()) == missing
    assert row["verdict"] == "complete"


@pytest.mark.parametrize(
    ("holes", "verdict", "lost"),
    [
        ((), "complete", 0),
        ((50,), "complete", 1),
        ((50, 51), "partial", 2),
        (range(99), "unusable", 99),
    ],
)
def test_the_verdict_depends_on_share_and_gaps(
    store: Experiments, holes, verdict: str, lost: int
) -> None:
    running = store.start("x", "ada", at_ns=T0)
    times = [t + 0.5 for t in range(100) if t not in holes]
    account = Account("m", interval_ns=S)
    store.sink(running).write(batch(0, times, times, accounts=(account,)))
    ended = store.stop(running, at_ns=T0 + 100 * S)
    (row,) = store.recorded(ended).series.to_pylist()
    assert (row["expected"], row["lost"], row["verdict"]) == (100, lost, verdict)
    assert ended.valid == (verdict == "complete")


def test_a_gap_over_five_intervals_is_partial_whatever_the_share(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    times = [t + 0.5 for t in range(1000) if not 500 <= t < 506]
    store.sink(running).write(batch(0, times, times, accounts=(Account("m", interval_ns=S),)))
    (row,) = store.recorded(store.stop(running, at_ns=T0 + 1000 * S)).series.to_pylist()
    assert (row["lost"], row["longest_gap_ns"], row["verdict"]) == (6, 7 * S, "partial")


def test_points_of_disabled_intervals_are_not_lost(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    times = [t + 0.5 for t in range(100) if not (20 <= t < 40 or 60 <= t < 70)]
    off = [Event("disabled", T0 + a * S, T0 + b * S, "m", "{}") for a, b in ((20, 40), (60, 70))]
    report = {"accounts": (Account("m", interval_ns=S),), "events": off}
    store.sink(running).write(batch(0, times, times, **report))
    result = store.recorded(store.stop(running, at_ns=T0 + 100 * S))
    (row,) = result.series.to_pylist()
    assert (row["expected"], row["lost"], row["verdict"]) == (70, 0, "complete")
    assert [g["kind"] for g in result.gaps.to_pylist()] == ["disabled", "disabled"]


def test_a_gap_of_one_series_is_not_one_of_another() -> None:
    regular = batch(0, [float(i) for i in range(60) if not 20 <= i < 30], [0.0] * 50, "a")
    irregular = batch(1, [0.0, 7.0, 50.0], [0.0] * 3, "b")
    series = recorded([regular, irregular], T0, T0 + 60 * S).series.to_pandas().set_index("metric")
    alone = recorded(
        [batch(0, [0.0, 7.0, 50.0], [0.0] * 3, "b")], T0, T0 + 60 * S
    ).series.to_pandas()
    assert series["gaps"]["a"] > 0
    assert series["verdict"]["b"] == alone["verdict"][0] == "unknown"


def test_points_with_and_without_an_index_are_two_series(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    sink = store.sink(running)
    interval = [Account("m", interval_ns=S)]
    sink.write(Batch("s", 0, points(metric="m", index=[0, 1, 3], float=[7, 8, 9])))
    sink.write(batch(1, [0, 1], [5, 6], accounts=interval))
    store.stop(running, at_ns=T0 + 2 * S)
    series = store.recorded(store.find("x", "ada")).series.to_pylist()
    assert [(s["kind"], s["stored"], s["expected"], s["lost"]) for s in series] == [
        ("time", 2, 2, 0),
        ("sequence", 3, 4, 1),
    ]
    assert csv(store, "x", "m") == f"timestamp,m\n{T0 // S},5\n{T0 // S + 1},6\n"
    assert csv(store, "x", "m", axis="sample") == "sample,m\n0,7\n1,8\n3,9\n"


def test_an_exported_csv_is_imported_with_the_same_times(
    store: Experiments, tmp_path: Path
) -> None:
    times = [T0 + 123_456_789, T0 + 123_456_790, T0 + S, T0 + 3 * S + 1]
    running = store.start("x", "ada", at_ns=T0)
    table = points(metric="m", utc_ns=times, float=[1.0, 2.5, 3.0, 4.0])
    store.sink(running).write(Batch("s", 0, table))
    store.stop(running, at_ns=T0 + 9 * S)
    (tmp_path / "m.csv").write_text(csv(store, "x", "m"))
    experiment, number, notes = take_in(store, "ada", "again", tmp_path / "m.csv")
    assert (number, notes) == (4, ["units not known: m"])
    restored = store.recorded(experiment).points
    assert restored["utc_ns"].to_pylist() == times
    assert restored["float"].to_pylist() == [1.0, 2.5, 3.0, 4.0]


def test_no_column_is_named_like_the_first(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    store.sink(running).write(batch(0, [0, 1], [5, 6], metric="duration"))
    store.stop(running, at_ns=T0 + 2 * S)
    assert csv(store, "x", "duration", axis="duration") == "duration,s:duration\n0,5\n1,6\n"
    assert csv(store, "x", "duration").startswith("timestamp,duration\n")


def test_a_missing_batch_is_reported(store: Experiments) -> None:
    running = store.start("x", "ada", at_ns=T0)
    for number in (0, 1, 3, 4):
        store.sink(running).write(batch(number, [number], [1]))
    result = store.recorded(store.stop(running, at_ns=T0 + 9 * S))
    (gap,) = result.gaps.to_pylist()
    assert (gap["kind"], gap["start_index"], gap["end_index"]) == ("batches", 2, 2)
    assert result.verdict == "partial"


def test_all_formats_have_the_same_values(store: Experiments, tmp_path: Path) -> None:
    running = store.start("x", "ada", at_ns=T0)
    table = points(metric="t", utc_ns=[T0, T0 + 1, T0 + S], text=['a,"b"', "", "c\nd"])
    store.sink(running).write(Batch("s", 0, table))
    values = [0.1, 1e300, -2.5e-7]
    store.sink(running).write(
        Batch("v", 0, points(metric="v", utc_ns=[T0, T0 + 1, T0 + S], float=values))
    )
    store.stop(running, at_ns=T0 + S)
    text = csv(store, "x", "t")
    assert pd.read_csv(io.StringIO(text), keep_default_na=False)["t"].tolist() == [
        'a,"b"',
        "",
        "c\nd",
    ]
    experiment = store.find("x", "ada")
    table = joined(store.recorded(experiment), "v", experiment.start_ns, experiment.end_ns or 0)
    assert table is not None
    lines = pd.read_json(io.BytesIO(b"".join(as_bytes(table, "jsonl"))), lines=True)
    assert lines["v"].tolist() == values
    restored = pq.read_table(pa.BufferReader(b"".join(as_bytes(table, "parquet"))))
    assert restored["v"].to_pylist() == values
    assert b"penstock.losses" in restored.schema.metadata
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    (family,) = text_string_to_metric_families(b"".join(as_bytes(table, "openmetrics")).decode())
    assert [s.value for s in family.samples] == values
    assert [(s.timestamp.sec, s.timestamp.nsec) for s in family.samples] == [
        *((T0 // S, 0), (T0 // S, 1), (T0 // S + 1, 0)),
    ]


def test_numbers_are_in_shortest_exact_form() -> None:
    rng = np.random.default_rng(7)
    values = np.concatenate(
        [
            rng.integers(-(2**62), 2**62, 2000).view(np.float64),
            [0.0, -0.0, 1.0, 0.1, 1e22, 123456789012.0, 5e-324, 2.0**53],
        ]
    )
    values = values[np.isfinite(values)]
    texts = numbers_as_text(pa.array(values)).to_pylist()
    for value, text in zip(values, texts, strict=True):
        assert float(text) == value
        assert not text.endswith(".0")
        assert len(re.sub(r"e.*|[-.]", "", text).strip("0")) <= 17
    assert numbers_as_text(pa.array([0.0, 1.0, None])).to_pylist() == ["0", "1", None]


@pytest.mark.parametrize("ns", [0, 1, -1, 999_999_999, T0, T0 + 1, T0 + 120_000_000, -S, -S - 5])
def test_moments_are_exact(ns: int) -> None:
    assert moment_ns(seconds_text(ns)) == ns


def test_moments_depend_on_no_time_zone(monkeypatch) -> None:
    import time

    texts = [
        "1512056178",
        1512056178,
        "1512056178.25",
        "2017-11-30T15:36:18.25Z",
        "2017-11-30T21:06:18.25+05:30",
    ]
    moments = {}
    for zone in ("UTC", "Asia/Kolkata"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        moments[zone] = [moment_ns(s) for s in texts]
    monkeypatch.delenv("TZ")
    time.tzset()
    assert moments["UTC"] == moments["Asia/Kolkata"]
    assert moments["UTC"] == [1512056178 * S] * 2 + [1512056178_250_000_000] * 3
    invalid_times = ["2017-11-30T15:36:18", "now", True, "1e400", "nan", "1.0000000001", None]
    # fractions of a minute and an hour, and a tenth decimal, which would be lost
    invalid_times += [f"2017-11-30T15{rest}Z" for rest in (":36.5", ".5", ":36:18.0000000001")]
    for invalid in invalid_times:
        with pytest.raises(BadInput):
            moment_ns(invalid)


def test_names_are_one_line(store: Experiments) -> None:
    assert name_and_repeat("a/b c#1") == ("a/b c", 1)
    assert name_and_repeat("a#0") == ("a#0", None)
    for invalid in ("", " x", "x\n", "x" * 201, "\x1b[31m"):
        with pytest.raises(BadInput):
            store.start(invalid, "ada")


def test_a_study_s_run_is_an_experiment(store: Experiments, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = {
        "study_id": "disks-0a1b2c3d",
        "run_id": "r001",
        "times": {"start_realtime_ns": T0, "wall_s": 2.0, "start_ns": 5, "end_ns": 5 + 2 * S},
    }
    with Bundle.create(out / "runs" / "r001", manifest) as bundle:
        clock = {"point": "start", "monotonic_ns": 5, "realtime_ns": T0, "boottime_ns": 0}
        bundle.write_table(
            "clocks", pa.Table.from_pylist([{**clock, "offset_ns": 0, "offset_bound_ns": 0}])
        )
        sample = {
            "source": "cpu",
            "entity": "all",
            "metric": "user",
            "unit": "s",
            "cumulative": True,
        }
        rows = [{"t_ns": 5 + i * S, "value": float(i), **sample} for i in range(3)]
        bundle.write_table("samples", pa.Table.from_pylist(rows))
    store.catalogue.put_runs(out, [Bundle.open(out / "runs" / "r001")])
    name = "disks-0a1b2c3d/r001"
    (row,) = store.catalogue.search(name=name)
    experiment = store.find(name, row["owner"])
    table = joined(
        store.recorded(experiment, "cpu_user"),
        "cpu_user",
        experiment.start_ns,
        experiment.end_ns or 0,
        axis="duration",
    )
    assert table is not None
    assert (
        b"".join(as_bytes(table, "csv")) == b'duration,"cpu_user{entity=""all""}"\n0,0\n1,1\n2,2\n'
    )
    with pytest.raises(Taken, match="penstock rm"):
        store.remove(experiment)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_full_disk_is_reported_and_stored_points_stay(tmp_path: Path) -> None:
    import subprocess

    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M,mode=700", "tmpfs", home], check=True)
    try:
        store = Experiments(Catalogue(tmp_path / "archive.sqlite"), home)
        running = store.start("x", "ada", at_ns=T0)
        sink = store.sink(running)
        rng, stored = np.random.default_rng(1), 0

        def fill() -> None:
            nonlocal stored
            for number in range(100):
                times = T0 + np.arange(number * 2000, number * 2000 + 2000)
                table = points(metric="m", utc_ns=times, float=rng.random(2000))
                sink.write(Batch("s", number, table))
                stored += 1

        with pytest.raises(PenstockError, match="No space left"):
            fill()
        assert 0 < stored < 100
        # the store still accepts what fits, and the refused batch once space is free
        assert sink.write(batch(1000, [1], [1])).points == 1
        assert [b.number for b in Spool(running.live).batches()] == [*range(stored), 1000]
        with pytest.raises(PenstockError, match="No space left"):
            store.stop(running, at_ns=T0 + 2 * S)
        assert len(csv(store, "x", "m").splitlines()) == 1 + stored * 2000 + 1
        subprocess.run(["mount", "-o", "remount,size=16M", home], check=True)
        reopened(store).resume()
        assert store.find("x", "ada").path.is_dir()
        assert len(csv(store, "x", "m").splitlines()) == 1 + stored * 2000 + 1
    finally:
        subprocess.run(["umount", home], check=True)


@pytest.mark.parametrize(
    "spoil", ["drop table tags", "alter table runs drop column owner", "drop table runs"]
)
def test_a_damaged_catalogue_is_reported_in_one_line(store: Experiments, spoil: str) -> None:
    """Fails if the message is only the database's own, or a traceback."""
    store.start("x", "ada")
    with store.catalogue._engine.begin() as connection:
        if "owner" in spoil:
            for index in sa.inspect(connection).get_indexes("runs"):
                connection.execute(sa.text(f"drop index {index['name']}"))
        connection.execute(sa.text(spoil))
    with pytest.raises(
        PenstockError, match=r"lacks a table or column .*penstock ls --rebuild"
    ) as e:
        store.listed("ada")
    assert "\n" not in str(e.value)
