"""Collectors of a server's configuration and pushed files, with a real server process."""

from __future__ import annotations

import asyncio
import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import APIRouter, FastAPI, Response

import penstock
from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import Catalogue
from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.server_collectors import Fan
from penstock.parts.monitoring.collectors.settings import checked_collectors
from penstock.parts.monitoring.experiments.experiment import Experiment, Taken
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Accepted, Account, Batch, Closed, points
from penstock.parts.monitoring.experiments.recorded import recorded_in
from penstock.parts.monitoring.experiments.targets import Targets, read_targets
from penstock.parts.monitoring.http.experiments import _add_end
from penstock.parts.monitoring.outbox.client import opened
from penstock.parts.monitoring.outbox.pushing import batches_of, read_table
from penstock.routes.caller import CALLER_KEY, Caller
from penstock.testing import MemorySink
from tests.support import commands, web
from tests.support.ports import free_port


class Exporter(http.server.BaseHTTPRequestHandler):
    """Prometheus exporter of one counter: the number of requests to it."""

    requests = 0

    def do_GET(self) -> None:
        Exporter.requests += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f"asked_total {Exporter.requests}\n".encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


class Server:
    """`penstock serve` with its own state directory. It can be restarted on the same port."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "config.json").write_text(json.dumps(config))
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(folder / "state"),
            "PENSTOCK_RUNTIME": str(folder / "run"),
        }
        self.port = 0
        self.begin()

    def begin(self) -> None:
        argv = ["serve", "--config", str(self.folder / "config.json"), "--port", str(self.port)]
        with (self.folder / "log").open("a") as log:
            self.process = commands.popen(
                [sys.executable, "-m", "penstock", *argv],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, (self.folder / "log").read_text()
        self.port = int(self.url.rpartition(":")[2])
        state_file = json.loads(
            (self.folder / "run" / f"serve-{self.process.pid}.json").read_text()
        )
        self.right = {"Authorization": f"Bearer {state_file['experiments_token']}"}

    def end(self, signum: int = signal.SIGTERM) -> None:
        self.process.send_signal(signum)
        self.process.wait(60)

    def penstock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "penstock", "monitor", *arguments]
        environment = {**self.environment, "PENSTOCK_SERVER": self.url}
        return commands.run(argv, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find the server's token in the runtime directory, as user programs do."""
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))


def rows_of(server: Server, name: str, metric: str) -> int:
    answer = web.get(
        headers=server.right, url=f"{server.url}/exp/{name}/data", params={"metric": metric}
    )
    return len(answer.text.splitlines()) - 1 if answer.is_success else 0


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_idle() -> int:
    """Wait until the exporter receives no more requests; returns their number."""

    def idle() -> bool:
        requests = Exporter.requests
        time.sleep(1.0)
        return Exporter.requests == requests

    wait_for(idle)
    return Exporter.requests


def test_configured_collectors_run_during_experiments(tmp_path: Path, exporter: int) -> None:
    target = {"url": f"http://127.0.0.1:{exporter}/metrics", "instance": "it"}
    pull = {"type": "scrape", "targets": [target], "interval_s": 0.1, "timeout_s": 60}
    pull["experiments"] = "x*"
    server = Server(tmp_path, {"collectors": {"pull": {**pull, "begun": "anywhere"}}})
    try:
        requests_at_start = Exporter.requests
        assert web.post(headers=server.right, url=f"{server.url}/exp/other").status_code == 201
        assert web.post(headers=server.right, url=f"{server.url}/exp/x").status_code == 201
        wait_for(lambda: rows_of(server, "x", "asked_total") > 5)
        assert web.put(headers=server.right, url=f"{server.url}/exp/x").status_code == 201
        # fails if the collector continues without an experiment, or collects for another name
        requests = wait_until_idle()
        answer = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/x/series"
        ).json()
        (row,) = (r for r in answer["series"] if r["metric"] == "asked_total")
        # fails if the end mark precedes the collector's report of due samples
        assert row["interval_ns"] == 100_000_000
        assert row["stored"] <= requests - requests_at_start
        assert row["expected"] is not None
        missed = manifest_of(server, "x")["receipts"]["pull"]["counted"]["missed"]
        assert abs(row["expected"] - row["stored"] - missed) <= 1
        other_series = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/other/series"
        ).json()
        assert other_series["series"] == []
        # `begun: anywhere`: the collector also serves an experiment started without the server
        argv = [sys.executable, "-m", "penstock", "monitor", "start", "xy", "--no-sample"]
        commands.run(argv, env=server.environment, check=True, timeout=60)
        wait_for(lambda: rows_of(server, "xy", "asked_total") > 2)
        # the collector continues after a kill
        server.end(signal.SIGKILL)
        requests_before = Exporter.requests
        server.begin()
        wait_for(lambda: rows_of(server, "xy", "asked_total") > 5)
        assert Exporter.requests > requests_before
    finally:
        server.end()


