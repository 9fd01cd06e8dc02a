"""The requirements of an experiment monitoring framework (MonEx) that need no host.

Requirements that need one are tested in tests/integration/test_requirements.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.archive.catalogue import local_user
from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, Event, points
from tests.support import commands
from tests.support.waiting import until
from tests.unit.shared_runs import T0, S, made, own_store, penstock
from tests.unit.test_collectors import exporting
from tests.unit.test_experiment_server import Server


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    monkeypatch.chdir(tmp_path)
    return own_store(tmp_path, monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.end()


def test_experiments_of_one_and_of_several_users(store: Experiments) -> None:
    """Two users with five runs each: by user, name, tag and state; others see shared runs only."""
    for user in ("ada", "bob"):
        for number in range(5):
            experiment = store.start(
                f"x{number % 2}",
                user,
                at_ns=T0 + number * S,
                tags=["nightly"] if number == 3 else [],
                shared=user == "bob" and number == 4,
            )
            if number < 4:
                store.stop(experiment, at_ns=T0 + (number + 1) * S)
    own = [e for e in store.listed("ada") if e.owner == "ada"]
    assert len(own) == 5
    assert [(e.owner, e.name, e.repeat) for e in store.listed("ada", owner="bob")] == [
        ("bob", "x0", 3)
    ]
    assert len(store.listed(None)) == 10
    assert {e.repeat for e in store.listed("ada", owner="ada", name="x0")} == {1, 2, 3}
    assert [e.name for e in store.listed("bob", owner="bob", tag="nightly")] == ["x1"]
    assert [e.repeat for e in store.listed("bob", owner="bob", state="running")] == [3]
    assert all(e.start_ns and e.end_ns for e in store.listed("ada", owner="ada", state="ended"))


SUT = "import sys\nprint(sum(range(int(open(sys.argv[1]).read()))))\nsys.exit(5)\n"


def test_the_experiment_is_the_same_without_monitoring(tmp_path: Path) -> None:
    """Two more lines without a server: output, status and files of the program are the same."""
    (tmp_path / "sut.py").write_text(SUT)
    (tmp_path / "sut.conf").write_text("1000\n")
    line = f"{sys.executable} sut.py sut.conf; status=$?\n"
    watched = f"penstock monitor start x\n{line}penstock monitor stop x\n"
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def files() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in tmp_path.glob("sut.*")}

    before = files()
    outcomes = []
    for text, extra in (
        (line, {}),
        (watched, {}),
        (watched, {"PENSTOCK_SERVER": "http://127.0.0.1:1"}),
    ):
        result = commands.run(
            ["sh", "-c", text + "exit $status"],
            cwd=tmp_path,
            env={**environment, **extra},
            capture_output=True,
            text=True,
        )
        outcomes.append((result.returncode, result.stdout))
        assert files() == before
        warned = "nothing is recorded" in result.stderr
        assert warned == bool(extra), result.stderr
    assert outcomes == [(5, "499500\n")] * 3
    listed = commands.run(
        ["penstock", "monitor", "list", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    # only the run with a store is listed
    assert [e["state"] for e in json.loads(listed.stdout)["experiments"]] == ["ended"]


def test_a_hundred_nodes_with_two_hundred_metrics_lose_nothing(server: Server) -> None:
    """100 nodes × 200 metrics × 3 s into one server: every point is stored (speed: bench/ingest.py)."""
    assert server.http.post("/exp/many", json={"utc_time": T0 // S}).status_code == 201
    names = [f"m{n}" for n in range(200)]
    for node in range(100):
        at = np.repeat(T0 + np.arange(3) * S, 200)
        value = np.arange(600, dtype=float) + 1000 * node
        table = points(
            metric=names * 3,
            labels=json.dumps({"node": f"n{node:03}"}, separators=(",", ":")),
            utc_ns=at,
            float=value,
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        answer = server.http.post(
            "/api/v1/experiments/many/points",
            params={"source": f"n{node:03}", "number": 0},
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert answer.json() == {"points": 600, "duplicate": False}
    assert server.http.put("/exp/many", json={"utc_time": T0 // S + 3}).status_code == 201
    for metric in (0, 77, 199):
        rows = server.get("many", metric=f"m{metric}", type="duration", labels="node").text
        lines = [line.split(",") for line in rows.splitlines()]
        assert lines[0] == ["duration", *(f"n{n:03}" for n in range(100))]
        assert [[float(c) for c in line[1:]] for line in lines[1:]] == [
            [metric + 200 * s + 1000 * n for n in range(100)] for s in range(3)
        ]


def test_switched_off_twice_is_disabled_and_not_lost(store: Experiments) -> None:
    """A collector is removed and restored twice while the experiment continues."""
    experiment = store.start("toggled", local_user())
    sink = store.sink(experiment)

    with exporting(text=b"busy_ratio 0.5\n") as url:
        scrape = {"type": "scrape", "targets": [url], "interval_s": 0.5, "timeout_s": 60}
        missed = 0
        for turn in range(3):
            scraper: Any = collectors_of({"s": scrape})["s"]
            with Collecting({"s": scraper}, sink):
                until(lambda of=scraper: of.targets[0].due >= 4)  # type: ignore[misc]
            missed += scraper.targets[0].missed
            if turn < 2:
                off = time.time_ns()
                time.sleep(2.0)
                event = Event("disabled", off, time.time_ns())
                empty = points(metric=[], utc_ns=[], float=[])
                sink.write(Batch("s", sink.next_number("s"), empty, events=[event]))
    ended = store.stop(experiment)
    recorded = store.recorded(ended)
    rows = [r for r in recorded.gaps.to_pylist() if r["kind"] in ("disabled", "lost")]
    busy = next(r for r in recorded.series.to_pylist() if r["metric"] == "busy_ratio")
    kinds = [r["kind"] for r in rows if r["series_id"] == busy["series_id"]]
    # each gap is intentional
    assert kinds.count("disabled") == 2
    assert busy["lost"] <= 1 + missed
    # the overhead of every scrape is recorded
    assert "scrape_duration_seconds" in recorded.series["metric"].to_pylist()


def test_a_sample_is_seen_while_the_experiment_runs(
    server: Server, record_property: pytest.FixtureRequest
) -> None:
    """An acknowledged point is in the next answer; the delay is printed (goal 2 s)."""
    assert server.http.post("/exp/live").status_code == 201
    delays = []
    for number in range(5):
        taken = time.time_ns()
        assert server.push("live", number, [taken], [number]).status_code == 201
        answer = server.get("live", metric="m")
        delays.append((time.time_ns() - taken) / 1e9)
        assert answer.headers["X-Penstock-State"] == "running"
        assert answer.text.splitlines()[-1].endswith(f",{number}")
    print(f"visible at most {max(delays):.3f} s after the measurement")
    record_property("delay_s", max(delays))  # type: ignore[operator]


KINDS = {
    "lines": "-s m",
    "stacked": "-s m",
    "multi-y": "-s m -s power",
    "scatter": "-s m --x power",
    "cdf": "-s m",
    "heatmap": "-s m",
}


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_fit_for_publication(store: Experiments, kind: str) -> None:
    """Two quantities of three nodes: one column wide, fonts embedded, the same bytes again from the spec."""
    at = np.arange(60.0)
    experiment = store.start("more", local_user(), at_ns=T0)
    for metric, unit in (("m", "B/s"), ("power", "W")):
        for n in range(3):
            label = json.dumps({"node": f"n{n}"}, separators=(",", ":"))
            times = (T0 + at * S).astype(np.int64)
            table = points(metric=metric, labels=label, utc_ns=times, float=at * n + 120, unit=unit)
            store.sink(experiment).write(Batch(unit, n, table))
    store.stop(experiment, at_ns=T0 + 60 * S)
    options = KINDS[kind].split()
    for name in ("a.pdf", "b.pdf"):
        result = penstock("plot", "more", kind, *options, "--width", "single", "-o", name)
        assert result.exit_code == 0, result.output
    content = Path("a.pdf").read_bytes()
    assert content == Path("b.pdf").read_bytes()
    assert b"/FontFile2" in content or b"/FontFile3" in content or b"/Type3" in content
    (box,) = set(re.findall(rb"/MediaBox \[([^\]]*)\]", content))
    assert float(box.split()[2]) == pytest.approx(3.5 * 72, abs=0.1)
    assert penstock("plot", "a.json", "-o", "c.pdf").exit_code == 0
    assert Path("c.pdf").read_bytes() == content


def test_others_repeat_the_analysis(store: Experiments, tmp_path: Path) -> None:
    """Another user, another directory, no network: the same figure and comparison from one file."""
    at = np.arange(40.0)
    for level in (1.0, 1.1):
        made(store, "x", {("m", ""): (at, at * level)}, phases={"load": (5, 25)}, lasted_s=40)
    assert penstock(*"plot x#1..2 bands -o fig.pdf".split()).exit_code == 0
    expected = json.loads(penstock("compare", "x#1", "x#2", "-m", "m", "--json").stdout)
    assert penstock("export", "x#1..2", "shared.tar.zst").exit_code == 0
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    shutil.move("shared.tar.zst", elsewhere)
    environment = {
        **os.environ,
        "PENSTOCK_ARCHIVE": str(elsewhere / "archive"),
        "PENSTOCK_STATE": str(elsewhere / "state"),
    }
    environment.pop("PENSTOCK_SERVER", None)
    offline = ["unshare", "-n"] if os.geteuid() == 0 else []

    def run_elsewhere(*argv: str) -> str:
        return commands.run(
            [*offline, sys.executable, "-m", "penstock", *argv],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    run_elsewhere("import", "shared.tar.zst")
    run_elsewhere("plot", "shared", "bands", "-o", "fig.pdf", "--table", "points")
    assert (elsewhere / "fig.pdf").read_bytes() == Path("fig.pdf").read_bytes()
    runs = ("shared:x.1", "shared:x.2")
    actual = json.loads(run_elsewhere("compare", *runs, "-m", "m", "--json"))
    values = [
        [list(r["values"].values()) for r in document["rows"]] for document in (actual, expected)
    ]
    assert values[0] == values[1]
    # and the values can be read without penstock
    tables = pd.read_csv(elsewhere / "shared" / "csv" / "runs" / "x.2" / "points.csv")
    assert np.allclose(tables["float"], at * 1.1)
