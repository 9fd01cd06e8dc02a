"""Collectors as an observer: their tables in the bundle of a run, and their failures."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import select as waiting
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.analyse.findings.collected import collected
from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.archive.selection import select
from penstock.archive.series import read_series
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import say_ready
from penstock.observe.observer import Seen, Watched
from penstock.parts.monitoring import collect
from penstock.parts.monitoring.collect import SPOOL, CollectObserver
from penstock.parts.monitoring.collectors.collector_process import Budget, Budgeted
from penstock.parts.monitoring.collectors.settings import mistakes, variable
from penstock.parts.monitoring.experiments.points import Batch, Closed, points
from penstock.parts.monitoring.experiments.recorded import recorded_in
from penstock.parts.monitoring.experiments.spool import Spool
from penstock.parts.monitoring.usage.usage import uses_of_bundle
from penstock.plugins import COLLECTORS, OBSERVERS
from penstock.study.load import load_study
from penstock.testing import check_observer
from tests.support import commands
from tests.support.waiting import until
from tests.unit.test_collectors import exporting

NOBODY = Watched(None, None)
STUDY = """\
penstock: 1
name: collected
question: What is collected?
factors: {size: {levels: [1, 2]}}
platform: {nodes: [{name: n}]}
workload: {command: "true {size}"}
observers:
  collect:
COLLECTORS
responses: {t: {from: wall_s, unit: s, better: lower}}
"""


@contextlib.contextmanager
def observing(place: Path, settings: dict[str, Any], **more: Any) -> Iterator[CollectObserver]:
    journal = Journal(place / "journal.jsonl")
    observer = CollectObserver(journal, place, settings, **more)
    try:
        yield observer
    finally:
        observer.stop()
        assert not journal.open_entries()


def pushed(environment: dict[str, str], name: str, text: str, token: str | None = None) -> int:
    """HTTP status of line protocol sent to a receiver as a command sends it."""
    used_token = environment[f"{variable(name)}_TOKEN"] if token is None else token
    request = urllib.request.Request(
        f"{environment[variable(name)]}/write",
        data=text.encode(),
        method="POST",
        headers={"Authorization": f"Token {used_token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def stored(out_dir: Path, source: str) -> int:
    return sum(b.points.num_rows for b in Spool(out_dir / SPOOL).batches() if b.source == source)


def start(observer: CollectObserver, place: Path) -> int:
    place.mkdir(exist_ok=True)
    observer.start(NOBODY, place)
    return time.monotonic_ns()


def rows_of(seen: Seen, source: str) -> list[dict[str, Any]]:
    return [r for r in seen.tables["series"].to_pylist() if r["source"] == source]


def test_scraped_and_pushed_points_are_in_the_tables_of_a_run(tmp_path: Path) -> None:
    with exporting(text=b"busy_ratio 0.5\n") as url:
        settings = {
            "pull": {"type": "scrape", "targets": [url], "interval_s": 0.05, "timeout_s": 60},
            "push": {"type": "influxdb"},
            "lines": {"type": "graphite", "units": {"g.x": "W"}},
        }
        with observing(tmp_path, settings) as observer:
            for run in ("r1", "r2"):  # one process serves both
                out_dir = tmp_path / run
                start_ns = start(observer, out_dir)
                environment = observer.environment()
                assert pushed(environment, "push", "m,a=b v=3") == 204
                assert pushed(environment, "push", "m v=4", token="guessed") == 401
                host, _, port = environment[variable("lines")].rpartition(":")
                assert host == "127.0.0.1"
                with socket.create_connection((host, int(port))) as sent:
                    sent.sendall(f"g.x 7 {int(time.time())}\n".encode())
                until(lambda d=out_dir: stored(d, "lines") == 1 and stored(d, "pull") > 40)
                seen = observer.finish(None, (start_ns, time.monotonic_ns()))
                assert not (out_dir / SPOOL).exists()
                assert observer.environment() == {}
                for name, table in seen.tables.items():
                    assert table.schema.equals(TABLES[name].arrow)
                assert {(r["metric"], r["labels"]) for r in rows_of(seen, "push")} == {
                    ("m_v", '{"a":"b"}')
                }
                assert {r["unit"] for r in rows_of(seen, "lines")} == {"W"}
                assert "busy_ratio" in {r["metric"] for r in rows_of(seen, "pull")}
                account = seen.receipt["collectors"]
                assert set(account) == set(settings)
                assert account["push"]["points"] == 1
                assert account["pull"]["counted"]["failed"] == 0
                assert seen.receipt["cpu_ns"] > 0


def test_the_observer_conforms_to_the_protocol() -> None:
    check_observer(OBSERVERS.load("collect"), {"push": {"type": "influxdb"}})


def test_each_run_has_its_own_ports_and_token(tmp_path: Path) -> None:
    with observing(
        tmp_path, {"push": {"type": "influxdb"}, "w": {"type": "remote-write"}}
    ) as observer:
        start(observer, tmp_path / "a")
        first = observer.environment()
        observer.finish(None, None)
        start(observer, tmp_path / "b")
        second = observer.environment()
        observer.finish(None, None)
    names = ["PENSTOCK_COLLECT_PUSH", "PENSTOCK_COLLECT_PUSH_TOKEN"]
    names += ["PENSTOCK_COLLECT_W", "PENSTOCK_COLLECT_W_TOKEN"]
    assert sorted(first) == sorted(second) == names
    assert first["PENSTOCK_COLLECT_PUSH_TOKEN"] != second["PENSTOCK_COLLECT_PUSH_TOKEN"]
    assert first["PENSTOCK_COLLECT_PUSH_TOKEN"] != first["PENSTOCK_COLLECT_W_TOKEN"]
    assert all("://127.0.0.1:" in first[n] for n in names[::2])


class _Never(http.server.BaseHTTPRequestHandler):
    """An exporter that sends a head and no body."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.flush()
        time.sleep(3600)

    def log_message(self, *_: Any) -> None:
        pass