def bundle_of(server: Server, name: str) -> Bundle:
    (path,) = (server.folder / "state" / "experiments").glob(f"*/{name}.1-*")
    return Bundle.open(path)


def manifest_of(server: Server, name: str) -> dict[str, Any]:
    return bundle_of(server, name).manifest


def test_manifest_has_the_receipts_of_collectors(tmp_path: Path, exporter: int) -> None:
    """Fails if receipts are only printed, or if a collector that ends is started again."""
    target = {"url": f"http://127.0.0.1:{exporter}/metrics", "instance": "it"}
    port = free_port()
    config = {
        "monitor": {"type": "scrape", "targets": [target], "interval_s": 0.05},
        "in": {"type": "influxdb", "port": port},
    }
    server = Server(tmp_path, {"collectors": config})

    def write(line: str) -> int:
        return web.post(f"http://127.0.0.1:{port}/write", content=line).status_code

    try:
        # started without the server: the server's collectors ignore it
        argv = [sys.executable, "-m", "penstock", "monitor", "start", "apart", "--no-sample"]
        commands.run(argv, env=server.environment, check=True, timeout=60)
        web.post(headers=server.right, url=f"{server.url}/exp/first")
        wait_for(lambda: rows_of(server, "first", "asked_total") > 5 and is_open(port))
        assert write("m v=x 1") == 400
        web.post(headers=server.right, url=f"{server.url}/exp/second")
        wait_for(lambda: rows_of(server, "second", "asked_total") > 5)
        assert [write(line) for line in ("m v=1", "m v=x 1", "m", "m v=y 1")] == [
            204,
            400,
            400,
            400,
        ]
        end = {"exit": 0, "receipts": {"theirs": {"cpu_ns": 5, "share": 0.5}}}
        assert (
            web.put(headers=server.right, url=f"{server.url}/exp/second", json=end).status_code
            == 201
        )
        answer = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/second/series"
        ).json()
        (row,) = (r for r in answer["series"] if r["metric"] == "m_v")
        assert row["refused"] == 3
        assert row["verdict"] == "unknown"
        result = server.penstock("get", "second", "-m", "m_v")
        assert result.returncode == 0
        assert "in: 3 points refused, malformed" in result.stderr
        second = manifest_of(server, "second")
        assert not second["valid"]  # three of its four points were refused
        assert second["experiment"]["verdict"] == "partial"
        receipts = second["receipts"]
        assert receipts["theirs"] == {"cpu_ns": 5, "share": 0.5}
        # the receipt of a shared collector counts only the points of this experiment
        assert receipts["in"]["refused"] == {"malformed": 3}
        assert receipts["in"]["stored"] == 1
        assert "found" in receipts["in"]["told"][0]
        pull = receipts["collector monitor"]
        assert pull["stored"] > 5
        for receipt in (receipts["in"], pull):
            assert 0 < receipt["cpu_ns"] < 60e9
        assert web.put(headers=server.right, url=f"{server.url}/exp/first").status_code == 201
        assert manifest_of(server, "first")["receipts"]["in"]["refused"] == {"malformed": 4}
        commands.run([*argv[:-3], "stop", "apart"], env=server.environment, check=True)
        assert manifest_of(server, "apart")["receipts"] == {}
        assert (
            web.get(
                headers=server.right, url=f"{server.url}/api/v1/experiments/apart/series"
            ).json()["series"]
            == []
        )
        time.sleep(1.5)  # the search for experiments has run again
        log = tmp_path / "log"
        wait_for(lambda: "in: 1 points; 4 malformed" in log.read_text())
        assert "has ended" not in log.read_text()
    finally:
        server.end()


