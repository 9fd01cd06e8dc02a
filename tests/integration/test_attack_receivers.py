"""Attacks on `penstock serve --config` by clients of its receivers and by another user."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import pickle
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.host.journal.journal import new_token
from penstock.parts.monitoring.collectors.http_push import snapped
from tests.fuzz.drive import input_of
from tests.fuzz.targets.points import targets
from tests.integration.receivers import MATRIX, Receivers, listens, post, run_server
from tests.support import commands
from tests.support.waiting import until
from tests.unit import test_experiment_server

native: Any = importlib.import_module("penstock._native")
INPUTS = {target.name: target for target in targets()}
#: inputs of each kind
MANY = 60
#: file that an attack by name would create; a new path, as other runs use the same directory
PROOF = Path(f"/tmp/penstock-attacked-{new_token()}")
#: names that are dangerous as a path, a command or a line of another format
NAMES = (
    *(f"../../../..{PROOF}", str(PROOF), "..", ".", "a/../../b"),
    *("a\0b", "%2e%2e%2fetc", f"$(touch${{IFS}}{PROOF})", f"a;touch {PROOF}"),
    *("__proto__", "' OR 1=1 --", "<script>alert(1)</script>", "\u202egpj", "x" * 100_000, "lock"),
)


class Server(test_experiment_server.Server):
    """A server with an experiment of its user and a token of another user."""

    def __init__(self, directory: Path, prometheus_port: int) -> None:
        self.at = Receivers.of(directory, prometheus_port)
        super().__init__(directory, "--config", str(self.at.config))
        assert self.http.post("/exp/mine").status_code == 201
        ports = (self.at.lines, self.at.pickles, self.at.influx, self.at.remote)
        for port in ports:
            until(lambda port=port: listens(port))  # type: ignore[misc]
        result = commands.run(
            [sys.executable, "-m", "penstock", "monitor", "token", "mallory"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.mallory = {"Authorization": f"Bearer {result.stdout.split()[-1]}"}

    def ask(
        self, path: str, document: Any, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        url = f"{self.url}/api/v1/experiments/{path}"
        return httpx.post(url, json=document, headers=headers or self.right, timeout=300)

    def stored(self, metric: str) -> list[str]:
        """Stored rows of a metric of the experiment."""
        query = {"metric": metric}
        answer = self.http.get("/exp/mine/data", params=query)
        return answer.text.splitlines()[1:] if answer.is_success else []

    def assert_alive(self) -> None:
        """Assert that each receiver still stores a point and that the log has no traceback."""
        assert self.process.poll() is None
        now_ns = time.time_ns()
        name, seconds = f"alive_{now_ns}", now_ns / 1e9
        exchange(self.at.lines, f"{name}.line 1 {seconds:.6f}\n".encode())
        exchange(self.at.pickles, carbon_frame(pickle.dumps([(f"{name}.pickle", (seconds, 1))])))
        assert post(self.at.influx, "/write", f"{name} influx=1 {now_ns}".encode()) == 204
        message = native.remote_write_message([(f"{name}_remote", {})], [[(now_ns // 10**6, 1.0)]])
        assert post(self.at.remote, "/api/v1/write", snapped(bytes(message))) == 204
        for end in (".line", ".pickle", "_influx", "_remote"):
            until(lambda end=end: len(self.stored(name + end)) == 1)  # type: ignore[misc]
        log = (self.place / "log").read_text()
        assert "Traceback" not in log, log
        assert "xception" not in log, log

    def end(self) -> None:
        super().end()
        assert self.process.returncode == 0


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes to a port; return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        return answer


def files(directory: Path) -> set[str]:
    """Relative paths in a directory, without the journals of databases."""
    paths = {str(p.relative_to(directory)) for p in directory.rglob("*")}
    return {name for name in paths if not name.endswith(("-wal", "-shm", "-journal"))}


def carbon_frame(data: bytes) -> bytes:
    """Frame of Carbon's pickle protocol."""
    return struct.pack("!L", len(data)) + data


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server((200, {}, MATRIX)) as (port, _):
        running = Server(tmp_path_factory.mktemp("attacked"), port)
        yield running
        running.end()


