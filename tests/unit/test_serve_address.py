"""Addresses that `penstock serve` prints: with the token on a terminal, without it in files and pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support import commands, web


@contextmanager
def first_line(place: Path, stdout: str, *options: str) -> Iterator[str]:
    """First line of a server's output to a `terminal` or a `pipe`, while it runs."""
    read, write = os.openpty() if stdout == "terminal" else os.pipe()
    directories = {"PENSTOCK_STATE": str(place / "state"), "PENSTOCK_RUNTIME": str(place / "run")}
    process = commands.popen(
        [sys.executable, "-m", "penstock", "serve", "--port", "0", *options],
        env={**os.environ, **directories},
        stdout=write,
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    try:
        with open(read) as lines:
            yield lines.readline().strip()
    finally:
        process.kill()
        process.wait()


def test_on_a_terminal_the_first_address_opens_the_page(tmp_path: Path) -> None:
    with first_line(tmp_path, "terminal") as line:
        url, _, token = line.partition("#token=")
        assert url.endswith("/live")
        assert web.get(url).status_code == 200
        resource = httpx.URL(url).join("/api/v1/clusters")
        assert web.get(resource).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert web.get(resource, headers=headers).status_code == 200


@pytest.mark.parametrize("stdout", ["pipe", "terminal"])
def test_the_first_address_has_no_token_in_a_pipe_or_from_a_file(
    tmp_path: Path, stdout: str
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("a-token-of-many-letters")
    token_file.chmod(0o600)
    options = ("--token-file", str(token_file)) if stdout == "terminal" else ()
    with first_line(tmp_path, stdout, *options) as line:
        assert httpx.URL(line).path == "/"
        assert "token" not in line


@pytest.mark.parametrize("stderr", ["terminal", "file"])
def test_the_token_is_not_in_a_log(tmp_path: Path, stderr: str) -> None:
    controller, terminal = os.openpty()
    directories = {
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    with (
        open(controller) as shown,
        open(tmp_path / "log", "w") as log,
        commands.popen(
            [sys.executable, "-m", "penstock", "serve", "--port", "0"],
            env={**os.environ, **directories},
            stdout=subprocess.PIPE,
            stderr=terminal if stderr == "terminal" else log,
        ) as server,
    ):
        os.close(terminal)
        assert server.stdout is not None
        assert server.stdout.readline()
        file = tmp_path / "run" / f"serve-{server.pid}.json"
        token = json.loads(file.read_text())["token"]
        while stderr == "file" and "token file" not in (tmp_path / "log").read_text():
            assert server.poll() is None
            time.sleep(0.05)
        pages = shown.readline() if stderr == "terminal" else (tmp_path / "log").read_text()
        server.kill()
    assert (token in pages) == (stderr == "terminal")
    assert (f"/live, with the token in {file}" in pages) == (stderr == "file")