def test_completeness_of_a_file_follows_its_stated_interval(tmp_path: Path) -> None:
    begin = 1_700_000_000
    rows = [f"{(begin + s) * 10**9},{s}" for s in (0, 1, 2, 3, 30, 31)]
    (tmp_path / "nd.csv").write_text("\n".join(["t,v", *rows]) + "\n")
    server = Server(tmp_path, {})
    push = [str(tmp_path / "nd.csv"), "-c", "v", "--time", "t"]
    try:
        for name, options in (("nd", []), ("told", ["--interval", "1"])):
            web.post(headers=server.right, url=f"{server.url}/exp/{name}", json={"utc_time": begin})
            assert server.penstock("push", name, *push, *options).returncode == 0
            web.put(
                headers=server.right, url=f"{server.url}/exp/{name}", json={"utc_time": begin + 60}
            )
        result = server.penstock("get", "nd", "-m", "v")
        assert (result.returncode, len(result.stdout.splitlines())) == (0, 7)
        assert "1 series is not known to be complete" in result.stderr
        assert "v: unknown, 6 points; its source states no interval" in result.stderr
        result = server.penstock("get", "told", "-m", "v")
        assert "v: partial, 6 of 60 points; 54 lost in 2 gaps, the longest" in result.stderr
        with pytest.warns(penstock.PartialData, match="states no interval"):
            penstock.series("nd", "v", server=server.url)
        # plotted with a warning, and refused
        for name, status, message in (
            ("nd", 0, "not known how complete"),
            ("told", 2, "found partial data"),
        ):
            argv = [sys.executable, "-m", "penstock", "plot", name, "lines", "-o"]
            result = commands.run(
                [*argv, str(tmp_path / "f.svg")],
                env=server.environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert result.returncode == status, result.stderr
            assert message in result.stderr
        assert server.penstock("push", "nd", *push[:-2], "--interval", "1").returncode == 2
    finally:
        server.end()


def test_server_receives_all_accounts_of_a_batch(tmp_path: Path) -> None:
    """Fails if a request carries only a hundred accounts."""
    server = Server(tmp_path, {})
    try:
        web.post(headers=server.right, url=f"{server.url}/exp/x")
        names = [f"m{n}" for n in range(300)]
        table = points(metric=names, utc_ns=[time.time_ns()] * 300, integer=list(range(300)))
        accounts = [Account(m, expected=1, counter=m == "m7", since_ns=1) for m in names]
        opened(server.url).write("x", Batch("s", 0, table, accounts))
        web.put(headers=server.right, url=f"{server.url}/exp/x")
        answer = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/x/series"
        ).json()
        assert (len(answer["series"]), answer["verdict"]) == (300, "complete")
        assert {r["expected"] for r in answer["series"]} == {1}
    finally:
        server.end()


def test_two_experiments_share_a_receiver(tmp_path: Path) -> None:
    server = Server(tmp_path, {"collectors": {"in": {"type": "influxdb", "port": free_port()}}})
    try:
        port = json.loads((tmp_path / "config.json").read_text())["collectors"]["in"]["port"]

        def write(number: int) -> int:
            line = f"m v={number} {time.time_ns()}"
            return web.post(f"http://127.0.0.1:{port}/write", content=line).status_code

        web.post(headers=server.right, url=f"{server.url}/exp/a")
        wait_for(lambda: is_open(port))
        assert write(1) == 204
        web.post(headers=server.right, url=f"{server.url}/exp/b")
        written = 1

        def shared() -> bool:
            nonlocal written
            written += 1
            assert write(written) == 204
            return rows_of(server, "b", "m_v") == 1

        wait_for(shared)
        # b has only the points after its start; a has all of them
        assert rows_of(server, "a", "m_v") == written
        web.put(headers=server.right, url=f"{server.url}/exp/a")
        assert write(0) == 204
        web.put(headers=server.right, url=f"{server.url}/exp/b")
        assert (rows_of(server, "a", "m_v"), rows_of(server, "b", "m_v")) == (written, 2)
        with pytest.raises(httpx.TransportError):
            write(4)
    finally:
        server.end()