def test_failed_collectors_are_reported_and_fail_no_run(tmp_path: Path) -> None:
    silent = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Never)
    threading.Thread(target=silent.serve_forever, daemon=True).start()
    page = {"text": b"<html>", "kind": "text/html"}
    with exporting(**page) as url:
        settings = {
            "page": {"type": "scrape", "targets": [url], "interval_s": 0.05},
            "nobody": {"type": "scrape", "targets": ["http://127.0.0.1:9"], "interval_s": 0.05},
            "silent": {
                "type": "scrape",
                "targets": [f"http://127.0.0.1:{silent.server_address[1]}"],
                "interval_s": 0.05,
                "timeout_s": 0.1,
            },
            "taken": {"type": "influxdb", "port": silent.server_address[1]},
            "good": {"type": "influxdb"},
        }
        with observing(tmp_path, settings) as observer:
            start(observer, tmp_path / "r")
            assert pushed(observer.environment(), "good", "m v=1") == 204
            assert variable("taken") not in observer.environment()
            until(lambda: all(stored(tmp_path / "r", n) > 6 for n in ("page", "nobody", "silent")))
            seen = observer.finish(None, None)
    silent.shutdown()
    silent.server_close()
    account = seen.receipt["collectors"]
    for name in ("page", "nobody", "silent", "taken"):
        assert account[name]["verdict"] == "unusable", account[name]
    assert any("HTML" in t or "html" in t for t in account["page"]["told"])
    assert "in use" in account["taken"]["trouble"]
    assert account["good"]["verdict"] == "unknown"
    assert seen.receipt["complete"] == "unusable"


HANGS = """
import time

from penstock.parts.monitoring.collectors.collector import Receipt


class Hangs:
    def __init__(self, name, settings):
        self.name, self.at = name, settings["at"]

    async def start(self, sink):
        if self.at == "start":
            time.sleep(3600)
        if self.at == "mistake":
            raise ZeroDivisionError("a mistake of its own")

    async def stop(self):
        time.sleep(3600)
        return Receipt(self.name)
"""


