"""Provenance of a monitored command: arguments, files and host, locally and with a server."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.bundle import Bundle
from penstock.host.probe.facts import host_facts
from penstock.parts.monitoring.experiments.provenance import (
    MOST_FACTS_BYTES,
    checked_facts,
    facts_of_command,
    for_server,
)
from penstock.parts.monitoring.outbox.client import Remote
from tests.support import commands
from tests.unit.test_experiment_server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("provenance"))
    yield running
    running.end()


def manifest_of(server: Server, name: str) -> dict[str, Any]:
    (path,) = server.place.glob(f"state/experiments/*/{name}.1-*")
    return Bundle.open(path).manifest


@pytest.mark.parametrize("served", [True, False])
def test_manifest_has_command_files_and_host(server: Server, tmp_path: Path, served: bool) -> None:
    """Fails if the server records itself: the command is limited to one processor."""
    program, config = tmp_path / "program", tmp_path / "c.json"
    program.write_text(f"#!/bin/sh\n# {tmp_path}\nexit 0\n")
    program.chmod(0o755)
    config.write_text('{"collectors": {"in": {"type": "influxdb"}}}')
    processor = min(os.sched_getaffinity(0))
    argv = [sys.executable, "-m", "penstock", "monitor", "run", "--name", "p", "-i", "0.1"]
    argv += ["--config", str(config), "-o", str(tmp_path / "b")]
    argv += ["--server", server.url] if served else []
    environment = os.environ | {"PENSTOCK_STATE": str(tmp_path / "own")}
    environment["PENSTOCK_RUNTIME"] = server.environment[
        "PENSTOCK_RUNTIME"
    ]  # directory of the token
    environment.pop("PENSTOCK_SERVER", None)
    result = commands.run(
        [*argv, "--", str(program), "a b"],
        env=environment, capture_output=True, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {processor}),
    )  # fmt: skip
    assert (result.returncode, "nothing is recorded" in result.stderr) == (0, False), result.stderr
    if served:
        recorded = manifest_of(server, "p")
    else:
        (path,) = tmp_path.glob("own/experiments/*/p.1-*")
        recorded = Bundle.open(path).manifest
    for manifest in (recorded, Bundle.open(tmp_path / "b").manifest):
        assert manifest["command"] == [str(program), "a b"]
        assert manifest["host"]["cpus_allowed"] == 1
        assert manifest["host"].keys() == host_facts().keys()
        for role, file in (("executable", program), ("config", config)):
            assert manifest["files"][role] == {
                "path": str(file),
                "size_bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }


def test_server_accepts_only_facts(server: Server) -> None:
    """Fails if a client overwrites facts of the server or fills its manifests."""
    for wrong in (
        {"valid": True},
        {"command": "one text"},
        {"files": {"executable": {"path": "/x", "size_bytes": 1, "sha256": "no"}}},
        {"host": {"deep": {"er": 1}}},
        {"command": ["x" * MOST_FACTS_BYTES]},
    ):
        answer = server.http.post("/exp/wrong", json={"facts": wrong})
        assert answer.status_code == 400
        assert "facts" in answer.json()["detail"]
    # a manifest with Infinity would be no JSON
    infinite = b'{"facts": {"host": {"speed": 1e999}}}'
    assert "facts" in server.http.post("/exp/wrong", content=infinite).json()["detail"]
    assert server.http.get("/api/v1/experiments?name=wrong").json() == []
    # without facts the host is the server's
    server.http.post("/exp/plain", json={}).raise_for_status()
    server.http.put("/exp/plain", json={}).raise_for_status()
    assert manifest_of(server, "plain")["host"]["cpus"] == os.cpu_count()
    assert "command" not in manifest_of(server, "plain")


def test_long_command_is_truncated(server: Server) -> None:
    argv = ["sh", "-c", *(f"word{n}" for n in range(20_000)), "caf\udce9"]
    truncated = for_server(facts_of_command(argv))
    length = len(truncated["command"])
    assert truncated["command"] == argv[:length]
    assert truncated["command_left_out"] == len(argv) - length > 0
    assert checked_facts(truncated) == json.loads(json.dumps(truncated))
    client = Remote(server.url, server.token)
    assert client.start("long", facts=facts_of_command(argv)) == "long#1"
    client.start("short", facts=facts_of_command(["sh", "caf\udce9"]))
    for name in ("long", "short"):
        client.stop(name)
    assert manifest_of(server, "long")["command_left_out"] == truncated["command_left_out"]
    assert manifest_of(server, "short")["command"] == ["sh", "caf\\udce9"]


def test_special_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    facts = facts_of_command(["no-such-program"], tmp_path / "fifo")
    assert facts == {"command": ["no-such-program"], "files": {}}


def test_older_server_receives_no_facts() -> None:
    requests: list[dict[str, Any]] = []

    class Older(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(request)
            text = "Starting x#1\n"
            if "facts" in request:
                text = json.dumps({"detail": "facts: Extra inputs are not permitted"})
            self.send_response(400 if "facts" in request else 201)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older) as older:
        threading.Thread(target=older.serve_forever, daemon=True).start()
        client = Remote(f"http://127.0.0.1:{older.server_address[1]}")
        assert client.start("x", facts={"command": ["true"]}, tags=["t"]) == "x#1"
        older.shutdown()
    assert requests[0]["facts"]["command"] == ["true"]
    assert {k: v for k, v in requests[0].items() if k != "facts"} == requests[1]