class SlowGathering:
    """Collectors whose first end takes a second and returns their receipts."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def end(self, experiment: Experiment) -> dict[str, Any]:
        if self.begun.is_set():
            return {}
        self.begun.set()
        time.sleep(1)
        return {"in": {"stored": 1}}

    def go_on(self, experiment: Experiment) -> None: ...


def test_a_repeated_end_loses_no_receipts(tmp_path: Path) -> None:
    """A client that got no answer in time sends its request again."""
    store = Experiments(Catalogue(tmp_path / "archive.sqlite"), tmp_path)
    experiment = store.start("x", "ada")
    gathering, app = SlowGathering(), FastAPI()
    router = APIRouter()
    _add_end(router, lambda: store, Targets(), gathering)  # type: ignore[arg-type]
    app.include_router(router)
    app.add_exception_handler(Taken, lambda request, error: Response(status_code=409))

    async def known(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, CALLER_KEY: Caller("ada", True, "ada")}, receive, send)

    async def put() -> int:
        transport = httpx.ASGITransport(known)
        async with httpx.AsyncClient(transport=transport, base_url="http://it") as client:
            return (await client.put("/x")).status_code

    def end() -> int:
        return asyncio.run(put())

    with ThreadPoolExecutor() as pool:
        first = pool.submit(end)
        assert gathering.begun.wait(60)
        again = pool.submit(end)
    assert (first.result(), again.result()) == (201, 409)
    assert Bundle.open(experiment.path).manifest["receipts"] == {"in": {"stored": 1}}


def test_later_experiment_gets_nothing_of_earlier_senders(tmp_path: Path) -> None:
    receiver = {"type": "influxdb", "port": free_port(), "interval_s": 0.1, "token": "right"}
    server = Server(tmp_path, {"collectors": {"in": receiver}})
    try:

        def write(metric: str, token: str = "right") -> int:
            url = f"http://127.0.0.1:{receiver['port']}/write"
            headers = {"Authorization": f"Token {token}"}
            return web.post(url, content=f"{metric} value=1", headers=headers).status_code

        web.post(headers=server.right, url=f"{server.url}/exp/a")
        wait_for(lambda: is_open(int(str(receiver["port"]))))
        assert write("gone") == 204
        # refused, and not yet written as an event of `a` when `b` starts
        assert write("gone", "wrong") == 401
        web.post(headers=server.right, url=f"{server.url}/exp/b")
        assert write("there") == 204
        for name in ("b", "a"):
            web.put(headers=server.right, url=f"{server.url}/exp/{name}")
        tables = {name: recorded_in(bundle_of(server, name)) for name in ("a", "b")}
        assert tables["b"].series["metric"].to_pylist() == ["there"]
        assert tables["b"].series["interval_ns"].to_pylist() == [100_000_000]
        assert tables["a"].series["metric"].to_pylist() == ["gone", "there"]
        refused = {
            name: "refused-messages" in t.gaps["kind"].to_pylist() for name, t in tables.items()
        }
        assert refused == {"a": True, "b": False}
    finally:
        server.end()


def test_running_collector_owns_its_source(tmp_path: Path, exporter: int) -> None:
    """Fails if a client's batch under the collector's source name takes a batch number."""
    target = {"url": f"http://127.0.0.1:{exporter}/metrics", "instance": "it"}
    port = free_port()
    config = {
        "pull": {"type": "scrape", "targets": [target], "interval_s": 0.1, "timeout_s": 60},
        "in": {"type": "influxdb", "port": port},
    }
    server = Server(tmp_path, {"collectors": config})
    points_of = f"{server.url}/api/v1/experiments/x/points"
    event = {"number": 1_000, "metric": [], "events": [{"kind": "gap", "utc_ns": 1}]}
    point = {"number": 0, "metric": "mine", "utc_ns": [time.time_ns()], "integer": [1]}
    pq.write_table(pa.table({"v": [1, 2]}), tmp_path / "t.parquet")
    arguments = ["push", "x", str(tmp_path / "t.parquet"), "-c", "v", "--source"]

    def push_locally(source: str) -> subprocess.CompletedProcess[str]:
        """Push into the same store without the server."""
        argv = [sys.executable, "-m", "penstock", "monitor", *arguments, source]
        environment = {k: v for k, v in server.environment.items() if k != "PENSTOCK_SERVER"}
        return commands.run(argv, env=environment, capture_output=True, text=True, timeout=60)

    try:
        web.post(headers=server.right, url=f"{server.url}/exp/x")
        wait_for(lambda: rows_of(server, "x", "asked_total") > 3 and is_open(port))
        for source in ("pull", "in"):
            for body in (event, point):
                answer = web.post(points_of, headers=server.right, json={"source": source, **body})
                assert answer.status_code == 409
                assert f"found source '{source}', which is that of a running" in answer.text
            for result in (server.penstock(*arguments, source), push_locally(source)):
                assert result.returncode in (1, 2)
                assert "that of a running collector; expected another" in result.stderr
            answer = web.post(
                f"http://127.0.0.1:{port}/write",
                content="m v=1",
                headers={"X-Penstock-Batch": f"{source} 1000"},
            )
            assert answer.status_code == 409
        assert (
            web.post(points_of, headers=server.right, json={"source": "me", **point}).status_code
            == 201
        )
        assert server.penstock(*arguments, "mine").returncode == 0
        assert push_locally("too").returncode == 0
        wait_for(lambda: rows_of(server, "x", "asked_total") > 10)
        web.put(headers=server.right, url=f"{server.url}/exp/x")
        summary = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/x/series"
        ).json()
        (row,) = (r for r in summary["series"] if r["metric"] == "asked_total")
        missed = manifest_of(server, "x")["receipts"]["pull"]["counted"]["missed"]
        assert row["expected"] - row["stored"] - missed <= 1
        assert [
            g for g in summary["gaps"] if g["kind"] in ("batches", "lost") and g["detail"]
        ] == []
        # a killed server no longer owns its sources
        web.post(headers=server.right, url=f"{server.url}/exp/x", json={"repeat": True})
        wait_for(lambda: rows_of(server, "x", "asked_total") > 0)
        assert push_locally("pull").returncode != 0
        server.end(signal.SIGKILL)
        assert push_locally("pull").returncode == 0
        server.begin()
    finally:
        server.end()


def test_a_collector_is_switched_off_and_on_and_nothing_is_lost(
    tmp_path: Path, exporter: int
) -> None:
    """Through the server and through its store: gaps are `disabled`, and no due sample is lost."""
    target = {"url": f"http://127.0.0.1:{exporter}/metrics", "instance": "it"}
    port = free_port()
    config = {
        "pull": {"type": "scrape", "targets": [target], "interval_s": 0.5, "timeout_s": 60},
        "in": {"type": "influxdb", "port": port},
    }
    server = Server(tmp_path, {"collectors": config})

    def monitor_locally(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "penstock", "monitor", *arguments]
        return commands.run(
            argv, env=server.environment, capture_output=True, text=True, timeout=60
        )

    def rows() -> int:
        return rows_of(server, "x", "asked_total")

    try:
        web.post(headers=server.right, url=f"{server.url}/exp/x")
        wait_for(lambda: rows() > 3 and is_open(port))
        for switch in (server.penstock, monitor_locally):
            assert switch("off", "x", "--collector", "pull").stderr.endswith("pull is off\n")
            assert switch("off", "x", "-c", "pull").stderr.endswith("pull was off already\n")
            wait_until_idle()
            rows_before = rows()
            assert switch("on", "x", "--collector", "pull").returncode == 0
            wait_for(lambda rows_before=rows_before: rows() > rows_before + 3)
        assert server.penstock("off", "x", "--collector", "in").returncode == 0
        assert not is_open(port)
        assert server.penstock("on", "x", "--collector", "in").returncode == 0
        assert is_open(port)
        for switch in (server.penstock, monitor_locally):
            result = switch("off", "x", "--collector", "other")
            assert result.returncode == 2
            assert "found no collector 'other' that collects for it" in result.stderr
        # a collector that is off stays off after a kill of the server
        assert monitor_locally("off", "x", "--collector", "pull").returncode == 0
        wait_until_idle()
        server.end(signal.SIGKILL)
        server.begin()
        rows_before = rows()
        time.sleep(1.5)
        assert rows() == rows_before
        assert web.put(headers=server.right, url=f"{server.url}/exp/x").status_code == 201
        answer = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/x/series"
        ).json()
    finally:
        server.end()
    (row,) = (r for r in answer["series"] if r["metric"] == "asked_total")
    gaps = [
        g for g in answer["gaps"] if g["source"] == "pull" and g["series_id"] == row["series_id"]
    ]
    disabled = [g for g in gaps if g["kind"] == "disabled"]
    assert len(disabled) == 3
    missed = missed_scrapes(bundle_of(server, "x"), 500_000_000, disabled)
    assert {g["kind"] for g in gaps} <= ({"disabled", "lost"} if missed else {"disabled"})
    assert row["lost"] <= missed
    assert row["restarts"] == 0
    assert row["expected"] - row["stored"] <= missed + 1, (
        "the account lacks samples that were due before the kill"
    )


def missed_scrapes(bundle: Bundle, interval_ns: int, disabled: list[dict[str, Any]]) -> int:
    """Scrapes that a busy host prevented, from the due times of the others.

    They are what is missing between two scrapes, unless the collector was off meanwhile.
    """
    points = recorded_in(bundle, "scrape_lateness_seconds").points.to_pylist()
    due_ns = sorted(p["utc_ns"] - round(p["float"] * 1e9) for p in points)
    return sum(
        round((after - before) / interval_ns) - 1
        for before, after in itertools.pairwise(due_ns)
        if not any(before <= g["end_utc_ns"] and g["start_utc_ns"] <= after for g in disabled)
    )


def is_open(port: int) -> bool:
    import socket

    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_repeated_push_through_a_kill_stores_no_duplicates(tmp_path: Path) -> None:
    values = np.random.default_rng(7).integers(0, 1 << 40, 50_000)
    pq.write_table(
        pa.table({"offset_bytes": values, "op": ["read"] * 50_000}), tmp_path / "t.parquet"
    )
    server = Server(tmp_path, {})
    try:
        assert server.penstock("start", "x").returncode == 0
        arguments = ["push", "x", str(tmp_path / "t.parquet"), "-c", "offset_bytes", "--unit", "B"]
        arguments += ["--where", "op=read", "--batch", "1000", "--json"]
        argv = [sys.executable, "-m", "penstock", "monitor", *arguments]
        environment = {**server.environment, "PENSTOCK_SERVER": server.url}
        pushing = commands.popen(argv, env=environment, stdout=subprocess.PIPE)
        wait_for(lambda: rows_of(server, "x", "offset_bytes") > 2000)
        server.end(signal.SIGKILL)
        server.begin()
        out, _ = pushing.communicate(timeout=120)
        assert json.loads(out)["points"] == 50_000
        # a second push of the same file stores no duplicates
        assert server.penstock(*arguments).returncode == 0
        assert server.penstock("stop", "x").returncode == 0
        frame = penstock.series("x", "offset_bytes", server=server.url)
        assert frame.index.to_list() == list(range(50_000))
        assert frame.iloc[:, 0].to_list() == values.tolist()
        series = web.get(
            headers=server.right, url=f"{server.url}/api/v1/experiments/x/series"
        ).json()["series"]
        assert [(r["kind"], r["stored"], r["duplicate"], r["verdict"]) for r in series] == [
            ("sequence", 50_000, 0, "complete")
        ]
        result = server.penstock("push", "x", str(tmp_path / "t.parquet"), "-c", "nothing")
        assert result.returncode == 2
        assert "offset_bytes" in result.stderr
    finally:
        server.end()


class Broken(MemorySink):
    """Sink whose first write fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = True

    def write(self, batch: Batch) -> Accepted:
        if self.fails:
            self.fails = False
            from penstock.errors import PenstockError

            raise PenstockError("no room")
        return super().write(batch)


