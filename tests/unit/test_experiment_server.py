"""Experiments over HTTP: the published call, MonEx's methods and files, tokens, kills, no server."""

# ruff: noqa: E501 - scripts and files are kept as they are read

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
from penstock.parts.monitoring.experiments.points import points
from penstock.parts.monitoring.experiments.targets import read_targets
from penstock.parts.monitoring.outbox.client import Patient, Remote
from tests.support import commands, web

T0 = 1_700_000_000_000_000_000
S = 10**9
#: as the paper prints it, its three lines joined
PRINTED = (
    'curl "http://MonExServer:5000/exp/myexp" -X GET -d \'{"metric":"mymetric"}\' > file.csv '
    '-H "Content-Type: application/json"'
)


class Server:
    """A server process over a state of its own; `again` starts another over the same."""

    def __init__(self, place: Path, *words: str, **environment: str) -> None:
        self.place, self.words = place, words
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
            [sys.executable, "-m", "penstock", "serve", "--port", "0", *self.words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, (self.place / "log").read_text()
        file = self.place / "run" / f"serve-{self.process.pid}.json"
        #: what clients of the same user read by themselves
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
        said = {
            "source": "s",
            "number": number,
            "metric": metric,
            "utc_ns": times,
            "integer": values,
        }
        return self.http.post(f"/api/v1/experiments/{name}/points", json={**said, **more})

    def get(self, name: str, **options) -> httpx.Response:
        return self.http.request("GET", f"/exp/{name}", json=options)

    def cli(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return commands.run(
            [sys.executable, "-m", "penstock", *words],
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
    done = commands.run(
        ["unshare", "-mn", "sh", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
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
    for wrong in ({"metric": "m", "type": "x"}, {"metric": "m", "stepp": "1s"}, {}, {"metric": 5}):
        assert server.get("t#1".replace("#", "%23"), **wrong).status_code == 400
    assert server.get("nobody", metric="m").status_code == 404
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
def test_times_are_kept_to_the_nanosecond_whatever_they_are_called(
    server: Server, key: str
) -> None:
    said = f'{{"{key}": 1512056178.123456789}}'
    assert server.http.post(f"/exp/n-{key}", content=said).status_code == 201
    end = f'{{"{key}": "1512056178.373456789"}}'
    assert server.http.put(f"/exp/n-{key}", content=end).status_code == 201
    found = server.http.get(f"/api/v1/experiments/n-{key}").json()
    assert (found["start_ns"], found["end_ns"]) == (1512056178123456789, 1512056178373456789)
    twice = {"utc_time": 1, "localtime": 2}
    assert server.http.post(f"/exp/n2-{key}", json=twice).status_code == 400


def test_options_of_one_call_do_not_leak_into_the_next(server: Server) -> None:
    server.http.post("/exp/leak", json={"utc_time": T0 // S})
    for node in ("a", "b"):
        more = {"labels": {"node": node}, "source": node}
        server.push("leak", 0, [T0, T0 + S], [1, 2], metric="named", **more)
    server.http.put("/exp/leak", json={"utc_time": T0 // S + 5})
    first = server.get("leak", metric="named").text
    # one label alone names the columns
    assert first.splitlines()[0] == "duration,a,b"
    assert server.get("leak", metric="named", type="timestamp", labels=["x"]).text != first
    assert server.get("leak", metric="named").text == first


LACKS = "m: partial, 6 of 10 points; 4 lost in 1 gap, the longest 5 s"


def ten_points(server: Server, name: str, lost: range = range(0)) -> None:
    """One of `whole`, ten seconds of a series `m` at 1 s without those of `lost`, and `n`, which has all."""
    server.http.post(f"/exp/{name}", json={"utc_time": T0 // S})
    for number, (metric, lacks) in enumerate((("m", lost), ("n", range(0)))):
        at = [i for i in range(10) if i not in lacks]
        told = {"metric": metric, "interval_ns": S, "expected": 10}
        times = [T0 + i * S for i in at]
        assert server.push(name, number, times, at, metric, accounts=[told]).status_code == 201
    server.http.put(f"/exp/{name}", json={"utc_time": T0 // S + 9})


def test_what_is_not_complete_is_given_and_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, in a warning, in a header; breaks where rows are held back, or nothing is said."""
    monkeypatch.setenv("PENSTOCK_RUNTIME", server.environment["PENSTOCK_RUNTIME"])
    ten_points(server, "lacks", range(4, 8))
    ten_points(server, "whole")

    answer = server.get("lacks", metric="m")
    assert (answer.status_code, len(answer.text.splitlines())) == (200, 7)
    assert answer.headers["X-Penstock-Verdict"] == "partial"
    (row,) = json.loads(answer.headers["X-Penstock-Lacking"])["series"]
    assert (row["series"], row["stored"], row["expected"], row["lost"]) == ("m", 6, 10, 4)
    for name, metric in (("lacks", "n"), ("whole", "m")):
        fine = server.get(name, metric=metric).headers
        assert (fine["X-Penstock-Verdict"], "X-Penstock-Lacking" in fine) == ("complete", False)

    words = ("monitor", "get", "lacks", "-m", "m")
    told = server.cli(*words)
    assert (told.returncode, told.stdout) == (0, answer.text)
    assert told.stderr == f"penstock: 1 series is not complete\npenstock: {LACKS}\n"
    here = server.cli(*words, PENSTOCK_SERVER="")  # the same store without a server
    assert (here.stdout, here.stderr) == (told.stdout, told.stderr)
    asked = server.cli(*words, "--partial")
    assert (asked.stdout, asked.stderr) == (answer.text, "")
    assert server.cli("monitor", "get", "lacks", "-m", "n").stderr == ""

    with pytest.warns(penstock.PartialData, match="4 lost in 1 gap"):
        frame = penstock.series("lacks", "m", server=server.url)
    assert len(frame) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(penstock.series("lacks", "m", server=server.url, partial=True)) == 6
        assert len(penstock.series("lacks", "n", server=server.url)) == 10

    # what analyses refuses the same, from a server and from a file that says it
    exported = tmp_path / "m.parquet"
    server.cli(*words, "--format", "parquet", "-o", str(exported))
    address = f"{server.url}/exp/lacks/data?metric=m"
    for source in (address, str(exported)):
        draw = ("plot", source, "lines", "-o", str(tmp_path / "f.svg"))
        refused = server.cli(*draw)
        assert refused.returncode == 2
        assert "expected complete" in refused.stderr
        assert server.cli(*draw, "--partial").returncode == 0
    assert LACKS in server.cli("plot", address, "lines").stderr


def test_a_header_holds_no_more_series_than_it_may() -> None:
    row = {"stored": 1, "expected": 9, "produced": None, "lost": 8, "gaps": 1, "longest_gap_ns": S}
    about = {f"{'é' * 400}{i}": {**row, "verdict": "partial"} for i in range(50)}
    told = verdict_of(about, running=True)
    headers = told.headers()
    assert len(headers["X-Penstock-Lacking"]) < 5000
    again = of_headers({**headers, "X-Penstock-State": "running"})
    assert len(again.lacking) + again.more == 50
    assert again.lines[0] == "50 series are not complete so far (it still runs)"
    assert told.lines[-1] == "and 30 more"
    for broken in ("{", '{"series": [{}], "more": 1}', '{"series": [3], "more": 1}', "[]"):
        said = of_headers({"X-Penstock-Verdict": "partial", "X-Penstock-Lacking": broken})
        assert said.lines == ["1 series is not complete", "and 1 more"]
    assert of_headers({}).lines == []


def test_a_server_that_nobody_described_is_not_asked(server: Server) -> None:
    server.http.post("/exp/far")
    assert server.get("far", server="nowhere", query="up").status_code == 404


def test_more_than_eleven_thousand_points_are_one_answer(server: Server) -> None:
    server.http.post("/exp/long", json={"utc_time": T0 // S})
    times = (T0 + np.arange(25_201) * S).tolist()
    assert server.push("long", 0, times, list(range(25_201))).status_code == 201
    server.http.put("/exp/long", json={"utc_time": T0 // S + 25_200})
    rows = server.get("long", metric="m").text.splitlines()[1:]
    assert [int(r.split(",")[1]) for r in rows] == list(range(25_201))


def test_arrow_and_json_come_to_the_same(server: Server) -> None:
    server.http.post("/exp/arrow", json={"utc_time": T0 // S})
    table = points(metric="m", utc_ns=[T0, T0 + 1], integer=[1, 2])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    where = "/api/v1/experiments/arrow/points"
    for duplicate in (False, True):
        answer = server.http.post(
            where,
            params={"source": "s", "number": 0},
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert answer.json() == {"points": 2, "duplicate": duplicate}
    assert server.push("arrow", 0, [T0, T0 + 1], [1, 2]).json()["duplicate"]
    for wrong in (b"", b"ARROW1", sink.getvalue().to_pybytes()[:-30]):
        answer = server.http.post(
            where,
            params={"source": "s", "number": 1},
            content=wrong,
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert answer.status_code in (400, 201)
        assert answer.status_code == 400 or answer.json()["points"] == 2


def test_answers_do_not_depend_on_the_server_s_time_zone(tmp_path: Path) -> None:
    found = []
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
            found.append((first, running.http.get("/exp").content))
        finally:
            running.end()
    assert found[0] == found[1]


def killed_while_pushing(place: Path, seed: int) -> None:
    """Acknowledged marks and points are there after a kill at some moment; retries double nothing."""
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
        found = running.http.get("/api/v1/experiments/k").json()
        assert found["state"] == "running"
        assert [p["name"] for p in found["phases"]] == ["load"]
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
        told = {}
        for user, role in (("ada", "owner"), ("bob", "owner"), ("ada-reads", "reader")):
            made = running.cli("monitor", "token", user, "--role", role, **environment)
            assert made.returncode == 0, made.stderr
            told[user] = {"Authorization": f"Bearer {made.stdout.strip()}"}
        stored = (tmp_path / "state" / "archive.sqlite").read_bytes()
        wal = tmp_path / "state" / "archive.sqlite-wal"
        stored += wal.read_bytes() if wal.exists() else b""
        for headers in told.values():
            assert headers["Authorization"].split()[1].encode() not in stored
        http = running.http
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            for method, path in (("GET", "/exp"), ("POST", "/exp/x"), ("GET", "/exp/x/data")):
                answer = web.request(method, running.url + path, headers=headers)
                assert answer.status_code == 401
        assert http.post("/exp/x", headers=told["ada"], json={"shared": True}).status_code == 201
        assert http.post("/exp/own", headers=told["ada"]).status_code == 201
        assert http.post("/exp/x", headers=told["ada-reads"]).status_code == 403
        assert http.get("/exp", headers=told["bob"]).text.startswith("x#1 running")
        assert "own" not in http.get("/exp", headers=told["bob"]).text
        assert http.put("/exp/own", headers=told["bob"]).status_code == 404
        assert http.put("/exp/x", headers=told["bob"]).status_code in (404, 409)
        assert http.get("/api/v1/experiments/x", headers=told["ada"]).json()["state"] == "running"
        # a token of experiments opens nothing of what is emulated
        assert http.get("/api/v1/state", headers=told["ada"]).status_code == 401
        (row,) = [
            r
            for r in json.loads(running.cli("monitor", "token", "--json").stdout)["tokens"]
            if r["owner"] == "bob"
        ]
        assert running.cli("monitor", "token", "--revoke", row["token_id"]).returncode == 0
        assert http.get("/exp", headers=told["bob"]).status_code == 401
    finally:
        running.end()


def live_events(
    http: httpx.Client, headers: dict[str, str], wanted: int, **asked: str
) -> list[tuple[str, object]]:
    """The first events of the live stream: name and value."""
    found: list[tuple[str, object]] = []
    with http.stream("GET", "/api/v1/live", headers=headers, params=asked) as answer:
        assert answer.status_code == 200
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                found.append((name, json.loads(line[6:])))
                if len(found) == wanted:
                    break
    return found


def test_the_live_stream_is_of_the_experiments_that_one_may_read(tmp_path: Path) -> None:
    """Breaks where a user's token shows what is of others, or of the host, or is not needed."""
    running = Server(tmp_path, "--open-reads")
    try:
        told = {}
        for user, role in (("ada", "owner"), ("bob", "reader"), ("eve", "owner")):
            made = running.cli("monitor", "token", user, "--role", role)
            told[user] = {"Authorization": f"Bearer {made.stdout.strip()}"}
        http = running.http
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            answer = web.get(f"{running.url}/api/v1/live", headers=headers)
            assert answer.status_code == 401
        assert http.post("/exp/own", headers=told["ada"]).status_code == 201
        both = {"shared": True, "tags": ["t"]}
        assert http.post("/exp/both", headers=told["ada"], json=both).status_code == 201
        assert http.post("/exp/other", headers=told["eve"]).status_code == 201

        def seen(user: str, **asked: str) -> list[str]:
            who, experiments = live_events(http, told[user], 2, **asked)
            assert who == ("who", {"user": user})
            assert experiments[0] == "experiments"
            return sorted(f"{e['user']} {e['name']}" for e in experiments[1])  # type: ignore[attr-defined]

        assert seen("ada") == ["ada both", "ada own"]
        assert seen("bob") == ["ada both"]
        assert seen("eve") == ["ada both", "eve other"]
        assert seen("ada", experiment="own#1") == ["ada own"]
        assert seen("bob", experiment="both") == ["ada both"]
        for user, name in (("bob", "own"), ("eve", "own"), ("ada", "other"), ("ada", "nothing")):
            asked = {"experiment": name}
            answer = http.get("/api/v1/live", headers=told[user], params=asked)
            assert answer.status_code == 404
        # nothing else of the interface, as before
        assert http.get("/api/v1/state", headers=told["ada"]).status_code == 401

        # what changes is told to who may see it; each hears of the others' nothing
        with http.stream("GET", "/api/v1/live", headers=told["bob"]) as answer:
            lines = answer.iter_lines()
            while "experiments" not in next(lines):
                pass
            assert [e["name"] for e in json.loads(next(lines)[6:])] == ["both"]
            mark = {"kind": "begin", "name": "hidden"}
            other = "/api/v1/experiments/other/marks"
            assert http.post(other, headers=told["eve"], json=mark).status_code == 201
            mark["name"] = "load"
            both_marks = "/api/v1/experiments/both/marks"
            assert http.post(both_marks, headers=told["ada"], json=mark).status_code == 201
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


def test_a_script_is_the_same_when_the_server_is_down(tmp_path: Path) -> None:
    with socket.socket() as taken:
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
    done = commands.run(
        ["sh", "s.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "nothing is recorded" in done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_SERVER", f"http://127.0.0.1:{port}")
        with penstock.experiment("x") as x, x.phase("p"):
            x.record("m", 1)
            reached = True
    assert reached


class Hanging(socketserver.StreamRequestHandler):
    """Takes what is sent; says nothing, or a byte now and then."""

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


#: nothing, or the beginning of an answer, byte by byte
DRIPS = (b"", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100)


@contextlib.contextmanager
def hanging(drips: bytes) -> Iterator[str]:
    """A server that never answers; its address."""

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
def test_a_server_that_hangs_holds_nobody(tmp_path: Path, drips: bytes) -> None:
    """Breaks where the end of an experiment, which a server may take long for, is waited for whatever it does:
    this test would be over its time."""
    with hanging(drips) as url:
        environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path), "PENSTOCK_SERVER": url}
        program = str(Path(sys.executable).with_name("penstock"))
        for words in (["start", "x"], ["mark", "x", "--note", "n"], ["stop", "x"]):
            done = commands.run(
                [program, "monitor", *words], env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            assert "does not answer; nothing is recorded" in done.stderr
        done = commands.run(
            [program, "monitor", "get", "x", "-m", "m"], env=environment, capture_output=True
        )
        assert done.returncode == 1


def _experiment(url: str) -> None:
    with penstock.experiment("x", server=url) as running, running.phase("load"):
        running.note("n")


#: what a program calls, by its name
CALLS = {
    "start": lambda url: Patient(Remote(url)).start("x"),
    "mark": lambda url: Patient(Remote(url)).mark("x", "note", "n"),
    "stop": lambda url: Patient(Remote(url)).stop("x"),
    "clock": lambda url: Patient(Remote(url)).clock(),
    "with": _experiment,
}


# no wall clock, but for a call's own bound: a second, five times over, where it would hang for ever
@pytest.mark.parametrize("drips", DRIPS)
@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_over_in_time_whatever_the_server_does(call: str, drips: bytes) -> None:
    """Breaks where only the pause between two bytes is bounded: the second server makes none that is long."""
    with hanging(drips) as url:
        began = time.monotonic()
        CALLS[call](url)
        assert time.monotonic() - began < 5.0


def test_the_server_s_clock_is_compared_with_ours(server: Server, monkeypatch) -> None:
    """On one host they are the same, and half a second off where ours is; breaks with the sign, or without
    the time in the answer."""
    door = Remote(str(server.http.base_url))
    found = door.clock()
    assert found is not None
    assert found.exchanges >= 8
    assert abs(found.offset_ns) <= found.bound_ns
    real = time.time_ns
    monkeypatch.setattr(
        "penstock.host.probe.clock_offset.time.time_ns", lambda: real() - 500_000_000
    )
    found = door.clock()
    assert found is not None
    assert abs(found.offset_ns - 500_000_000) <= found.bound_ns
    assert found.warns(S)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_without_a_server_it_lies_in_the_user_s_own_store(tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    environment.pop("PENSTOCK_SERVER", None)

    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "penstock", *words)
        return commands.run(words, env=environment, capture_output=True, text=True, check=True)

    cli("monitor", "start", "x")
    cli("monitor", "stop", "x")
    (path,) = (tmp_path / "state" / "experiments").glob("*/x.1-*")
    assert Bundle.open(path).manifest["state"] == "ended"
    assert "x#1" in cli("monitor", "list").stdout
    cli("ls", "--rebuild", "--below", str(tmp_path))
    assert "x#1" in cli("monitor", "list").stdout
    cli("monitor", "rm", "x")
    assert cli("monitor", "list").stdout == ""


def test_experiments_are_moved_to_another_archive(tmp_path: Path) -> None:
    """As docs/monitor.md has it: copied, the variable set, the index made anew."""
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}

    def penstock(*words: str) -> str:
        line = [sys.executable, "-m", "penstock", *words]
        done = commands.run(line, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    penstock("monitor", "run", "--name", "x", "-i", "0.1", "--", "sleep", "0.5")
    before = penstock("monitor", "get", "x", "-m", "sampler_lateness")
    new = tmp_path / "new"
    shutil.copytree(tmp_path / "state" / "experiments", new / "experiments")
    shutil.rmtree(tmp_path / "state" / "experiments")
    environment["PENSTOCK_ARCHIVE"] = str(new)
    penstock("ls", "--rebuild", "--below", str(tmp_path))
    assert penstock("monitor", "get", "x", "-m", "sampler_lateness") == before
    assert len(before.splitlines()) > 3


def test_configuration_files_say_where_they_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    # as it was published
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
    found = read_targets(path)
    assert found.servers["influx"].address == "127.0.0.1:8086"
    assert found.options({"metric": "val", "type": "sample"}) == {
        "metric": "val",
        "server": "influx",
        "measurement": "foobar",
        "type": "sample",
    }
    assert "type" not in found.metrics["val"]
    path.write_text(
        '{"targets":[{"server":"p","type":"x","address":"y"},{"server":"p","type":"x","address":"y"}]}'
    )
    with pytest.raises(BadInput, match="twice"):
        read_targets(path)


def test_fifty_at_once_share_one_server(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> str:
        name = f"many-{number}"
        assert server.http.post(f"/exp/{name}", json={"utc_time": T0 // S}).status_code == 201
        for k in range(3):
            assert server.push(name, k, [T0 + k], [number]).status_code == 201
        assert server.http.put(f"/exp/{name}").status_code == 201
        return server.get(name, metric="m").text

    with ThreadPoolExecutor(16) as pool:
        for number, text in enumerate(pool.map(one, range(50))):
            assert [r.split(",")[1] for r in text.splitlines()[1:]] == [str(number)] * 3


def test_the_catalogue_of_a_store_is_the_index_of_runs(server: Server) -> None:
    with Catalogue(server.place / "state" / "archive.sqlite") as index:
        assert index.studies() == []
        assert index.search(name="t") == []
