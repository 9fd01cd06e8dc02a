"""Collectors and readers against the real programs: collectd, node_exporter, Prometheus, VictoriaMetrics,
InfluxDB, Graphite."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import BadInput, Upstream
from penstock.host.journal.journal import Journal
from penstock.observe.sampler.formulas import IDLE_STATES, STATES
from penstock.observe.sampler.monitor import Monitor
from penstock.parts.monitoring.collectors.graphite import GraphiteReceiver
from penstock.parts.monitoring.collectors.http_push import (
    InfluxReceiver,
    RemoteWriteReceiver,
    snapped,
)
from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.experiments.points import Batch
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.parts.monitoring.servers.graphite import GraphiteReader
from penstock.parts.monitoring.servers.influxdb import InfluxReader
from penstock.parts.monitoring.servers.prometheus import PrometheusReader
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, names_of, rows_of
from penstock.parts.monitoring.usage.usage import uses_of_points
from penstock.testing import MemorySink
from tests.support import commands
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.unit.shared_runs import made, own_store, penstock
from tests.unit.test_collectors import exporting, native, post
from tests.unit.test_remote_write_out import losing

pytestmark = [pytest.mark.host]

SECOND = 1_000_000_000


def program(name: str, package: str) -> str:
    """Path of a program; skips the test if it is not installed."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"not run: {name} is not installed (Debian: {package})")
    return path


@contextlib.contextmanager
def running(argv: Sequence[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str, status: int = 200) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == status)
    except urllib.error.HTTPError as error:
        return error.code == status
    except OSError:
        return False


# ---------------------------------------------------------------- collectors

COLLECTD = """
Hostname "node"
FQDNLookup false
Interval 1
BaseDir "{place}"
PIDFile "{place}/pid"
PluginDir "/usr/lib/collectd"
TypesDB "/usr/share/collectd/types.db"
LoadPlugin cpu
LoadPlugin memory
LoadPlugin load
LoadPlugin csv
LoadPlugin write_graphite
<Plugin csv>
  DataDir "{place}/csv"
  StoreRates false
</Plugin>
<Plugin write_graphite>
  <Node "penstock">
    Host "127.0.0.1"
    Port "{port}"
    Protocol "tcp"
    StoreRates false
    LogSendErrors true
  </Node>
</Plugin>
"""


def csv_values(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Values of collectd's CSV files by second, for each identifier and data source."""
    series: dict[tuple[str, str], dict[int, float]] = {}
    for path in sorted(folder.rglob("*-20*")):
        with path.open() as lines:
            rows = list(csv.reader(lines))
        name = ".".join([path.parent.name, path.name[: -len("-2026-11-25")]])
        for column, source in enumerate(rows[0][1:], 1):
            values = series.setdefault((name, source), {})
            for row in rows[1:]:
                if len(row) == len(rows[0]) and row[column] != "nan":
                    # collectd sends times rounded to the nearest second
                    values[int(float(row[0]) + 0.5)] = float(row[column])
    return series


def test_what_collectd_sends_is_what_collectd_wrote(tmp_path: Path) -> None:
    collectd = program("collectd", "collectd-core")
    sink = MemorySink()
    receiver = GraphiteReceiver("collectd", {"port": 0, "pickle_port": None})
    with Collecting({"collectd": receiver}, sink):
        config = tmp_path / "collectd.conf"
        config.write_text(COLLECTD.format(place=tmp_path, port=receiver.address[1]))
        with running([collectd, "-f", "-C", str(config)], tmp_path / "log") as process:
            until(lambda: len({r["utc_ns"] for r in sink.rows()}) >= 3, 120)
            # after a stop the late reading and the next one are rounded to the same second
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.7)
            process.send_signal(signal.SIGCONT)
            seconds = len({r["utc_ns"] for r in sink.rows()})
            until(lambda: len({r["utc_ns"] for r in sink.rows()}) >= seconds + 3, 120)
        # collectd flushes its buffered readings when it ends
        receipt = receiver.intake.receipt
        until(lambda: receipt.stored + receipt.refused.total() == receipt.received)
        time.sleep(1.0)
    # a second reading within one second is refused if it is equal; otherwise it replaces the first
    assert set(receipt.refused) <= {"duplicate"}, receipt.errors
    expected = csv_values(tmp_path / "csv")
    assert len(expected) >= 12
    stored: dict[str, dict[int, float]] = {}
    for row in sink.rows():
        stored.setdefault(str(row["metric"]), {})[int(str(row["utc_ns"])) // SECOND] = float(
            str(row["float"])
        )
    compared = 0
    for (name, source), values in expected.items():
        metric = f"node.{name}" + ("" if source == "value" else f".{source}")
        assert set(stored[metric]) == set(values), metric
        for second, value in values.items():
            # both outputs have six significant digits
            assert stored[metric][second] == pytest.approx(value, rel=1e-5, abs=1e-5), metric
            compared += 1
    assert compared >= 5 * 12
    assert len(stored) == len(expected)