def test_retry_after_one_failed_sink_stores_no_duplicates(tmp_path: Path) -> None:
    fan, good, bad = Fan("s"), MemorySink(), Broken()
    batch = Batch("s", 0, points(metric=["m"], utc_ns=[1], integer=[1]))
    with pytest.raises(Closed):
        fan.write(batch)
    fan.add(tmp_path / "a", good)
    fan.add(tmp_path / "b", bad)
    with pytest.raises(Exception, match="no room"):
        fan.write(batch)
    fan.write(batch)
    fan.write(Batch("s", 1, batch.points))
    assert (len(good.rows()), len(bad.rows())) == (2, 2)


def test_accounts_reach_an_experiment_with_the_first_point_of_their_series(tmp_path: Path) -> None:
    fan, early, later = Fan("s"), MemorySink(), MemorySink()

    def batch(number: int, *metrics: str) -> Batch:
        table = points(
            metric=list(metrics), utc_ns=[number] * len(metrics), integer=[1] * len(metrics)
        )
        return Batch("s", number, table, [Account("m", interval_ns=5), Account("n", interval_ns=7)])

    fan.add(tmp_path / "a", early)
    fan.write(batch(0, "m", "n"))
    fan.add(tmp_path / "b", later)
    fan.write(Batch("s", 1, points(metric=["n"], utc_ns=[1], integer=[1])))
    fan.write(batch(2))
    accounts = [[(a.metric, a.interval_ns) for a in b.accounts] for b in later.batches.values()]
    assert accounts == [[("n", 7)], [("n", 7)]]
    assert len(early.batches["s", 2].accounts) == 2