SENDERS: dict[str, Callable[[Server, bytes], object]] = {
    "line-protocol": lambda s, d: post(s.at.influx, "/write", d),
    "graphite-lines": lambda s, d: exchange(s.at.lines, d),
    "graphite-pickle": lambda s, d: exchange(s.at.pickles, carbon_frame(d)),
    "remote-write": lambda s, d: post(s.at.remote, "/api/v1/write", snapped(d)),
    "remote-write-packed": lambda s, d: post(s.at.remote, "/api/v1/write", d),
}


@pytest.mark.parametrize("kind", SENDERS)
def test_mutated_input_is_answered_and_the_server_continues(server: Server, kind: str) -> None:
    for number in range(MANY):
        answer = SENDERS[kind](server, input_of(INPUTS[kind], 1, number))
        assert isinstance(answer, bytes) or answer in (204, 400), (number, answer)
    server.assert_alive()


def test_datagrams(server: Server) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        for number in range(MANY):
            data = input_of(INPUTS["graphite-lines"], 2, number)
            wire.sendto(data, ("127.0.0.1", server.at.lines))
        wire.sendto(b"x" * 65_000, ("127.0.0.1", server.at.lines))
    server.assert_alive()


TARGETS = (
    *("http://[x/write", "//[", "*", "/write?precision=" + "%ff" * 1000, "/write?" + "a&" * 20_000),
    *("/../../etc/passwd", "/write/../../x", "/%00", "\\\\host\\share", "/write?db=%2e%2e%2f"),
    *("/debug/vars", "/query?q=DROP+DATABASE+x", "/api/v2/write?org=..&bucket=..&precision=ns"),
)
HEADS = (
    "Content-Length: 99999999999999999999",
    "Content-Length: -1",
    "Content-Length: 5\r\nContent-Length: 6",
    "Transfer-Encoding: chunked\r\nContent-Length: 3",
    "Transfer-Encoding: gzip, chunked",
    "X-Penstock-Batch: ../../x 0",
    "X-Penstock-Batch: influx 0",
    "X-Penstock-Batch: x 99999999999999999999",
    "X-Penstock-Batch: \xff\xfe 1",
    "Authorization: Token \xff",
    "Content-Encoding: gzip",
    "Content-Encoding: ../x",
    "Expect: 100-continue",
)


@pytest.mark.parametrize("receiver", ["influx", "remote"])
def test_malformed_http_requests(server: Server, receiver: str) -> None:
    port = getattr(server.at, receiver)
    token = "Authorization: Token a-token-of-the-receivers"
    for target in TARGETS:
        for method in ("POST", "GET", "TRACE"):
            answer = exchange(
                port, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n".encode()
            )
            assert answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), (method, target, answer)
    for head in HEADS:
        length = "" if head.startswith(("Content-L", "Transfer")) else "Content-Length: 7\r\n"
        text = f"POST /write HTTP/1.1\r\nHost: x\r\n{token}\r\n{length}{head}\r\n\r\na v=1 1"
        answer = exchange(port, text.encode("latin-1"))
        expected = tuple(b"HTTP/1.1 %d" % status for status in (1, 204, 4, 501))
        assert answer == b"" or answer.startswith(expected), (head, answer)
    server.assert_alive()


