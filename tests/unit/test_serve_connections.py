"""Connections to `penstock serve` that send nothing, or an incomplete request."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from penstock.parts.monitoring.experiments.points import Batch, points
from penstock.parts.monitoring.outbox.client import Remote
from penstock.parts.monitoring.outbox.delivery import Delivery
from penstock.routes.byte_budget import MOST_BYTES
from tests.support import commands, web

HALVES = (
    b"",
    b"POST /exp/x HTTP/1.1\r\nHost:",
    b"PUT /exp/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
)


#: headers with the token of the current server
AUTH_HEADERS: dict[str, str] = {}


@contextlib.contextmanager
def serving(place: Path, program: str) -> Iterator[tuple[subprocess.Popen[str], httpx.URL]]:
    """A server, started by a program, with its own state."""
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(place / "state"),
        "PENSTOCK_RUNTIME": str(place / "run"),
    }
    with commands.popen(
        [*commands.CODE, program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = httpx.URL(process.stdout.readline().strip())
            serve_info = json.loads((place / "run" / f"serve-{process.pid}.json").read_text())
            AUTH_HEADERS["Authorization"] = f"Bearer {serve_info['experiments_token']}"
            yield process, url
        finally:
            process.kill()


SERVE = "import sys; sys.argv[1:] = ['serve', '--port', '0']; from penstock.cli import main; main()"


def head_of(path: str) -> str:
    """The first lines of a POST with the token to write, without the length of its body."""
    authorization = f"Authorization: {AUTH_HEADERS['Authorization']}"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n"


def peak_memory(process: subprocess.Popen[str]) -> int:
    """Peak resident memory of a process [bytes]."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) << 10


def test_half_sent_large_bodies_leave_memory_for_other_requests(tmp_path: Path) -> None:
    """Fails without the common limit: each connection has 15 MB in memory, 40 connections 600 MB."""
    half = b"[" * (15 << 20)
    opened: list[socket.socket] = []
    with serving(tmp_path, SERVE) as (process, url):
        head = head_of("/api/v1/experiments/x/points")
        announced = f"{head}Content-Length: {16 << 20}\r\n\r\n".encode()
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{16 << 20:x}\r\n".encode()
        try:
            assert (
                web.post(headers=AUTH_HEADERS, url=url.join("/exp/x"), timeout=300).status_code
                == 201
            )
            before = peak_memory(process)
            for n in range(40):
                opened.append(socket.create_connection((url.host, url.port), timeout=300))
                with contextlib.suppress(ConnectionError):
                    opened[-1].sendall(chunked if n % 2 else announced)
                    opened[-1].sendall(half)
            point = {"source": "s", "number": 0, "metric": "m", "utc_ns": [1], "float": [1.0]}
            points = url.join("/api/v1/experiments/x/points")
            assert (
                web.post(headers=AUTH_HEADERS, url=points, json=point, timeout=300).status_code
                == 201
            )
            refused = web.post(headers=AUTH_HEADERS, url=points, content=half, timeout=300)
            assert refused.status_code == 503
            assert refused.headers["Retry-After"] == "1"
            assert peak_memory(process) - before < MOST_BYTES * 3 // 2
        finally:
            for connection in opened:
                connection.close()
        statuses = (
            web.post(headers=AUTH_HEADERS, url=points, content=half, timeout=300).status_code
            for _ in range(200)
        )
        assert 400 in statuses, "the memory of closed connections is not free again"


def test_a_client_waits_for_memory_of_the_server(tmp_path: Path) -> None:
    """Fails if a client does not repeat a request that the server refused for lack of memory."""
    opened: list[socket.socket] = []
    messages: list[str] = []

    def leave(message: str) -> None:
        messages.append(message)
        for connection in opened:
            connection.close()

    with serving(tmp_path, SERVE) as (_, url):
        head = head_of("/api/v1/experiments/y/points")
        head_of_chunk = f"{head}Transfer-Encoding: chunked\r\n\r\n{16 << 20:x}\r\n".encode()
        client = Remote(str(url), AUTH_HEADERS["Authorization"].split()[1])
        name = "x#1"
        for experiment in ("x", "y"):
            web.post(headers=AUTH_HEADERS, url=url.join(f"/exp/{experiment}"), timeout=300)
        for _ in range(10):
            opened.append(socket.create_connection((url.host, url.port), timeout=300))
            with contextlib.suppress(ConnectionError):
                opened[-1].sendall(head_of_chunk + b"[" * (15 << 20))
        # larger than the memory that the admitted requests leave
        times = time.time_ns() + np.arange(1_000_000)
        batch = Batch("s", 0, points(metric="m", utc_ns=times, float=times.astype(float)))
        delivery = Delivery(client, name, leave)
        delivery.write(batch)
        assert delivery.unsent is None
        client.stop(name)
        assert len(b"".join(client.get(name, {"metric": "m"}).parts).splitlines()) == 1_000_001
    assert "no memory" in messages[0]


def test_an_unusable_catalogue_is_named_before_the_server_starts(tmp_path: Path) -> None:
    catalogue = tmp_path / "archive.sqlite"
    catalogue.write_text("no database\n" * 100)
    places = {"PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    environment = {**os.environ, **places}
    result = commands.run(
        [*commands.CODE, SERVE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{catalogue} cannot be used as a catalogue" in result.stderr
    assert "Traceback" not in result.stderr


def is_closed(connection: socket.socket) -> bool:
    """True if the other end has closed the connection, perhaps after a response."""
    try:
        while connection.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.fixture
def files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 20_000:
        pytest.skip("fewer than 20,000 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.host
@pytest.mark.parametrize("server_files", [1024, 20_000])
def test_ten_thousand_half_open_connections_do_not_block_others(
    tmp_path: Path, files: None, server_files: int
) -> None:
    """Fails without the limit: the server runs out of files, or responds 503 to all requests."""
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({server_files}, {server_files}))\n"
        "sys.argv[1:] = ['serve', '--port', '0']\n"
        "from penstock.cli import main; main()"
    )
    silent: list[socket.socket] = []
    with serving(tmp_path, program) as (process, url):
        try:
            with httpx.Client(base_url=url, headers=AUTH_HEADERS, timeout=300) as client:
                assert client.post("/exp/x").status_code == 201
                with client.stream("GET", "/exp/x") as unread:
                    assert unread.status_code == 400, "the request has no metric"
                for n in range(10_000):
                    silent.append(socket.create_connection((url.host, url.port), timeout=300))
                    with contextlib.suppress(OSError):
                        silent[-1].sendall(HALVES[n % len(HALVES)])
                    # a request in between, because a full queue in the kernel drops connections
                    if n % 100 == 99:
                        assert (
                            web.get(
                                headers=AUTH_HEADERS, url=url.join("/exp"), timeout=300
                            ).status_code
                            == 200
                        )
                point = {"source": "s", "number": 0, "metric": "m", "utc_ns": [1], "float": [1.0]}
                response = web.post(
                    headers=AUTH_HEADERS,
                    url=url.join("/api/v1/experiments/x/points"),
                    json=point,
                    timeout=300,
                )
                assert response.status_code == 201
                for connection in silent:
                    connection.setblocking(False)
                end = time.monotonic() + 240  # the server may close them late
                while (closed := sum(map(is_closed, silent))) < 9_000:
                    assert time.monotonic() < end, closed
                    time.sleep(0.2)
            assert process.poll() is None
        finally:
            for connection in silent:
                connection.close()
