"""Connections to `penstock serve` that say nothing, or half of something."""

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


#: of the server that runs
RIGHT: dict[str, str] = {}


@contextlib.contextmanager
def serving(place: Path, program: str) -> Iterator[tuple[subprocess.Popen[str], httpx.URL]]:
    """A server by a program that calls it, over a state of its own."""
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
            said = json.loads((place / "run" / f"serve-{process.pid}.json").read_text())
            RIGHT["Authorization"] = f"Bearer {said['experiments_token']}"
            yield process, url
        finally:
            process.kill()


SERVE = "import sys; sys.argv[1:] = ['serve', '--port', '0']; from penstock.cli import main; main()"


def head_of(path: str) -> str:
    """The first lines of a POST of who may write, without the length of its body."""
    right = f"Authorization: {RIGHT['Authorization']}"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{right}\r\n"


def most_memory(process: subprocess.Popen[str]) -> int:
    """What a process has had in RAM at once [bytes]."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) << 10


def test_large_bodies_that_are_half_sent_leave_memory_and_room_for_others(tmp_path: Path) -> None:
    """Breaks without the common bound: each connection has 15 MB held, 40 of them 600 MB."""
    half = b"[" * (15 << 20)
    opened: list[socket.socket] = []
    with serving(tmp_path, SERVE) as (process, url):
        head = head_of("/api/v1/experiments/x/points")
        announced = f"{head}Content-Length: {16 << 20}\r\n\r\n".encode()
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{16 << 20:x}\r\n".encode()
        try:
            assert web.post(headers=RIGHT, url=url.join("/exp/x"), timeout=300).status_code == 201
            before = most_memory(process)
            for n in range(40):
                opened.append(socket.create_connection((url.host, url.port), timeout=300))
                with contextlib.suppress(ConnectionError):
                    opened[-1].sendall(chunked if n % 2 else announced)
                    opened[-1].sendall(half)
            said = {"source": "s", "number": 0, "metric": "m", "utc_ns": [1], "float": [1.0]}
            points = url.join("/api/v1/experiments/x/points")
            assert web.post(headers=RIGHT, url=points, json=said, timeout=300).status_code == 201
            refused = web.post(headers=RIGHT, url=points, content=half, timeout=300)
            assert refused.status_code == 503
            assert refused.headers["Retry-After"] == "1"
            assert most_memory(process) - before < MOST_BYTES * 3 // 2
        finally:
            for one in opened:
                one.close()
        statuses = (
            web.post(headers=RIGHT, url=points, content=half, timeout=300).status_code
            for _ in range(200)
        )
        assert 400 in statuses, "what was held is not free again"


def test_who_finds_no_room_for_a_recording_waits_for_it(tmp_path: Path) -> None:
    """Breaks where a server that has no room just now is no reason to try again: the recording is gone."""
    opened: list[socket.socket] = []
    said: list[str] = []

    def leave(words: str) -> None:
        said.append(words)
        for one in opened:
            one.close()

    with serving(tmp_path, SERVE) as (_, url):
        head = head_of("/api/v1/experiments/y/points")
        begun = f"{head}Transfer-Encoding: chunked\r\n\r\n{16 << 20:x}\r\n".encode()
        door = Remote(str(url), RIGHT["Authorization"].split()[1])
        name = "x#1"
        for begun_name in ("x", "y"):
            web.post(headers=RIGHT, url=url.join(f"/exp/{begun_name}"), timeout=300)
        for _ in range(10):
            opened.append(socket.create_connection((url.host, url.port), timeout=300))
            with contextlib.suppress(ConnectionError):
                opened[-1].sendall(begun + b"[" * (15 << 20))
        # larger than what is left beside those that there is room for
        times = time.time_ns() + np.arange(1_000_000)
        batch = Batch("s", 0, points(metric="m", utc_ns=times, float=times.astype(float)))
        delivery = Delivery(door, name, leave)
        delivery.write(batch)
        assert delivery.unsent is None
        door.stop(name)
        assert len(b"".join(door.get(name, {"metric": "m"}).parts).splitlines()) == 1_000_001
    assert "no memory" in said[0]


def test_an_unusable_catalogue_is_named_before_the_server_starts(tmp_path: Path) -> None:
    catalogue = tmp_path / "archive.sqlite"
    catalogue.write_text("no database\n" * 100)
    places = {"PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    environment = {**os.environ, **places}
    done = commands.run(
        [*commands.CODE, SERVE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{catalogue} cannot be used as a catalogue" in done.stderr
    assert "Traceback" not in done.stderr


def is_closed(connection: socket.socket) -> bool:
    """True if the other end has closed it, perhaps after an answer."""
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
def test_ten_thousand_half_open_connections_leave_room_for_others(
    tmp_path: Path, files: None, server_files: int
) -> None:
    """Breaks without the bound: the server runs out of files, or answers 503 to all."""
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({server_files}, {server_files}))\n"
        "sys.argv[1:] = ['serve', '--port', '0']\n"
        "from penstock.cli import main; main()"
    )
    silent: list[socket.socket] = []
    with serving(tmp_path, program) as (process, url):
        try:
            with httpx.Client(base_url=url, headers=RIGHT, timeout=300) as http_:
                assert http_.post("/exp/x").status_code == 201
                with http_.stream("GET", "/exp/x") as unread:
                    assert unread.status_code == 400, "it has no metric yet"
                for n in range(10_000):
                    silent.append(socket.create_connection((url.host, url.port), timeout=300))
                    with contextlib.suppress(OSError):
                        silent[-1].sendall(HALVES[n % len(HALVES)])
                    # an answer in between: a full queue of the kernel drops what a client believes to be open
                    if n % 100 == 99:
                        assert (
                            web.get(headers=RIGHT, url=url.join("/exp"), timeout=300).status_code
                            == 200
                        )
                said = {"source": "s", "number": 0, "metric": "m", "utc_ns": [1], "float": [1.0]}
                answer = web.post(
                    headers=RIGHT,
                    url=url.join("/api/v1/experiments/x/points"),
                    json=said,
                    timeout=300,
                )
                assert answer.status_code == 201
                for one in silent:
                    one.setblocking(False)
                end = time.monotonic() + 240  # it may close them late, but it closes them
                while (gone := sum(map(is_closed, silent))) < 9_000:
                    assert time.monotonic() < end, gone
                    time.sleep(0.2)
            assert process.poll() is None
        finally:
            for one in silent:
                one.close()
