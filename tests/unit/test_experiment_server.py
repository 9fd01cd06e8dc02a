"""Experiments over HTTP: the published call, methods and files of MonEx, tokens, kills, an absent
server.
"""

# ruff: noqa: E501 - lines of scripts and files stay unbroken

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import Catalogue
from penstock.archive.series.incomplete import of_headers, verdict_of
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.points import Batch, Event, points
from penstock.parts.monitoring.experiments.targets import read_targets
from penstock.parts.monitoring.outbox.client import Patient, Remote
from tests.support import commands, web

T0 = 1_700_000_000_000_000_000
S = 10**9
#: as in the paper, its three lines joined
PRINTED = (
    'curl "http://MonExServer:5000/exp/myexp" -X GET -d \'{"metric":"mymetric"}\' > file.csv '
    '-H "Content-Type: application/json"'
)


class Server:
    """A server process with its own state; `begin` starts another on the same state."""

    def __init__(self, place: Path, *arguments: str, **environment: str) -> None:
        self.place, self.arguments = place, arguments
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(place / "state"),
            "PENSTOCK_RUNTIME": str(place / "run"),
            **environment,
        }
        self.begin()

    def begin(self) -> None:
        self.log = open(self.place / "log", "a+")  # noqa: SIM115 - closed by `end`
        self.process = commands.popen(
            [sys.executable, "-m", "penstock", "serve", "--port", "0", *self.arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, (self.place / "log").read_text()
        file = self.place / "run" / f"serve-{self.process.pid}.json"
        #: token that clients of the same user find by themselves
        self.token: str = json.loads(file.read_text())["experiments_token"]
        self.right = {"Authorization": f"Bearer {self.token}"}
        self.http = httpx.Client(base_url=self.url, headers=self.right, timeout=300)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()

    def push(
        self, name: str, number: int, times, values, metric: str = "m", **more
    ) -> httpx.Response:
        fields = {
            "source": "s",
            "number": number,
            "metric": metric,
            "utc_ns": times,
            "integer": values,
        }
        return self.http.post(f"/api/v1/experiments/{name}/points", json={**fields, **more})

    def get(self, name: str, **options) -> httpx.Response:
        return self.http.request("GET", f"/exp/{name}", json=options)

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return commands.run(
            [sys.executable, "-m", "penstock", *arguments],
            env={**self.environment, "PENSTOCK_SERVER": self.url, **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("experiments")
    config = place / "monex.conf"
    config.write_text(
        '{"targets":[{"server":"prom", "type":"prometheus", "address":"127.0.0.1:1"}],\n'
        '"metrics":[{"name":"named", "labels":"node", "type":"duration"}]}'
    )
    running = Server(place, "--config", str(config))
    yield running
    running.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="another /etc/hosts needs root")
def test_the_published_call_works_as_it_is_printed(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost MonExServer\n")
    script = f"""
mount --bind {hosts} /etc/hosts && ip link set lo up && cd {tmp_path} || exit 9
{sys.executable} -m penstock serve --open-reads > url 2> log & server=$!
trap 'kill $server 2> /dev/null' EXIT
while ! test -s url; do kill -0 $server || exit 8; sleep 0.1; done
own="-H @$PENSTOCK_RUNTIME/serve-5000.header"
test $(curl -s -o /dev/null -w '%{{http_code}}' -X POST http://MonExServer:5000/exp/myexp) = 401 || exit 7
curl -s -f $own -X POST http://MonExServer:5000/exp/myexp || exit 1
curl -s -f $own http://MonExServer:5000/api/v1/experiments/myexp/points -d "{{\\"source\\": \\"s\\", \\"number\\": 0,
  \\"metric\\": \\"mymetric\\", \\"utc_ns\\": [$(date +%s%N)], \\"float\\": [0.5]}}" || exit 2
curl -s -f $own -X PUT http://MonExServer:5000/exp/myexp || exit 3
{PRINTED} || exit 4
curl -s -f -D head "http://MonExServer:5000/exp/myexp/data?metric=mymetric" > other.csv || exit 5
curl -s -o /dev/null -w '%{{http_code}}' -H 'Host: elsewhere.example:5000' http://MonExServer:5000/exp > elsewhere
kill $server; wait $server
test ! -e $PENSTOCK_RUNTIME/serve-5000.header || exit 6
"""
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    result = commands.run(
        ["unshare", "-mn", "sh", "-c", script], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr + (tmp_path / "log").read_text()
    rows = (tmp_path / "file.csv").read_text().splitlines()
    assert rows[0] == "timestamp,mymetric"
    assert [r.split(",")[1] for r in rows[1:]] == ["0.5"]
    assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "file.csv").read_bytes()
    head = (tmp_path / "head").read_text().lower()
    assert " 200 " in head
    assert "content-type: text/csv" in head
    assert (tmp_path / "elsewhere").read_text() == "421"


def test_the_table_of_answers(server: Server) -> None:
    http = server.http
    assert http.put("/exp/t").status_code == 404
    assert http.post("/exp/t").status_code == 201
    assert http.post("/exp/t").status_code == 409
    running = server.get("t", metric="none")
    assert running.status_code == 404
    assert server.push("t", 0, [time.time_ns()], [1]).status_code == 201
    running = server.get("t", metric="m")
    assert (running.status_code, running.headers["X-Penstock-State"]) == (200, "running")
    assert http.put("/exp/t").status_code == 201
    assert http.put("/exp/t").status_code == 409
    assert server.push("t", 1, [1], [1]).status_code == 409
    assert http.post("/exp/t").status_code == 409
    assert http.post("/exp/t", json={"repeat": True}).status_code == 201
    assert http.put("/exp/t").status_code == 201
    for options in (
        {"metric": "m", "type": "x"},
        {"metric": "m", "stepp": "1s"},
        {},
        {"metric": 5},
    ):
        assert server.get("t#1".replace("#", "%23"), **options).status_code == 400
    assert server.get("nobody", metric="m").status_code == 404
    assert http.get("/exp/t/data?metric=m&phases=load").status_code == 422
    assert http.get("/api/v1/experiments?names=t").status_code == 422
    assert [e["name"] for e in http.get("/api/v1/experiments?name=t").json()] == ["t", "t"]
    assert http.get("/api/v1/experiments?user=nobody").json() == []
    assert http.request("GET", "/exp/t", content=b"{").status_code == 400
    assert "t#1 ended" in http.get("/exp").text
    assert http.get("/exp/").text == http.get("/exp").text
    rows = http.get("/exp", headers={"Accept": "application/json"}).json()
    assert {"name", "state", "start_ns", "end_ns", "user"} <= set(rows[0])
    for _ in range(2):
        assert http.delete("/exp/t").status_code == 201
    assert http.delete("/exp/t").status_code == 404


def test_a_name_of_any_letters(server: Server) -> None:
    name = "a%2Fb%20c%231"
    assert server.http.post(f"/exp/{name}").text == "Starting a/b c#1\n"
    assert server.push(name, 0, [time.time_ns()], [1], metric='q"; drop').status_code == 201
    assert server.get(name, metric='q"; drop').text.splitlines()[0] == 'timestamp,"q""; drop"'
    assert server.get("a%2Fb%20c", metric="it's").status_code == 404
    assert server.http.get(f"/api/v1/experiments/{name}").json()["name"] == "a/b c"


@pytest.mark.parametrize("key", ["utc_time", "utctime", "local_time", "localtime"])
def test_all_time_keys_have_nanoseconds(server: Server, key: str) -> None:
    start = f'{{"{key}": 1512056178.123456789}}'
    assert server.http.post(f"/exp/n-{key}", content=start).status_code == 201
    end = f'{{"{key}": "1512056178.373456789"}}'
    assert server.http.put(f"/exp/n-{key}", content=end).status_code == 201
    experiment = server.http.get(f"/api/v1/experiments/n-{key}").json()
    assert (experiment["start_ns"], experiment["end_ns"]) == (
        1512056178123456789,
        1512056178373456789,
    )
    twice = {"utc_time": 1, "localtime": 2}
    assert server.http.post(f"/exp/n2-{key}", json=twice).status_code == 400


def test_options_of_one_call_do_not_leak_into_the_next(server: Server) -> None:
    server.http.post("/exp/leak", json={"utc_time": T0 // S})
    for node in ("a", "b"):
        more = {"labels": {"node": node}, "source": node}
        server.push("leak", 0, [T0, T0 + S], [1, 2], metric="named", **more)
    server.http.put("/exp/leak", json={"utc_time": T0 // S + 5})
    first = server.get("leak", metric="named").text
    # a single label names the columns
    assert first.splitlines()[0] == "duration,a,b"
    assert server.get("leak", metric="named", type="timestamp", labels=["x"]).text != first
    assert server.get("leak", metric="named").text == first


LACKS = "m: partial, 6 of 10 points; 4 lost in 1 gap, the longest 5 s"


def ten_points(server: Server, name: str, lost: range = range(0)) -> None:
    """A complete experiment of ten seconds: series `m` every second without the points of `lost`,
    and `n` with all points.
    """
    server.http.post(f"/exp/{name}", json={"utc_time": T0 // S})
    for number, (metric, missing) in enumerate((("m", lost), ("n", range(0)))):
        seconds = [i for i in range(10) if i not in missing]
        account = {"metric": metric, "interval_ns": S, "expected": 10}
        times = [T0 + i * S for i in seconds]
        assert (
            server.push(name, number, times, seconds, metric, accounts=[account]).status_code == 201
        )
    server.http.put(f"/exp/{name}", json={"utc_time": T0 // S + 9})


def test_partial_series_are_served_with_a_warning(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, in a warning and in a header. Fails if rows are missing, or nothing is reported."""
    monkeypatch.setenv("PENSTOCK_RUNTIME", server.environment["PENSTOCK_RUNTIME"])
    ten_points(server, "lacks", range(4, 8))
    ten_points(server, "whole")

    response = server.get("lacks", metric="m")
    assert (response.status_code, len(response.text.splitlines())) == (200, 7)
    assert response.headers["X-Penstock-Verdict"] == "partial"
    (row,) = json.loads(response.headers["X-Penstock-Lacking"])["series"]
    assert (row["series"], row["stored"], row["expected"], row["lost"]) == ("m", 6, 10, 4)
    for name, metric in (("lacks", "n"), ("whole", "m")):
        headers = server.get(name, metric=metric).headers
        assert (headers["X-Penstock-Verdict"], "X-Penstock-Lacking" in headers) == (
            "complete",
            False,
        )

    arguments = ("monitor", "get", "lacks", "-m", "m")
    result = server.cli(*arguments)
    assert (result.returncode, result.stdout) == (0, response.text)
    assert result.stderr == f"penstock: 1 series is not complete\npenstock: {LACKS}\n"
    local = server.cli(*arguments, PENSTOCK_SERVER="")  # the same store without a server
    assert (local.stdout, local.stderr) == (result.stdout, result.stderr)
    partial = server.cli(*arguments, "--partial")
    assert (partial.stdout, partial.stderr) == (response.text, "")
    assert server.cli("monitor", "get", "lacks", "-m", "n").stderr == ""

    with pytest.warns(penstock.PartialData, match="4 lost in 1 gap"):
        frame = penstock.series("lacks", "m", server=server.url)
    assert len(frame) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(penstock.series("lacks", "m", server=server.url, partial=True)) == 6
        assert len(penstock.series("lacks", "n", server=server.url)) == 10

    # analyses refuse it in the same way, from a server and from a file with the verdict
    exported = tmp_path / "m.parquet"
    server.cli(*arguments, "--format", "parquet", "-o", str(exported))
    address = f"{server.url}/exp/lacks/data?metric=m"
    for source in (address, str(exported)):
        plot = ("plot", source, "lines", "-o", str(tmp_path / "f.svg"))
        refused = server.cli(*plot)
        assert refused.returncode == 2
        assert "expected complete" in refused.stderr
        assert server.cli(*plot, "--partial").returncode == 0
    assert LACKS in server.cli("plot", address, "lines").stderr


def test_a_header_has_a_bounded_number_of_series() -> None:
    row = {"stored": 1, "expected": 9, "produced": None, "lost": 8, "gaps": 1, "longest_gap_ns": S}
    series = {f"{'é' * 400}{i}": {**row, "verdict": "partial"} for i in range(50)}
    verdict = verdict_of(series, running=True)
    headers = verdict.headers()
    assert len(headers["X-Penstock-Lacking"]) < 5000
    parsed = of_headers({**headers, "X-Penstock-State": "running"})
    assert len(parsed.lacking) + parsed.more == 50
    assert parsed.lines[0] == "50 series are not complete so far (it still runs)"
    assert verdict.lines[-1] == "and 30 more"
    for broken in ("{", '{"series": [{}], "more": 1}', '{"series": [3], "more": 1}', "[]"):
        fallback = of_headers({"X-Penstock-Verdict": "partial", "X-Penstock-Lacking": broken})
        assert fallback.lines == ["1 series is not complete", "and 1 more"]
    assert of_headers({}).lines == []


def test_an_undeclared_server_is_not_queried(server: Server) -> None:
    server.http.post("/exp/far")
    assert server.get("far", server="nowhere", query="up").status_code == 404


def test_more_than_eleven_thousand_points_are_one_response(server: Server) -> None:
    server.http.post("/exp/long", json={"utc_time": T0 // S})
    times = (T0 + np.arange(25_201) * S).tolist()
    assert server.push("long", 0, times, list(range(25_201))).status_code == 201
    server.http.put("/exp/long", json={"utc_time": T0 // S + 25_200})
    rows = server.get("long", metric="m").text.splitlines()[1:]
    assert [int(r.split(",")[1]) for r in rows] == list(range(25_201))


def test_arrow_and_json_are_equivalent(server: Server) -> None:
    server.http.post("/exp/arrow", json={"utc_time": T0 // S})
    table = points(metric="m", utc_ns=[T0, T0 + 1], integer=[1, 2])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = "/api/v1/experiments/arrow/points"
    for duplicate in (False, True):
        response = server.http.post(
            path,
            params={"source": "s", "number": 0},
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert response.json() == {"points": 2, "duplicate": duplicate}
    assert server.push("arrow", 0, [T0, T0 + 1], [1, 2]).json()["duplicate"]
    for body in (b"", b"ARROW1", sink.getvalue().to_pybytes()[:-30]):
        response = server.http.post(
            path,
            params={"source": "s", "number": 1},
            content=body,
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert response.status_code == 400, response.text


def test_values_of_a_push_are_not_converted(server: Server) -> None:
    server.http.post("/exp/strict", json={"utc_time": T0 // S})
    for column, value in (
        *(("integer", v) for v in ("true", '"7"', "7.5")),
        *(("boolean", v) for v in ("1", '"off"')),
        *(("float", v) for v in ("true", '"1_000"', "[1]")),
    ):
        body = f'{{"source": "s", "number": 0, "metric": "m", "utc_ns": [{T0}], "{column}": [{value}]}}'
        response = server.http.post("/api/v1/experiments/strict/points", content=body)
        assert (response.status_code, column in response.text) == (400, True), (
            value,
            response.text,
        )
    # an integer with an exponent is one, with every digit
    body = (
        f'{{"source": "s", "number": 0, "metric": "m", "utc_ns": [{T0 + 1}.0], "integer": [7e1]}}'
    )
    assert server.http.post("/api/v1/experiments/strict/points", content=body).status_code == 201
    rows = server.http.get("/exp/strict/data?metric=m&format=jsonl").text
    assert json.loads(rows)["m"] == 70
    assert "1700000000.000000001" in rows, rows


def test_events_of_a_remote_source_are_stored(server: Server) -> None:
    """Fails if an experiment on a server is complete although its receiver refused messages."""
    client = Remote(server.url, server.token)
    client.start("events", at_ns=T0)
    events = [
        Event("starting", T0 - 1, T0, detail="the collector starting"),
        Event("refused-messages", T0, T0, detail="unauthorized: no token", count=3),
    ]
    table = points(metric="m", utc_ns=[T0 + 1], float=[1.0])
    client.write("events", Batch("receiver", 0, table, events=events))
    answer = server.http.get("/api/v1/experiments/events/series").json()
    rows = [(g["kind"], g["missing"], g["detail"]) for g in answer["gaps"]]
    assert ("refused-messages", 3, "unauthorized: no token") in rows
    assert "starting" in {kind for kind, _, _ in rows}
    assert answer["verdict"] == "partial"


def test_answers_do_not_depend_on_the_server_s_time_zone(tmp_path: Path) -> None:
    contents = []
    for zone in ("UTC", "Asia/Kolkata"):
        place = tmp_path / zone.replace("/", "-")
        place.mkdir()
        running = Server(place, TZ=zone)
        try:
            running.http.post("/exp/z", json={"local_time": 1512056178})
            running.push("z", 0, [1512056178 * S], [1])
            running.http.put("/exp/z", json={"utctime": 1512056179.5})
            first = running.get("z", metric="m").content
            running.get("z", metric="m", type="duration")
            assert running.get("z", metric="m").content == first
            contents.append((first, running.http.get("/exp").content))
        finally:
            running.end()
    assert contents[0] == contents[1]


def killed_while_pushing(place: Path, seed: int) -> None:
    """Acknowledged marks and points exist after a kill at some moment; retries duplicate nothing."""
    running = Server(place)
    rng = np.random.default_rng(seed)
    try:
        assert running.http.post("/exp/k", json={"utc_time": T0 // S}).status_code == 201
        assert (
            running.http.post(
                "/api/v1/experiments/k/marks", json={"kind": "begin", "name": "load"}
            ).status_code
            == 201
        )
        victim, kill_after = running.process, rng.uniform(0.0, 0.4)
        killer = subprocess.Popen(["sh", "-c", f"sleep {kill_after:.3f}; kill -9 {victim.pid}"])
        acknowledged, number = 0, 0
        try:
            while number < 100_000:
                times = (T0 + (np.arange(100) + number * 100) * 1000).tolist()
                if running.push("k", number, times, times).status_code == 201:
                    acknowledged = number + 1
                number += 1
        except httpx.HTTPError:
            pass
        killer.wait()
        victim.wait()
        running.http.close()
        running.begin()
        experiment = running.http.get("/api/v1/experiments/k").json()
        assert experiment["state"] == "running"
        assert [p["name"] for p in experiment["phases"]] == ["load"]
        for retried in range(max(0, acknowledged - 2), acknowledged + 1):
            times = (T0 + (np.arange(100) + retried * 100) * 1000).tolist()
            assert running.push("k", retried, times, times).status_code == 201
        assert running.http.put("/exp/k", json={"utc_time": T0 // S + 3600}).status_code == 201
        rows = running.get("k", metric="m").text.splitlines()[1:]
        values = [int(r.split(",")[1]) for r in rows]
        assert values == [T0 + i * 1000 for i in range((acknowledged + 1) * 100)]
    finally:
        running.kill()


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    killed_while_pushing(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
def test_kills_at_many_moments(tmp_path: Path, seed: int) -> None:
    killed_while_pushing(tmp_path, seed)


def test_who_may_do_what(tmp_path: Path) -> None:
    running = Server(tmp_path)
    try:
        environment = {"PENSTOCK_STATE": str(tmp_path / "state")}
        tokens = {}
        for user, role in (("ada", "owner"), ("bob", "owner"), ("ada-reads", "reader")):
            result = running.cli("monitor", "token", user, "--role", role, **environment)
            assert result.returncode == 0, result.stderr
            tokens[user] = {"Authorization": f"Bearer {result.stdout.strip()}"}
        stored = (tmp_path / "state" / "archive.sqlite").read_bytes()
        wal = tmp_path / "state" / "archive.sqlite-wal"
        stored += wal.read_bytes() if wal.exists() else b""
        for headers in tokens.values():
            assert headers["Authorization"].split()[1].encode() not in stored
        http = running.http
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            for method, path in (("GET", "/exp"), ("POST", "/exp/x"), ("GET", "/exp/x/data")):
                response = web.request(method, running.url + path, headers=headers)
                assert response.status_code == 401
        assert http.post("/exp/x", headers=tokens["ada"], json={"shared": True}).status_code == 201
        assert http.post("/exp/own", headers=tokens["ada"]).status_code == 201
        assert http.post("/exp/x", headers=tokens["ada-reads"]).status_code == 403
        assert http.get("/exp", headers=tokens["bob"]).text.startswith("x#1 running")
        assert "own" not in http.get("/exp", headers=tokens["bob"]).text
        assert http.put("/exp/own", headers=tokens["bob"]).status_code == 404
        assert http.put("/exp/x", headers=tokens["bob"]).status_code == 409
        assert http.get("/api/v1/experiments/x", headers=tokens["ada"]).json()["state"] == "running"
        # a token of experiments gives no access to emulated disks
        assert http.get("/api/v1/state", headers=tokens["ada"]).status_code == 401
        (row,) = [
            r
            for r in json.loads(running.cli("monitor", "token", "--json").stdout)["tokens"]
            if r["owner"] == "bob"
        ]
        assert running.cli("monitor", "token", "--revoke", row["token_id"]).returncode == 0
        assert http.get("/exp", headers=tokens["bob"]).status_code == 401
    finally:
        running.end()


def live_events(
    http: httpx.Client, headers: dict[str, str], count: int, **params: str
) -> list[tuple[str, object]]:
    """The first `count` events of the live stream: name and value."""
    events: list[tuple[str, object]] = []
    with http.stream("GET", "/api/v1/live", headers=headers, params=params) as response:
        assert response.status_code == 200
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append((name, json.loads(line[6:])))
                if len(events) == count:
                    break
    return events


def test_the_live_stream_has_only_readable_experiments(tmp_path: Path) -> None:
    """Fails if a user's token shows experiments of others or the host, or if no token is needed."""
    running = Server(tmp_path, "--open-reads")
    try:
        tokens = {}
        for user, role in (("ada", "owner"), ("bob", "reader"), ("eve", "owner")):
            result = running.cli("monitor", "token", user, "--role", role)
            tokens[user] = {"Authorization": f"Bearer {result.stdout.strip()}"}
        http = running.http
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            response = web.get(f"{running.url}/api/v1/live", headers=headers)
            assert response.status_code == 401
        assert http.post("/exp/own", headers=tokens["ada"]).status_code == 201
        both = {"shared": True, "tags": ["t"]}
        assert http.post("/exp/both", headers=tokens["ada"], json=both).status_code == 201
        assert http.post("/exp/other", headers=tokens["eve"]).status_code == 201

        def seen(user: str, **params: str) -> list[str]:
            who, experiments = live_events(http, tokens[user], 2, **params)
            assert who == ("who", {"user": user})
            assert experiments[0] == "experiments"
            return sorted(f"{e['user']} {e['name']}" for e in experiments[1])  # type: ignore[attr-defined]

        assert seen("ada") == ["ada both", "ada own"]
        assert seen("bob") == ["ada both"]
        assert seen("eve") == ["ada both", "eve other"]
        assert seen("ada", experiment="own#1") == ["ada own"]
        assert seen("bob", experiment="both") == ["ada both"]
        for user, name in (("bob", "own"), ("eve", "own"), ("ada", "other"), ("ada", "nothing")):
            params = {"experiment": name}
            response = http.get("/api/v1/live", headers=tokens[user], params=params)
            assert response.status_code == 404
        # no access to other parts of the interface
        assert http.get("/api/v1/state", headers=tokens["ada"]).status_code == 401

        # each client receives changes of the experiments that it may read, and of no others
        with http.stream("GET", "/api/v1/live", headers=tokens["bob"]) as response:
            lines = response.iter_lines()
            while "experiments" not in next(lines):
                pass
            assert [e["name"] for e in json.loads(next(lines)[6:])] == ["both"]
            mark = {"kind": "begin", "name": "hidden"}
            other = "/api/v1/experiments/other/marks"
            assert http.post(other, headers=tokens["eve"], json=mark).status_code == 201
            mark["name"] = "load"
            both_marks = "/api/v1/experiments/both/marks"
            assert http.post(both_marks, headers=tokens["ada"], json=mark).status_code == 201
            while True:
                line = next(lines)
                assert "hidden" not in line
                assert "other" not in line
                if line.startswith("data: ") and json.loads(line[6:])[0]["phase"] == "load":
                    break
    finally:
        running.end()


def test_from_the_command_line_and_from_python(server: Server, monkeypatch) -> None:
    assert server.cli("monitor", "start", "cli", "--tag", "t", "-p", "disk=fast").returncode == 0
    assert server.cli("monitor", "mark", "cli", "--begin", "load").returncode == 0
    assert server.cli("monitor", "mark", "cli", "--end", "load").returncode == 0
    assert server.cli("monitor", "stop", "cli").returncode == 0
    rows = json.loads(server.cli("monitor", "list", "--json", "--tag", "t").stdout)["experiments"]
    assert [(r["name"], r["params"]) for r in rows] == [("cli", {"disk": "fast"})]
    assert server.cli("monitor", "stop", "cli").returncode == 2
    monkeypatch.setenv("PENSTOCK_SERVER", server.url)
    monkeypatch.setenv("PENSTOCK_RUNTIME", server.environment["PENSTOCK_RUNTIME"])
    with penstock.experiment("py", params={"a": 1}) as x, x.phase("all"):
        x.record("depth", [3, 4], [time.time_ns(), time.time_ns() + 1], unit="1")
    text = server.cli(
        "monitor", "get", "py", "-m", "depth", "--label", "none", "--phase", "all"
    ).stdout
    assert [line.split(",")[1] for line in text.splitlines()[1:]] == ["3", "4"]
    assert "depth" in server.cli("monitor", "get", "py").stdout
    assert "did you mean 'depth'?" in server.cli("monitor", "get", "py", "-m", "deph").stderr
    with pytest.raises(ZeroDivisionError), penstock.experiment("py"):
        raise ZeroDivisionError
    states = [e["state"] for e in server.http.get("/api/v1/experiments?name=py").json()]
    assert states == ["ended", "aborted"]


def test_a_script_runs_on_without_the_server(tmp_path: Path) -> None:
    with socket.socket() as taken:  # while it is bound and does not listen, nobody does
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        text = """
penstock monitor start x
penstock monitor mark x --begin load
echo out; exit_of_load=7
penstock monitor stop x
exit $exit_of_load
"""
        (tmp_path / "s.sh").write_text("set -e\n" + text)
        environment = {
            **os.environ,
            "PENSTOCK_SERVER": f"http://127.0.0.1:{port}",
            "PENSTOCK_STATE": str(tmp_path / "state"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        result = commands.run(
            ["sh", "s.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert (result.returncode, result.stdout) == (7, "out\n")
        assert "nothing is recorded" in result.stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_SERVER", f"http://127.0.0.1:{port}")
            with penstock.experiment("x") as x, x.phase("p"):
                x.record("m", 1)
                reached = True
        assert reached


class Hanging(socketserver.StreamRequestHandler):
    """Reads the request; answers nothing, or one byte at a time."""

    drips = b""
    over = threading.Event()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.rfile.readline()
            for byte in self.drips * 100:
                self.wfile.write(bytes([byte]))
                if self.over.wait(0.3):
                    return
            self.rfile.read()


#: nothing, or the beginning of a response, byte by byte
DRIPS = (b"", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100)


@contextlib.contextmanager
def hanging(drips: bytes) -> Iterator[str]:
    """Address of a server that never completes a response."""

    class Never(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    over = threading.Event()
    with Never(("127.0.0.1", 0), type("H", (Hanging,), {"drips": drips, "over": over})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()


@pytest.mark.parametrize("drips", DRIPS)
def test_a_hanging_server_blocks_no_client(tmp_path: Path, drips: bytes) -> None:
    """Fails if the end of an experiment, which may take a server long, has no time limit: the test
    would exceed its own.
    """
    with hanging(drips) as url:
        environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path), "PENSTOCK_SERVER": url}
        program = str(Path(sys.executable).with_name("penstock"))
        for arguments in (["start", "x"], ["mark", "x", "--note", "n"], ["stop", "x"]):
            result = commands.run(
                [program, "monitor", *arguments], env=environment, capture_output=True, text=True
            )
            assert result.returncode == 0, result.stderr
            assert "does not answer; nothing is recorded" in result.stderr
        result = commands.run(
            [program, "monitor", "get", "x", "-m", "m"], env=environment, capture_output=True
        )
        assert result.returncode == 1


def _experiment(url: str) -> None:
    with penstock.experiment("x", server=url) as running, running.phase("load"):
        running.note("n")


#: calls of a program by name
CALLS = {
    "start": lambda url: Patient(Remote(url)).start("x"),
    "mark": lambda url: Patient(Remote(url)).mark("x", "note", "n"),
    "stop": lambda url: Patient(Remote(url)).stop("x"),
    "clock": lambda url: Patient(Remote(url)).clock(),
    "with": _experiment,
}


# the only measured time is far above the bound of a call (1 s); without it a call hangs for ever
@pytest.mark.parametrize("drips", DRIPS)
@pytest.mark.parametrize("call", CALLS)
def test_each_call_has_a_time_limit(call: str, drips: bytes) -> None:
    """Fails if only the pause between two bytes is bounded: the second server makes no long pause."""
    with hanging(drips) as url:
        began = time.monotonic()
        CALLS[call](url)
        assert time.monotonic() - began < 60


def test_the_server_s_clock_is_compared_with_the_local_one(server: Server, monkeypatch) -> None:
    """On one host the offset is zero; then half a second, as the local clock is shifted.

    Fails with the wrong sign, or without the time in the response.
    """
    client = Remote(str(server.http.base_url))
    offset = client.clock()
    assert offset is not None
    assert offset.exchanges >= 8
    assert abs(offset.offset_ns) <= offset.bound_ns
    real = time.time_ns
    monkeypatch.setattr(
        "penstock.host.probe.clock_offset.time.time_ns", lambda: real() - 500_000_000
    )
    offset = client.clock()
    assert offset is not None
    assert abs(offset.offset_ns - 500_000_000) <= offset.bound_ns
    assert offset.warns(S)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_without_a_server_experiments_are_in_the_user_s_store(tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    environment.pop("PENSTOCK_SERVER", None)

    def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
        arguments = (sys.executable, "-m", "penstock", *arguments)
        return commands.run(arguments, env=environment, capture_output=True, text=True, check=True)

    cli("monitor", "start", "x")
    cli("monitor", "stop", "x")
    (path,) = (tmp_path / "state" / "experiments").glob("*/x.1-*")
    assert Bundle.open(path).manifest["state"] == "ended"
    assert "x#1" in cli("monitor", "list").stdout
    cli("ls", "--rebuild", "--below", str(tmp_path))
    assert "x#1" in cli("monitor", "list").stdout
    cli("monitor", "rm", "x")
    assert cli("monitor", "list").stdout == ""


def test_experiments_move_to_another_archive(tmp_path: Path) -> None:
    """Copy, set the variable and rebuild the index, as docs/monitor.md describes."""
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}

    def penstock(*arguments: str) -> str:
        line = [sys.executable, "-m", "penstock", *arguments]
        result = commands.run(line, env=environment, capture_output=True, text=True, check=True)
        return result.stdout

    penstock("monitor", "run", "--name", "x", "-i", "0.1", "--", "sleep", "0.5")
    before = penstock("monitor", "get", "x", "-m", "sampler_lateness")
    new = tmp_path / "new"
    shutil.copytree(tmp_path / "state" / "experiments", new / "experiments")
    shutil.rmtree(tmp_path / "state" / "experiments")
    environment["PENSTOCK_ARCHIVE"] = str(new)
    penstock("ls", "--rebuild", "--below", str(tmp_path))
    assert penstock("monitor", "get", "x", "-m", "sampler_lateness") == before
    assert len(before.splitlines()) > 1


def test_errors_of_configuration_files_have_a_position(tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    # as published
    path.write_text(
        '{targets":[\n  {"server":"prom", "type":"prometheus", "address":"127.0.0.1:9090"}\n]}'
    )
    with pytest.raises(BadInput, match=r"c\.conf:1:2: found .*expected JSON"):
        read_targets(path)
    path.write_text(
        '{"targets":[\n  {"server":"prom", "type":"prometheus", "address":"127.0.0.1:9090"},\n'
        '  {"server":"influx", "type":"influxdb", "address":"127.0.0.1:8086"}\n],\n'
        '"metrics":[\n  {"name":"val","server":"influx", "measurement":"foobar"}\n]}'
    )
    targets = read_targets(path)
    assert targets.servers["influx"].address == "127.0.0.1:8086"
    assert targets.options({"metric": "val", "type": "sample"}) == {
        "metric": "val",
        "server": "influx",
        "measurement": "foobar",
        "type": "sample",
    }
    assert "type" not in targets.metrics["val"]
    path.write_text(
        '{"targets":[{"server":"p","type":"x","address":"y"},{"server":"p","type":"x","address":"y"}]}'
    )
    with pytest.raises(BadInput, match="twice"):
        read_targets(path)


def test_fifty_clients_share_one_server(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def record(number: int) -> str:
        name = f"many-{number}"
        assert server.http.post(f"/exp/{name}", json={"utc_time": T0 // S}).status_code == 201
        for k in range(3):
            assert server.push(name, k, [T0 + k], [number]).status_code == 201
        assert server.http.put(f"/exp/{name}").status_code == 201
        return server.get(name, metric="m").text

    with ThreadPoolExecutor(16) as pool:
        for number, text in enumerate(pool.map(record, range(50))):
            assert [r.split(",")[1] for r in text.splitlines()[1:]] == [str(number)] * 3


def test_the_catalogue_of_a_store_is_the_index_of_runs(server: Server) -> None:
    with Catalogue(server.place / "state" / "archive.sqlite") as index:
        assert index.studies() == []
        assert index.search(name="t") == []