class Command:
    """An object whose unpickling by Python runs a command."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.proof}",)


def test_a_pickle_executes_no_code(server: Server, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    assert pickle.loads(pickle.dumps(Command(proof))) == 0
    assert proof.exists()  # planted: Python's reader runs the command
    proof.unlink()
    for protocol in range(6):
        for value in (Command(proof), [Command(proof)], [("a.b", (1_700_000_000, Command(proof)))]):
            exchange(server.at.pickles, carbon_frame(pickle.dumps(value, protocol)))
    for text in (
        f"cposix\nsystem\n(S'touch {proof}'\ntR.",
        f"(S'touch {proof}'\niposix\nsystem\n.",
    ):
        exchange(server.at.pickles, carbon_frame(text.encode()))
    server.assert_alive()
    assert not proof.exists()


def test_names_are_not_used_as_paths_or_commands(server: Server) -> None:
    assert not PROOF.exists()
    server.assert_alive()
    before = files(server.place)
    for name in NAMES:
        line = name.encode("utf-8", "surrogatepass")
        exchange(server.at.lines, line.replace(b" ", b"_") + b" 1 1700000000\n")
        exchange(server.at.pickles, carbon_frame(pickle.dumps([(name, (1_700_000_000, 1))])))
        post(server.at.influx, "/write", line.replace(b" ", b"\\ ") + b" v=1 1")
        message = native.remote_write_message([("m", {name[:3000]: name[:3000]})], [[(1, 1.0)]])
        post(server.at.remote, "/write", snapped(bytes(message)))
        server.ask("mine/fetched", {"server": "prom", "query": name, "metric": name[:500]})
        server.ask("mine/collectors", {"collector": name[:500], "on": False})
    server.assert_alive()
    new = {Path(name) for name in files(server.place) - before}
    assert {name.parent.name.partition("-")[0] for name in new} == {".mine.1"}, new
    assert all(name.name == "fetched.jsonl" or len(name.stem) == 16 for name in new), new
    assert not PROOF.exists()


def test_a_source_belongs_to_its_collector(server: Server) -> None:
    for source in ("collectd", "influx", "remote"):
        headers = {"X-Penstock-Batch": f"{source} 7"}
        status = post(server.at.influx, "/write", b"a v=1 1", **headers)
        assert status == 409, source
    assert post(server.at.influx, "/write", b"a v=1 1", Authorization="Token x") == 401
    assert post(server.at.influx, "/write", b"a v=1 1", Authorization="") == 401
    server.assert_alive()


def test_experiments_of_other_users_are_inaccessible(server: Server) -> None:
    """A token gives no access to experiments of other users."""
    foreign_token = server.mallory
    requests: tuple[tuple[str, Any], ...] = (
        ("collectors", {"collector": "influx", "on": False}),
        ("fetched", {}),
        ("fetched", {"server": "prom", "query": "up", "metric": "m"}),
        ("marks", {"kind": "note", "name": "mine now"}),
        ("points", {"source": "s", "number": 0, "metric": "m", "utc_ns": [1], "float": [1.0]}),
    )
    for name in ("mine", "mine%231", "root/mine", "..%2Froot%2Fmine"):
        for call, document in requests:
            assert server.ask(f"{name}/{call}", document, foreign_token).status_code == 404, (
                name,
                call,
            )
        for method in ("GET", "PUT", "DELETE"):
            answer = httpx.request(method, f"{server.url}/exp/{name}", headers=foreign_token)
            assert answer.status_code in (400, 404), (name, method)
    assert httpx.get(f"{server.url}/exp", headers=foreign_token).text == ""
    server.assert_alive()
    experiment = server.http.get("/api/v1/experiments/mine").json()
    assert (experiment["state"], experiment["notes"]) == ("running", [])


def test_only_configured_servers_are_queried(server: Server) -> None:
    """A request cannot choose a server that is not configured."""
    with run_server((200, {}, MATRIX)) as (port, queries):
        for name in (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}", "file:///etc/passwd", ""):
            request = {"server": name, "query": "up", "metric": "m"}
            assert server.ask("mine/fetched", request).status_code in (400, 404), name
            answer = server.http.get("/exp/mine/data", params=request)
            assert answer.status_code in (400, 404), name
    assert queries == []
    server.assert_alive()


def test_invalid_answers_of_a_queried_server(tmp_path: Path) -> None:
    deep = b"[" * 200_000
    with run_server((200, {}, MATRIX)) as (inner, redirected):
        redirect = {"Location": f"http://127.0.0.1:{inner}/api/v1/query_range"}
        matrix = b'{"status":"success","data":{"resultType":"matrix","result":[%s]}}'
        answers = (
            *((302, redirect, b""), (307, redirect, b""), (200, {}, deep), (200, {}, b"\xff\xfe")),
            (200, {"Content-Encoding": "gzip"}, b"no gzip"),
            (200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * (300 << 20), 1)),
            (200, {}, matrix % b'{"metric":{"__name__":"../../x"},"values":[["a","b"]]}'),
            (200, {}, matrix % b'{"metric":[],"values":[[1e999,"1"]]}'),
            (200, {}, matrix % b'{"metric":{},"values":[[1e300,"1"],[-1e300,"NaN"]]}'),
            (200, {}, matrix % (b'{"metric":{"l":"%s"},"values":[[1,"1"]]}' % (b"x" * 100_000))),
            (500, {}, b"no"),
        )
        with run_server(*answers) as (port, queries):
            server = Server(tmp_path, port)
            try:
                for number in range(len(answers)):
                    request = {"server": "prom", "query": "up", "metric": f"m{number}"}
                    answer = server.ask("mine/fetched", request)
                    assert answer.status_code in (201, 400, 502), answer.text
                assert len(queries) == len(answers)
                server.assert_alive()
            finally:
                server.end()
        assert redirected == []


def test_receivers_continue_after_fast_switching(server: Server) -> None:
    """A receiver that is switched on and off fast still has its experiment."""
    draw = random.Random(1)
    for _ in range(30):
        name = draw.choice(("collectd", "influx", "remote", "no such"))
        answer = server.ask("mine/collectors", {"collector": name, "on": draw.random() < 0.5})
        assert answer.status_code == (400 if name == "no such" else 201), answer.text
    for name in ("collectd", "influx", "remote"):
        server.ask("mine/collectors", {"collector": name, "on": True})
    for port in (server.at.lines, server.at.pickles, server.at.influx, server.at.remote):
        until(lambda port=port: listens(port))  # type: ignore[misc]
    server.assert_alive()


def test_oversized_input(server: Server) -> None:
    exchange(server.at.lines, b"x" * (1 << 22))
    exchange(server.at.lines, b"a 1 1700000000\n" * 300_000)
    exchange(server.at.pickles, struct.pack("!L", (1 << 32) - 1))
    exchange(server.at.pickles, carbon_frame(b"(" * (1 << 20)))
    exchange(server.at.pickles, carbon_frame(b"\x80\x04" + b"\x5d\x94" * 200_000 + b"."))
    exchange(server.at.pickles, carbon_frame(b"\x80\x04]" + b"(2" * 200_000 + b"e."))
    assert post(server.at.influx, "/write", b"\n" * (33 << 20)) == 413
    bomb = gzip.compress(b"\0" * (256 << 20), 1)
    assert post(server.at.influx, "/write", bomb, **{"Content-Encoding": "gzip"}) == 400
    many = "".join(f"m{n} v=1 1\n" for n in range(100_500)).encode()
    # a separate source exceeds the limit of series per source
    headers = {"X-Penstock-Batch": "many 0"}
    assert post(server.at.influx, "/write", many, **headers) == 400
    tags = ",".join(f"t{n}=v" for n in range(10_000))
    assert post(server.at.influx, "/write", f"m,{tags} v=1 1".encode()) == 400
    assert post(server.at.remote, "/write", b"\xff\xff\xff\xff\x0f" + b"x" * 100) == 400
    assert post(server.at.remote, "/write", snapped(b"\n\xff\xff\xff\xff\x0f")) == 400
    server.assert_alive()