def test_a_blocking_collector_stops_neither_run_nor_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    dist_info = tmp_path / "hangs-1.0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: hangs\nVersion: 1.0\n")
    (dist_info / "entry_points.txt").write_text("[penstock.collectors]\nhangs = hangs:Hangs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(COLLECTORS.__dict__, "_rows", raising=False)
    monkeypatch.setattr(collect, "PATIENCE_S", 5.0)
    settings = {
        "first": {"type": "hangs", "at": "start"},
        "last": {"type": "hangs", "at": "stop"},
        "wrong": {"type": "hangs", "at": "mistake"},
        "push": {"type": "influxdb"},
    }
    try:
        with observing(tmp_path, settings) as observer:
            for run in ("r1", "r2"):
                start(observer, tmp_path / run)
                assert pushed(observer.environment(), "push", "m v=1") == 204
                seen = observer.finish(None, None)
                account = seen.receipt["collectors"]
                assert "took longer" in account["first"]["trouble"]
                assert "took longer" in account["last"]["trouble"]
                assert "a mistake of its own" in account["wrong"]["trouble"]
                assert (account["push"]["points"], account["push"]["verdict"]) == (1, "unknown")
    finally:
        COLLECTORS.__dict__.pop("_rows", None)


def test_points_stored_before_a_kill_remain(tmp_path: Path) -> None:
    with observing(tmp_path, {"push": {"type": "influxdb"}}) as observer:
        start(observer, tmp_path / "r1")
        for n in range(5):
            assert pushed(observer.environment(), "push", f"m v={n}") == 204
        assert observer._daemon is not None
        os.kill(observer._daemon.pid, signal.SIGKILL)
        seen = observer.finish(None, None)
        assert seen.tables["points"].num_rows == 5
        assert "killed" in seen.receipt["died"]
        assert seen.receipt["collectors"]["push"]["verdict"] == "partial"
        # the next run has collectors again
        start(observer, tmp_path / "r2")
        assert pushed(observer.environment(), "push", "m v=1") == 204
        assert observer.finish(None, None).receipt["complete"] == "unknown"


def test_the_process_ends_with_its_parent_and_keeps_points(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from penstock.host.journal.journal import Journal\n"
        "from penstock.parts.monitoring.collect import CollectObserver\n"
        "from penstock.observe.observer import Watched\n"
        "place = Path(sys.argv[1])\n"
        "o = CollectObserver(Journal(place / 'j.jsonl'), place, {'push': {'type': 'influxdb'}})\n"
        "o.start(Watched(None, None), place)\n"
        "import json\n"
        "print(json.dumps({**o.environment(), 'pid': o._daemon.pid}), flush=True)\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            environment = json.loads(child.stdout.readline())
            pidfd = os.pidfd_open(environment["pid"])
            assert pushed(environment, "push", "m v=2 5\nm v=1") == 204
        finally:
            child.kill()
    assert waiting.select([pidfd], [], [], 120)[0], "it outlives its parent"
    os.close(pidfd)
    assert stored(tmp_path, "push") == 2


def test_readiness_after_the_parent_stopped_waiting() -> None:
    reads, writes = os.pipe()
    os.close(reads)  # the parent stopped waiting for readiness
    say_ready(writes)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writes)


def test_points_are_stored_up_to_the_budget(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / "s")
    budget = Budget(points=10, bytes_=1 << 20, sources=2)
    sink = Budgeted(spool.hold("a"), budget)

    def batch(source: str, number: int, rows: int) -> Batch:
        table = points(metric=["m"] * rows, utc_ns=list(range(rows)), float=[1.0] * rows)
        return Batch(source, number, table)

    sink.write(batch("a", 0, 9))
    with pytest.raises(Closed, match="10 points"):
        sink.write(batch("a", 1, 2))
    sink.write(batch("b", 0, 1))
    assert budget.full
    with pytest.raises(Closed):
        sink.write(batch("c", 0, 1))
    # a batch without points reports the losses
    sink.write(batch("a", 1, 0))
    small = Budget(points=10, bytes_=100)
    with pytest.raises(Closed):
        Budgeted(spool.hold("d"), small).write(batch("d", 0, 9))


@pytest.mark.parametrize(
    ("lines", "position", "message"),
    [
        ("    a: {type: scrape, targets: [x], interval_s: 0}", "9:49", "interval_s 0; expected 0.01"),
        ("    a: {type: scrap}", "9:15", "collector 'scrap'; expected scrape"),
        ("    a: {type: scrape}", "9:8", "no targets; expected one"),
        ("    a:\n      type: snmp\n      host: h\n      outlets:\n        - {oid: '1.x', metric: m}",
         "13:17", "oid '1.x'; expected numbers"),
        ("    a: {type: influxdb, prot: 1}", "9:31", "prot; expected host, port"),
        ("    a: {type: graphite, host: 10.0.0.1}", "9:31", "host 10.0.0.1, which others reach"),
        ("    a: {type: influxdb, experiments: x}", "9:38", "experiments; expected nothing"),
        ("    monitor: {type: influxdb}", "9:14", "collector monitor; expected another name"),
        ("    a.b: {type: influxdb}\n    a-b: {type: influxdb}", "10:10",
         "collectors a.b and a-b; expected names"),
        ("    a: 3", "9:8", "3; expected a mapping"),
    ],
)  # fmt: skip
def test_errors_of_collectors_in_a_study_have_a_position(
    tmp_path: Path, lines: str, position: str, message: str
) -> None:
    file = tmp_path / "c.study.yaml"
    file.write_text(STUDY.replace("COLLECTORS", lines))
    with pytest.raises(BadInput) as caught:
        load_study(file)
    assert f"c.study.yaml:{position}: found {message}" in str(caught.value)


def test_collectors_of_a_study_are_first_and_not_for_guests(tmp_path: Path) -> None:
    file = tmp_path / "c.study.yaml"
    text = STUDY.replace("COLLECTORS", "    push: {type: influxdb}")
    file.write_text(text)
    observers = load_study(file).observers.by_name()
    assert list(observers) == ["collect", "monitor"]
    assert observers["collect"] == {"push": {"type": "influxdb"}}
    file.write_text(text + "guest: {}\n")
    with pytest.raises(BadInput, match="collect with a guest"):
        load_study(file)


def test_receivers_for_other_hosts_need_a_token(tmp_path: Path) -> None:
    assert list(mistakes({"push": {"type": "influxdb", "host": "10.9.9.9"}})) == []
    assert [p for p, _, _ in mistakes({"g": {"type": "graphite", "host": "10.9.9.9"}})] == [
        ("g", "host")
    ]


SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND


def collected_run(place: Path, verdict: str = "complete") -> Bundle:
    """A sampled run, to which a collector added points of a device of another host."""
    shift = BEGIN - 50 * SECOND
    table = points(
        metric=["power_watts"] * 4,
        utc_ns=[BEGIN + n * SECOND for n in range(4)],
        float=[100.0, 101.0, 102.0, 103.0],
        unit="W",
    )
    from penstock.parts.monitoring.experiments.recorded import recorded

    result = recorded([Batch("power", 0, table)], BEGIN, BEGIN + 4 * SECOND)
    sample = {"source": "cpu", "entity": "all", "metric": "user", "unit": "s", "cumulative": True}
    samples = [{**sample, "t_ns": (50 + n) * SECOND, "value": float(n)} for n in range(4)]
    use = {"kind": "cpu", "entity": "all", "metric": "busy", "unit": "%", "reset": False}
    uses = [{**use, "t_ns": (50 + n) * SECOND, "value": 10.0 * n} for n in range(1, 4)]
    manifest = {
        "run_id": "r001",
        "study_id": "s",
        "treatment_id": "t01",
        "state": "finished",
        "valid": True,
        "times": {"start_ns": 50 * SECOND, "end_ns": 54 * SECOND},
        "receipts": {
            "monitor": {"complete": "complete", "samples": 4, "expected": 4},
            "collect": {
                "complete": verdict,
                "collectors": {
                    "power": {
                        "verdict": verdict,
                        "points": 4,
                        "counted": {"due": 8, "failed": 4, "missed": 0},
                        "told": ["pdu: No SNMP response"],
                    }
                },
            },
        },
    }
    with Bundle.create(place, manifest) as bundle:
        for name, rows in (("samples", samples), ("utilisation", uses)):
            bundle.write_table(name, pa.Table.from_pylist(rows, TABLES[name].arrow))
        for name in ("series", "points", "gaps"):
            bundle.write_table(name, getattr(result, name))
        clock = {"monotonic_ns": 50 * SECOND, "realtime_ns": 50 * SECOND + shift}
        clocks = [
            {**clock, "point": "start", "boottime_ns": 0, "offset_ns": 0, "offset_bound_ns": 0}
        ]
        bundle.write_table("clocks", pa.Table.from_pylist(clocks))
        phase = {"phase_id": "workload", "start_ns": 50 * SECOND, "end_ns": 54 * SECOND}
        bundle.write_table("phases", pa.Table.from_pylist([phase]))
    return Bundle.open(place)


def test_a_run_has_sampled_and_collected_series(tmp_path: Path) -> None:
    bundle = collected_run(tmp_path / "r001")
    result = recorded_in(bundle)
    rows = {r["metric"]: r for r in result.series.to_pylist()}
    assert {"power_watts", "cpu_user"} <= set(rows)
    assert len({r["series_id"] for r in rows.values()}) == len(rows)
    values = result.points.to_pandas().groupby("series_id")["float"]
    assert values.get_group(rows["power_watts"]["series_id"]).tolist() == [
        100.0,
        101.0,
        102.0,
        103.0,
    ]
    assert values.get_group(rows["cpu_user"]["series_id"]).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert recorded_in(bundle, "power_watts").series.num_rows == 1
    assert recorded_in(bundle, "cpu_user").series.num_rows == 1
    selected = read_series.of_selection(select(str(bundle.path)))
    by_name = {s.name: s for s in selected.series}
    assert {"cpu_busy all", "power_watts"} <= set(by_name)
    # on one clock, from the start of the workload
    assert by_name["power_watts"].x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert by_name["cpu_busy all"].x.tolist() == [1.0, 2.0, 3.0]
    uses = uses_of_bundle(bundle)
    busy = uses[(uses["kind"] == "cpu") & (uses["metric"] == "busy")]
    assert busy["value"].tolist() == [10.0, 20.0, 30.0], "counted once"


def test_incomplete_series_are_refused_and_reported(tmp_path: Path) -> None:
    bundle = collected_run(tmp_path / "r001", "partial")
    with pytest.raises(BadInput, match=r"found partial data: power is partial; expected complete"):
        read_series.of_selection(select(str(bundle.path)))
    assert read_series.of_selection(select(str(bundle.path)), partial=True).series
    # the samples of the monitor are complete
    assert read_series.of_selection(select(str(bundle.path)), "utilisation").series

    class Runs:
        run_ids = ("r001",)

        def manifest(self, _: str) -> dict[str, Any]:
            return bundle.manifest

    (finding,) = collected(Runs())  # type: ignore[arg-type]
    assert finding.code == "collected-incomplete"
    assert "power did not bring all that was due in r001: 4 of 8 polls failed" in finding.statement
    assert "No SNMP response" in finding.statement
    del bundle.manifest["receipts"]["collect"]
    assert list(collected(Runs())) == []  # type: ignore[arg-type]


def monitored(
    place: Path, config: dict[str, Any], command: str, *options: str, **more: str
) -> subprocess.CompletedProcess[str]:
    (place / "c.json").write_text(json.dumps(config, indent=1))
    line = [sys.executable, "-m", "penstock", "monitor", "run", "--config", str(place / "c.json")]
    env = {**os.environ, "PENSTOCK_STATE": str(place / "state"), **more}
    return commands.run(
        [*line, *options, "--", sys.executable, "-c", command],
        env=env, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


PUSHES = """
import os, urllib.request
to, token = (os.environ["PENSTOCK_COLLECT_IN" + end] for end in ("", "_TOKEN"))
for n in range(3):
    asked = urllib.request.Request(to + "/write", f"m v={n}".encode(), {"Authorization": "Token " + token})
    urllib.request.urlopen(asked)
"""


def test_one_command_is_monitored_with_collectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "collectors": {"in": {"type": "influxdb"}, "not": {"type": "snmp", "host": "h",
        "outlets": [{"oid": "1.3.6", "metric": "m"}], "experiments": "other"}}
    }  # fmt: skip
    result = monitored(
        tmp_path, config, PUSHES, "--name", "it", "-o", str(tmp_path / "b"), "--json"
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report["collected"]["collectors"]) == ["in"]
    assert report["collected"]["collectors"]["in"]["points"] == 3
    bundle = Bundle.open(tmp_path / "b")
    assert recorded_in(bundle, "m_v").points["float"].to_pylist() == [0.0, 1.0, 2.0]
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    import penstock

    assert penstock.series("it", "m_v").iloc[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert len(penstock.series("it", "cpu_user")) > 0


def test_collected_batches_are_forwarded_at_the_end(tmp_path: Path) -> None:
    forwarded: list[Batch] = []
    with observing(tmp_path, {"push": {"type": "influxdb"}}, forward=forwarded.append) as observer:
        start(observer, tmp_path / "r")
        for n in range(3):
            assert pushed(observer.environment(), "push", f"m v={n}") == 204
        seen = observer.finish(None, None)
    assert [(b.source, b.number) for b in forwarded] == [("push", n) for n in range(3)]
    assert [b.points["float"].to_pylist() for b in forwarded] == [[0.0], [1.0], [2.0]]
    assert seen.tables["points"].num_rows == 3

    def full(_: Batch) -> None:
        raise PenstockError("no room")

    # a failure of the forwarding fails no run
    with observing(tmp_path, {"push": {"type": "influxdb"}}, forward=full) as observer:
        start(observer, tmp_path / "r2")
        pushed(observer.environment(), "push", "m v=1")
        seen = observer.finish(None, None)
    assert seen.receipt["trouble"] == "no room"
    assert seen.tables["points"].num_rows == 1


def test_the_example_is_a_study_with_collectors() -> None:
    study = load_study(Path(__file__).parents[2] / "examples" / "collected.study.yaml")
    assert {s["type"] for s in study.observers.collect.values()} == {"influxdb", "scrape"}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"collectors": {"in": {"type": "influxdb", "prot": 1}}}, (), r"c.json:5:12: found prot"),
        ({"collectors": {"derived": {"type": "influxdb"}}}, (), "found collector derived"),
        ({"collectors": {}}, (), "found no collector for"),
        ({"collectors": {"in": {"type": "influxdb"}}}, ("--calibrate", "6"), "with --calibrate"),
    ],
)
def test_invalid_configurations_of_a_command_are_refused(
    tmp_path: Path, config: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    result = monitored(tmp_path, config, "raise SystemExit(3)", *options)
    assert result.returncode == 2
    assert message in result.stderr


def test_points_of_a_killed_monitor_are_in_its_experiment(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"collectors": {"in": {"type": "influxdb"}}}')
    line = [
        sys.executable,
        "-m",
        "penstock",
        "monitor",
        "run",
        "--config",
        str(tmp_path / "c.json"),
    ]
    waits = PUSHES + "print('pushed', flush=True)\nimport time\ntime.sleep(3600)\n"
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    with commands.popen(
        [*line, "--name", "it", "--", sys.executable, "-c", waits],
        env=env, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "pushed\n"
        process.kill()
        process.wait()
    commands.run([sys.executable, "-m", "penstock", "undo"], env=env, capture_output=True)
    line = [sys.executable, "-m", "penstock", "monitor"]
    commands.run([*line, "stop", "it"], env=env, check=True, capture_output=True)
    result = commands.run(
        [*line, "get", "it", "--metric", "m_v"], env=env, check=True, capture_output=True, text=True
    )
    assert [row.partition(",")[2] for row in result.stdout.splitlines()] == ["m_v", "0", "1", "2"]