@contextlib.contextmanager
def rating_collectd(directory: Path, rates: str, sink: MemorySink) -> Iterator[None]:
    """Run collectd with its own receiver; it sends counters (`rates` is `false`) or rates (`true`)."""
    collectd = program("collectd", "collectd-core")
    receiver = GraphiteReceiver("collectd", {"port": 0, "pickle_port": None})
    config = directory / "collectd.conf"
    directory.mkdir()
    with Collecting({"collectd": receiver}, sink):
        text = COLLECTD.format(place=directory, port=receiver.address[1])
        config.write_text(text.replace("StoreRates false", f"StoreRates {rates}"))
        with running([collectd, "-f", "-C", str(config)], directory / "log"):
            yield


@pytest.fixture(scope="module")
def busy_processor(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, MemorySink], Any, int]:
    """Points of two collectds and tables of the sampler while one processor is busy.

    The third value is the offset from the sampler's clock to the real-time clock [ns].
    """
    directory = tmp_path_factory.mktemp("busy")
    sinks = {rates: MemorySink() for rates in ("false", "true")}
    spin = [sys.executable, "-c", "while True: pass"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_RUNTIME", str(directory))
        with (
            Monitor(Journal(directory / "journal.jsonl"), directory, SECOND // 10) as monitor,
            running(spin, directory / "spin"),
        ):
            monitor.start(None, None, directory)
            shift = time.time_ns() - time.monotonic_ns()
            with contextlib.ExitStack() as both:
                for rates, sink in sinks.items():
                    both.enter_context(rating_collectd(directory / rates, rates, sink))
                for sink in sinks.values():
                    until(lambda sink=sink: len(processor_times(sink)) > 12, 120)
                # collectd rounds its times to seconds
                time.sleep(1.0)
                tables = monitor.stop().tables
    return sinks, tables, shift


def processor_times(sink: MemorySink) -> set[Any]:
    """Times of the points of processor metrics."""
    return {row["utc_ns"] for row in sink.rows() if "cpu" in row["metric"]}


@pytest.mark.parametrize("rates", ["false", "true"])
def test_collectd_and_sampler_report_the_same_processor_use(
    busy_processor: tuple[dict[str, MemorySink], Any, int], rates: str
) -> None:
    # fails if ticks are read as seconds, rates as counters, or I/O wait as busy time
    sinks, tables, shift = busy_processor
    sink = sinks[rates]
    batches = [sink.batches[key] for key in sorted(sink.batches)]
    frame = uses_of_points(recorded(batches, 0, time.time_ns()), {})
    (row,) = names_of(DASHBOARDS["compute"], frame)
    assert row == "node"
    plots = {plot.key: lines for plot, lines in rows_of(DASHBOARDS["compute"], frame)[row]}
    (busy,) = plots["cpu"]
    assert len(plots["load"]) == 3
    ticks = tables["samples"].to_pandas().query("source == 'cpu' and entity == 'all'")
    wide = ticks.pivot(index="t_ns", columns="metric", values="value")[list(STATES)].diff()
    wide = wide.iloc[1:].cumsum()
    at = wide.index.to_numpy() + shift
    ends = busy.utc_ns[busy.utc_ns <= at[-1]]
    assert len(ends) >= 8

    def between(states: Sequence[str]) -> Any:
        elapsed = wide[list(states)].sum(axis=1).to_numpy()
        return np.interp(ends, at, elapsed) - np.interp(ends - SECOND, at, elapsed)

    idle, total = between(IDLE_STATES), between(STATES)
    sampled_percent = 100.0 * (total.sum() - idle.sum()) / total.sum()
    assert sampled_percent > 100.0 / (os.cpu_count() or 1) / 2, (
        "the busy processor is missing from the samples"
    )
    # collectd rounds times to seconds: each end of the interval is off by at most half a second
    assert busy.value[: len(ends)].mean() == pytest.approx(sampled_percent, abs=100.0 / len(ends))


def test_every_scrape_of_node_exporter_is_taken_or_counted_as_missed(tmp_path: Path) -> None:
    exporter = program("prometheus-node-exporter", "prometheus-node-exporter")
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    sink = MemorySink()
    log = tmp_path / "log"
    with running([exporter, f"--web.listen-address=127.0.0.1:{port}"], log):
        until(lambda: answers(url))
        config = {"nodes": {"type": "scrape", "targets": [url], "interval_s": 0.5}}
        with Collecting(collectors_of(config), sink) as collecting:
            until(lambda: collecting.collectors["nodes"].targets[0].succeeded >= 5)  # type: ignore[attr-defined]
        (target,) = collecting.collectors["nodes"].targets  # type: ignore[attr-defined]
    rows = sink.points().to_pandas()
    success = rows[rows.metric == "scrape_success"].float
    assert success.sum() == len(success) >= 5
    assert target.failed == 0
    assert len(success) + target.missed == target.due
    cpu = rows[rows.metric == "node_cpu_seconds_total"]
    assert set(cpu.unit) == {"s"}
    modes = {json.loads(labels)["mode"] for labels in cpu.labels}
    assert {"user", "system", "idle", "iowait"} <= modes
    assert len({json.loads(labels)["cpu"] for labels in cpu.labels}) == os.cpu_count()


#: the monitored command: runs collectd and pushes line protocol and remote write for 12 s
PUSHING = """
import os, subprocess, sys, time, urllib.request
from penstock import _native
from penstock.parts.monitoring.collectors.http_push import snapped

place, collectd, lost = sys.argv[1], sys.argv[2], {int(n) for n in sys.argv[3].split(",")}


def post(name, path, body):
    told = {"Authorization": "Token " + os.environ[f"PENSTOCK_COLLECT_{name}_TOKEN"]}
    url = os.environ[f"PENSTOCK_COLLECT_{name}"] + path
    assert urllib.request.urlopen(urllib.request.Request(url, body, told)).status == 204


begin = time.time_ns()
with open(f"{place}/collectd.conf") as file:
    config = file.read()
port = os.environ["PENSTOCK_COLLECT_COLLECTD"].rpartition(":")[2]
with open(f"{place}/collectd.conf", "w") as file:
    file.write(config.replace("PORT", port))
collecting = subprocess.Popen([collectd, "-f", "-C", f"{place}/collectd.conf"])


def power(numbers):
    # 100 points a second
    lines = [f"power watts={n} {begin + n * 10_000_000}\\n" for n in numbers if n not in lost]
    for at in range(0, len(lines), 100):
        post("POWER", "/write?db=x", "".join(lines[at : at + 100]).encode())
    return len(lines)


# times from before the experiment to after it: points inside the experiment are expected
sent = power(range(-3000, 0))
samples = [(begin // 1_000_000 + 100 * k, float(k)) for k in range(50)]
post("PROMETHEUS", "/api/v1/write", snapped(_native.remote_write_message([("q", {})], [samples])))
time.sleep(12.0)
collecting.terminate()
collecting.wait()
# up to 4.9 s after now: later than 5 s after the end counts as a wrong clock
sent += power(range((time.time_ns() - begin) // 10_000_000 + 490))
with open(f"{place}/sent", "w") as file:
    file.write(str(sent))
"""


def test_four_sources_and_the_recorder_at_once_and_a_planted_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record one command with collectd, a scraper, line protocol, remote write and the sampler.

    A sender omits five of a thousand points; the report of losses has five.
    """
    collectd = program("collectd", "collectd-core")
    store = own_store(tmp_path, monkeypatch)
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path))
    (tmp_path / "collectd.conf").write_text(COLLECTD.format(place=tmp_path, port="PORT"))
    (tmp_path / "push.py").write_text(PUSHING)
    omitted = [17, 400, 401, 402, 999]
    with exporting(text=b"app_ratio 0.25\n") as url:
        collectors = {
            "collectd": {"type": "graphite", "pickle_port": None},
            "app": {"type": "scrape", "targets": [url], "interval_s": 0.1},
            "power": {"type": "influxdb", "interval_s": 0.01},
            "prometheus": {"type": "remote-write"},
        }
        (tmp_path / "c.json").write_text(json.dumps({"collectors": collectors}))
        argv = [sys.executable, "-m", "penstock", "monitor", "run", "--json", "-n", "four"]
        argv += ["-i", "0.5", "--config", str(tmp_path / "c.json"), "--", sys.executable]
        argv += [str(tmp_path / "push.py"), str(tmp_path), collectd, ",".join(map(str, omitted))]
        result = commands.run(argv, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)["collected"]["collectors"]
    assert reports["power"]["verdict"] == "complete"
    polls = reports["app"]["counted"]
    assert polls["due"] > 100
    assert not polls.get("failed")
    # polls that a paused collector did not make are counted as missed
    assert reports["app"]["verdict"] == "complete" or polls["missed"] > 0.01 * polls["due"]
    out = tmp_path / "out"
    assert penstock("export", "four", "csv", "-o", str(out)).exit_code == 0
    series = json.loads((out / "losses.json").read_text())["series"]
    assert {row["source"] for row in series} == {*collectors, "samples", "utilisation"}
    # loss report of the series
    (power,) = (row for row in series if row["source"] == "power")
    assert (power["lost"], power["gaps"], power["verdict"]) == (5, 3, "complete")
    assert power["interval_from"] == "told"
    assert power["stored"] + power["outside"] == int((tmp_path / "sent").read_text())
    assert power["outside"] > 0
    rows = columns_of(out / power["file"], power["column"])
    assert len(rows) == power["expected"] - 5
    assert float(rows[-1]) - float(rows[0]) + 1 == power["expected"]
    assert not {float(n) for n in omitted} & {float(cell) for cell in rows}
    (app,) = (row for row in series if row["metric"] == "app_ratio")
    assert {float(cell) for cell in columns_of(out / app["file"], app["column"])} == {0.25}
    (sent,) = (row for row in series if row["source"] == "prometheus")
    cells = columns_of(out / sent["file"], sent["column"])
    assert [float(cell) for cell in cells] == list(range(50))
    metrics = {row["metric"] for row in series if row["source"] == "collectd"}
    assert {"node.load.load.shortterm", "node.memory.memory-free"} <= metrics
    # every series has values in the export
    for row in series:
        assert columns_of(out / row["file"], row["column"]), row
    assert store.find("four", None).state == "ended"


def columns_of(path: Path, column: str) -> list[str]:
    """Non-empty cells of a column of a CSV file."""
    with path.open(newline="") as lines:
        return [row[column] for row in csv.DictReader(lines) if row[column]]


# ---------------------------------------------------------------- monitoring servers

BEGIN = 1_700_000_000


@contextlib.contextmanager
def prometheus(directory: Path, config: str, *options: str) -> Iterator[str]:
    server = program("prometheus", "prometheus")
    port = free_port()
    (directory / "p.yml").write_text(config)
    argv = [
        server,
        f"--config.file={directory / 'p.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        *options,
    ]
    with running(argv, directory / "prometheus.log"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/-/ready"))
        yield url


def push(url: str, name: str, seconds: Sequence[int], begin: int) -> None:
    """Send points whose value is their second by remote write."""
    for at in range(0, len(seconds), 5000):
        samples = [((begin + s) * 1000, float(s)) for s in seconds[at : at + 5000]]
        message = native.remote_write_message([(name, {"dev": "sda"})], [samples])
        host, port = url.removeprefix("http://").split(":")
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        status, answer = post((host, int(port)), "/api/v1/write", snapped(message), **headers)
        assert status in (200, 204), answer


def check_seven_hours(
    reader: PrometheusReader, begin: int, seconds: np.ndarray[Any, Any], name: str
) -> None:
    result = reader.read(name, begin * SECOND, (begin + 25_200) * SECOND, SECOND)
    assert result.query == name
    assert result.requests == 3
    times = result.points["utc_ns"].to_numpy()
    assert (times == (begin + seconds) * SECOND).all()
    assert (result.points["float"].to_numpy() == seconds).all()
    assert set(result.points["labels"].to_pylist()) == {'{"dev":"sda"}'}


def test_seven_hours_of_prometheus_come_whole_in_three_requests(tmp_path: Path) -> None:
    program("prometheus", "prometheus")
    begin = int(time.time()) - 25_200 - 60
    options = ("--web.enable-remote-write-receiver", "--query.lookback-delta=500ms")
    with prometheus(tmp_path, "global: {}\n", *options) as url:
        seconds = [s for s in range(100) if not 40 <= s < 50]
        # older points first: Prometheus refuses points an hour older than the newest
        push(url, "holed", seconds, begin)
        push(url, "whole", range(25_201), begin)
        reader = PrometheusReader(url, {})
        check_seven_hours(reader, begin, np.arange(25_201), "whole")
        # gaps stay gaps
        holed = reader.read("holed", begin * SECOND, (begin + 99) * SECOND, SECOND).points
        assert (holed["utc_ns"].to_numpy() // SECOND - begin).tolist() == seconds
        with pytest.raises(BadInput, match=r"found 'holed\{'; its error"):
            reader.read("holed{", 0, SECOND, SECOND)


def test_points_of_prometheus_are_fetched_into_an_experiment(tmp_path: Path) -> None:
    program("prometheus", "prometheus")
    begin = int(time.time()) - 400
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    environment.pop("PENSTOCK_SERVER", None)

    def penstock(*argv: str) -> str:
        command = [sys.executable, "-m", "penstock", "monitor", *argv]
        result = commands.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout + result.stderr

    options = ("--web.enable-remote-write-receiver", "--query.lookback-delta=500ms")
    with prometheus(tmp_path, "global: {}\n", *options) as url:
        # 300 s with a gap of ten; the experiment covers the middle 200 s
        push(url, "turns", [s for s in range(301) if not 100 <= s < 110], begin)
        penstock("start", "x", "--at", str(begin + 50))
        penstock("stop", "x", "--at", str(begin + 250))
        fetch = ("fetch", "x", "--query", "turns * 2", "-m", "twice", "--from", url)
        assert "twice: 191 points" in penstock(*fetch)
        # a second fetch adds nothing
        penstock(*fetch)
    rows = penstock("get", "x", "-m", "twice", "--partial").splitlines()
    values = [line.split(",")[1] for line in rows if line[:1].isdigit()]
    assert len(values) == 191 + values.count("")
    stored = [float(v) for v in values if v]
    assert stored == [2.0 * s for s in range(50, 251) if not 100 <= s < 110]


def test_prometheus_sends_its_scraped_points_by_remote_write(tmp_path: Path) -> None:
    program("prometheus", "prometheus")
    sink = MemorySink()
    receiver = RemoteWriteReceiver("prometheus", {"port": 0})
    with (
        exporting(text=b'app_read_bytes_total{dev="sda"} 4096\n') as target,
        Collecting({"p": receiver}, sink),
    ):
        host = urllib.parse.urlsplit(target).netloc
        config = (
            "scrape_configs: [{job_name: app, scrape_interval: 200ms, scrape_timeout: 200ms, "
            f'static_configs: [{{targets: ["{host}"]}}]}}]\n'
            f'remote_write: [{{url: "http://127.0.0.1:{receiver.address[1]}/api/v1/write"}}]\n'
        )
        with prometheus(tmp_path, config) as url:
            until(
                lambda: len([r for r in sink.rows() if r["metric"] == "app_read_bytes_total"]) >= 5,
                120,
            )
            scraped = json.loads(
                urllib.request.urlopen(f"{url}/api/v1/query?query=app_read_bytes_total[10m]").read()
            )["data"]["result"][0]["values"]
    rows = [r for r in sink.rows() if r["metric"] == "app_read_bytes_total"]
    assert {(r["labels"], r["unit"], r["float"]) for r in rows} == {
        (f'{{"dev":"sda","instance":"{host}","job":"app"}}', "B", 4096.0)
    }
    scraped_ns = {round(t * 1000) * 1_000_000 for t, _ in scraped}
    received_ns = [int(str(r["utc_ns"])) for r in rows]
    assert len(set(received_ns)) == len(received_ns)
    assert {t for t in received_ns if t <= max(scraped_ns)} == {
        t for t in scraped_ns if t <= max(received_ns)
    }


@contextlib.contextmanager
def victoriametrics(directory: Path) -> Iterator[str]:
    server = program("victoria-metrics", "victoria-metrics")
    port = free_port()
    argv = [
        server,
        f"-storageDataPath={directory / 'v'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-search.latencyOffset=0s",
        "-search.maxStalenessInterval=1s",
    ]
    with running(argv, directory / "log"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/health"))
        yield url


def test_seven_hours_of_victoriametrics(tmp_path: Path) -> None:
    begin = int(time.time()) - 25_200 - 600
    with victoriametrics(tmp_path) as url:
        push(url, "whole", range(25_201), begin)
        urllib.request.urlopen(f"{url}/internal/force_flush").read()
        check_seven_hours(PrometheusReader(url, {}), begin, np.arange(25_201), "whole")


@pytest.mark.parametrize("kind", ["prometheus", "victoriametrics"])
def test_an_experiment_is_sent_to_a_server_and_read_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours of two nodes are stored once although the answer to the first request is lost.

    Prometheus refuses a second export and points that are years old; VictoriaMetrics accepts both.
    """
    program(
        *{"prometheus": ("prometheus",) * 2, "victoriametrics": ("victoria-metrics",) * 2}[kind]
    )
    store = own_store(tmp_path, monkeypatch)
    begin, seconds = int(time.time()) - 7_200 - 600, np.arange(7_201.0)
    nodes = {("disk.busy", node): (seconds, seconds * n + 0.25) for n, node in enumerate("ab")}
    made(store, "x", nodes, start_ns=begin * SECOND, lasted_s=7_200.0)
    made(store, "old", {("m", ""): ([0.0, 1.0], [1.0, 2.0])})
    options = ("--web.enable-remote-write-receiver", "--query.lookback-delta=500ms")
    with (
        prometheus(tmp_path, "global: {}\n", *options)
        if kind == "prometheus"
        else victoriametrics(tmp_path)
    ) as url:
        with losing(url) as proxy:
            result = penstock("export", "x", "remote-write", "--to", proxy)
        assert result.exit_code == 0, result.output
        assert "14402 points of 2 series in 5 requests" in result.stdout
        if kind == "victoriametrics":
            urllib.request.urlopen(f"{url}/internal/force_flush").read()
        query = 'disk_busy{penstock_experiment="x#1"}'
        end = (begin + 7_200) * SECOND
        table = PrometheusReader(url, {}).read(query, begin * SECOND, end, SECOND).points
        for name in ("x", "old"):
            if kind == "prometheus":
                refusal = r"found status 400 \(out of (bounds|order).*; 0 points were sent before"
                with pytest.raises(Upstream, match=refusal):
                    penstock("export", name, "remote-write", "--to", url)
            else:
                assert penstock("export", name, "remote-write", "--to", url).exit_code == 0
    by_node: dict[str, list[tuple[int, float]]] = {"a": [], "b": []}
    for row in table.to_pylist():
        by_node[json.loads(row["labels"])["node"]].append(
            (row["utc_ns"] // SECOND - begin, row["float"])
        )
    assert by_node == {
        node: [(s, s * n + 0.25) for s in range(7_201)] for n, node in enumerate(("a", "b"))
    }


def test_influxdb_gives_what_it_was_given_and_its_answers_are_ours(tmp_path: Path) -> None:
    server = program("influxd", "influxdb")
    port, rpc = free_port(), free_port()
    (tmp_path / "i.conf").write_text(
        f'reporting-disabled = true\nbind-address = "127.0.0.1:{rpc}"\n'
        f'[meta]\n  dir = "{tmp_path}/meta"\n'
        f'[data]\n  dir = "{tmp_path}/data"\n  wal-dir = "{tmp_path}/wal"\n'
        f'[http]\n  bind-address = "127.0.0.1:{port}"\n'
    )
    sink = MemorySink()
    receiver = InfluxReceiver("i", {"port": 0})
    with (
        running([server, "-config", str(tmp_path / "i.conf")], tmp_path / "log"),
        Collecting({"i": receiver}, sink),
    ):
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/ping", 204))
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        assert post(("127.0.0.1", port), "/query", b"q=CREATE+DATABASE+x", **headers)[0] == 200
        texts = [
            b'disk,host=a,dev=sd\\ a busy=0.5,ops=3i,name="a b",up=t 1700000000123456789\n',
            b"power,outlet=1 value=1.5 1700000001000000000\n" * 2,
            b"power,outlet=1 value=2.5 1700000003000000000\n",
            b"nothing\n",
            b"a value=nan 1\n",
            b"a value=1 x\n",
            b"a,=b value=1 1\n",
            b"good value=1 1700000000000000000\nbad\n",
            b"",
        ]
        for text in texts:
            status = post(("127.0.0.1", port), "/write?db=x", text)[0]
            assert post(receiver.address, "/write?db=x", text)[0] == status, text
        reader = InfluxReader(url, {"database": "x"})
        start, end = 1_700_000_000 * SECOND, 1_700_000_003 * SECOND
        query = "SELECT * FROM %s WHERE time >= $start AND time <= $end GROUP BY *"
        results = [
            reader.read(query % m, start, end, SECOND) for m in ("disk", "power", "good", "a")
        ]
        with pytest.raises(BadInput, match="its error"):
            reader.read("SELECT $start $end", start, end, SECOND)
    assert [result.requests for result in results] == [1] * 4
    assert str(start) in results[0].query

    def plain(rows: Any) -> set[Any]:
        # InfluxDB's JSON has integers as floats
        return {
            (
                r["metric"],
                r["labels"],
                r["utc_ns"],
                next(
                    v for v in (r["text"], r["boolean"], r["float"], r["integer"]) if v is not None
                ),
            )
            for r in rows
        }

    stored = plain([row for result in results for row in result.points.to_pylist()])
    assert stored == plain(sink.points("i").to_pylist())
    assert len(stored) == 4 + 2 + 1


LOADS = ("short", "mid", "long")


def test_graphite_renders_the_points_of_carbon(tmp_path: Path) -> None:
    cache = program("carbon-cache", "graphite-carbon")
    program("graphite-manage", "graphite-web")
    lines, pickles, query = free_port(), free_port(), free_port()
    for name in ("whisper", "log", "run", "log/webapp"):
        (tmp_path / name).mkdir()
    (tmp_path / "carbon.conf").write_text(
        f"[cache]\nSTORAGE_DIR = {tmp_path}\nLOCAL_DATA_DIR = {tmp_path}/whisper\nCONF_DIR = {tmp_path}\n"
        f"LOG_DIR = {tmp_path}/log\nPID_DIR = {tmp_path}/run\nLINE_RECEIVER_INTERFACE = 127.0.0.1\n"
        f"LINE_RECEIVER_PORT = {lines}\nPICKLE_RECEIVER_INTERFACE = 127.0.0.1\n"
        f"PICKLE_RECEIVER_PORT = {pickles}\n"
        f"CACHE_QUERY_INTERFACE = 127.0.0.1\nCACHE_QUERY_PORT = {query}\nMAX_CREATES_PER_MINUTE = inf\n"
        "ENABLE_LOGROTATION = False\nMAX_CACHE_SIZE = inf\nENABLE_TAGS = False\n"
    )
    (tmp_path / "storage-schemas.conf").write_text("[all]\npattern = .*\nretentions = 1s:1d\n")
    (tmp_path / "storage-aggregation.conf").write_text(
        "[all]\npattern = .*\nxFilesFactor = 0\naggregationMethod = average\n"
    )
    begin = int(time.time()) - 1000
    seconds = [s for s in range(100) if not 30 <= s < 40]
    log = tmp_path / "carbon.log"
    argv = [cache, f"--config={tmp_path / 'carbon.conf'}", "--nodaemon", "start"]
    web = (
        "import sys; sys.path[:0] = ['/usr/share/graphite-web', %r, '/usr/lib/python3/dist-packages']\n"
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'graphite.settings'\n"
        "from wsgiref.simple_server import make_server\n"
        "from graphite.wsgi import application\n"
        "make_server('127.0.0.1', %d, application).serve_forever()\n"
    )
    settings = (
        f"SECRET_KEY = 'x'\nSTORAGE_DIR = {str(tmp_path)!r}\nWHISPER_DIR = '{tmp_path}/whisper'\n"
        f"LOG_DIR = '{tmp_path}/log'\n"
        f"CARBONLINK_HOSTS = ['127.0.0.1:{query}:a']\nSTANDARD_DIRS = ['{tmp_path}/whisper']\n"
        f"INDEX_FILE = '{tmp_path}/index'\n"
        "ALLOWED_HOSTS = ['*']\nTIME_ZONE = 'UTC'\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', "
        f"'NAME': '{tmp_path}/db'}}}}\n"
    )
    (tmp_path / "local_settings.py").write_text(settings)
    port = free_port()
    with running(argv, log):
        until(lambda: _listens(lines))
        with socket.create_connection(("127.0.0.1", lines)) as connection:
            connection.sendall("".join(f"a.b {s} {begin + s}\n" for s in seconds).encode())
            connection.sendall(
                "".join(f"node.load.load.{t}term 0.5 {begin}\n" for t in LOADS).encode()
            )
        until(lambda: (tmp_path / "whisper" / "a" / "b.wsp").exists(), 120)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environment["GRAPHITE_SETTINGS_MODULE"] = "local_settings"
        command = ["/usr/bin/python3", "-c", web % (str(tmp_path), port)]
        with running(command, tmp_path / "web.log", env=environment):
            until(lambda: _listens(port), 120)
            reader = GraphiteReader(f"http://127.0.0.1:{port}", {})
            until(
                lambda: (
                    reader.read(
                        "a.b", begin * SECOND, (begin + 99) * SECOND, SECOND
                    ).points.num_rows
                    == len(seconds)
                )
            )
            result = reader.read("a.b", begin * SECOND, (begin + 99) * SECOND, SECOND)
            until(lambda: len(list((tmp_path / "whisper/node/load/load").glob("*.wsp"))) == 3, 120)
            window = begin * SECOND, (begin + 99) * SECOND
            loads = reader.read("node.load.load.*", *window, SECOND).points
    names = sorted(json.loads(labels)["name"] for labels in loads["labels"].to_pylist())
    assert names == sorted(f"node.load.load.{t}term" for t in LOADS)
    frame = uses_of_points(recorded([Batch("g", 0, loads)], *window), {})
    assert set(frame["metric"]) == {"1 min", "5 min", "15 min"}
    assert set(result.points["labels"].to_pylist()) == {"{}"}
    assert (result.points["utc_ns"].to_numpy() // SECOND - begin).tolist() == seconds
    assert result.points["float"].to_pylist() == seconds


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False