def test_bad_collectors_and_bad_pushes_are_refused(tmp_path: Path) -> None:
    bad_begun = {"influxdb": {"begun": "there"}}
    for wrong in (
        [],
        bad_begun,
        {"x": 1},
        {"x": {}},
        {"snmp": {}},
        {"influxdb": {"experiments": 1}},
    ):
        with pytest.raises(BadInput, match="expected"):
            checked_collectors(wrong)
    config = tmp_path / "c.json"
    config.write_text('{"collectors": {"s": {"type": "scrape"}}}')
    with pytest.raises(BadInput, match=r"c\.json:1:\d+: found no targets; expected one"):
        read_targets(config)
    with pytest.raises(BadInput, match="no row"):
        list(batches_of(pa.chunked_array([[]], pa.int64()), metric="m", labels={}))
    with pytest.raises(BadInput, match="1 empty"):
        list(batches_of(pa.chunked_array([[1, None]]), metric="m", labels={}))
    (tmp_path / "f.txt").write_text("1")
    with pytest.raises(BadInput, match=r"\.txt"):
        read_table(tmp_path / "f.txt")
    with pytest.raises(BadInput, match="bundle"):
        read_table(tmp_path)


def test_json_lines_keep_text_and_number_types(tmp_path: Path) -> None:
    number = 0.1234567890123456
    (tmp_path / "t.jsonl").write_text(
        f'{{"node": "007", "x": {number}, "n": 9007199254740993, "a_time": 50000000}}\n'
    )
    row = read_table(tmp_path / "t.jsonl").to_pylist()[0]
    assert row == {"node": "007", "x": number, "n": 9007199254740993, "a_time": 50000000}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_with_another_separator(separator: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("t,v\n1,5\n2,6\n".replace(",", separator))
    assert read_table(tmp_path / "t.csv")["v"].to_pylist() == [5, 6]


def test_decimal_commas_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("t;v;name\n1;1,5;a,5\n2;2,5;b\n")
    table = read_table(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="found '1,5'; expected numbers with a decimal point"):
        next(batches_of(table["v"], metric="v", labels={}))
    assert next(batches_of(table["name"], metric="n", labels={})).points.num_rows == 2


def test_times_of_tables_are_nanoseconds_or_have_a_zone(tmp_path: Path) -> None:
    def first_time(content: str) -> int:
        (tmp_path / "t.csv").write_text(f"at,v\n{content},5\n")
        table = read_table(tmp_path / "t.csv")
        (batch,) = batches_of(table["v"], metric="v", labels={}, utc_ns=table["at"])
        time: int = batch.points["utc_ns"][0].as_py()
        return time

    ns = 1_767_323_045 * 10**9
    assert first_time(str(ns)) == first_time("2026-01-02T03:04:05Z") == ns
    assert first_time("2026-01-02T04:04:05+01:00") == ns
    for wrong in ("2026-01-02T03:04:05", "2026-01-02", "03:04:05"):
        with pytest.raises(BadInput, match="in column utc_ns; expected"):
            first_time(wrong)
    for unit in ("s", "us"):
        times = pa.chunked_array([pa.array([ns]).cast(pa.timestamp("ns", "UTC"))])
        converted = times.cast(pa.timestamp(unit, "UTC"))
        assert points(metric="m", utc_ns=converted, float=[1.0])["utc_ns"].to_pylist() == [ns]
        with pytest.raises(BadInput, match="in column integer; expected integers"):
            points(metric="m", utc_ns=[ns], integer=converted)
