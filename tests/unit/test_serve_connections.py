"""Connections to `penstock serve` that say nothing, or half of something."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

HALVES = (
    b"",
    b"POST /exp/x HTTP/1.1\r\nHost:",
    b"PUT /exp/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
)


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
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    silent: list[socket.socket] = []
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = httpx.URL(process.stdout.readline().strip())
            with httpx.Client(base_url=url, timeout=300) as http_:
                assert http_.post("/exp/x").status_code == 201
                with http_.stream("GET", "/exp/x") as unread:
                    assert unread.status_code == 400, "it has no metric yet"
                for n in range(10_000):
                    silent.append(socket.create_connection((url.host, url.port), timeout=300))
                    with contextlib.suppress(OSError):
                        silent[-1].sendall(HALVES[n % len(HALVES)])
                    if n % 1000 == 999:
                        assert httpx.get(url.join("/exp"), timeout=300).status_code == 200
                said = {"source": "s", "number": 0, "metric": "m", "utc_ns": [1], "float": [1.0]}
                answer = httpx.post(
                    url.join("/api/v1/experiments/x/points"), json=said, timeout=300
                )
                assert answer.status_code == 201
                gone = 0
                for one in silent:
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        try:
                            gone += one.recv(1) == b""
                        except ConnectionError:
                            gone += 1
                assert gone >= 9_000
            assert process.poll() is None
        finally:
            for one in silent:
                one.close()
            process.kill()
