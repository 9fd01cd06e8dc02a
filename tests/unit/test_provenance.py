"""What a monitored command was: its words, its files, its host, in the experiment of a server, too."""

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
def test_the_command_its_files_and_its_host_are_in_the_manifest(
    server: Server, tmp_path: Path, served: bool
) -> None:
    """Breaks where the server writes down itself: the command may use fewer processors than it does."""
    program, config = tmp_path / "program", tmp_path / "c.json"
    program.write_text(f"#!/bin/sh\n# {tmp_path}\nexit 0\n")
    program.chmod(0o755)
    config.write_text('{"collectors": {"in": {"type": "influxdb"}}}')
    one = min(os.sched_getaffinity(0))
    line = [sys.executable, "-m", "penstock", "monitor", "run", "--name", "p", "-i", "0.1"]
    line += ["--config", str(config), "-o", str(tmp_path / "b")]
    line += ["--server", server.url] if served else []
    own = os.environ | {"PENSTOCK_STATE": str(tmp_path / "own")}
    own["PENSTOCK_RUNTIME"] = server.environment["PENSTOCK_RUNTIME"]  # where its token is
    own.pop("PENSTOCK_SERVER", None)
    done = commands.run(
        [*line, "--", str(program), "a b"],
        env=own, capture_output=True, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {one}),
    )  # fmt: skip
    assert (done.returncode, "nothing is recorded" in done.stderr) == (0, False), done.stderr
    if served:
        found = manifest_of(server, "p")
    else:
        (path,) = tmp_path.glob("own/experiments/*/p.1-*")
        found = Bundle.open(path).manifest
    for manifest in (found, Bundle.open(tmp_path / "b").manifest):
        assert manifest["command"] == [str(program), "a b"]
        assert manifest["host"]["cpus_allowed"] == 1
        assert manifest["host"].keys() == host_facts().keys()
        for role, file in (("executable", program), ("config", config)):
            assert manifest["files"][role] == {
                "path": str(file),
                "size_bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }


def test_a_server_takes_no_more_than_facts(server: Server) -> None:
    """Breaks where a client writes over what the server knows, or fills its manifests."""
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
    assert server.http.get("/api/v1/experiments?name=wrong").json() == []
    # who tells nothing is on the server's host
    server.http.post("/exp/plain", json={}).raise_for_status()
    server.http.put("/exp/plain", json={}).raise_for_status()
    assert manifest_of(server, "plain")["host"]["cpus"] == os.cpu_count()
    assert "command" not in manifest_of(server, "plain")


def test_of_a_long_command_there_is_the_beginning(server: Server) -> None:
    words = ["sh", "-c", *(f"word{n}" for n in range(20_000)), "caf\udce9"]
    cut = for_server(facts_of_command(words))
    kept = len(cut["command"])
    assert cut["command"] == words[:kept]
    assert cut["command_left_out"] == len(words) - kept > 0
    assert checked_facts(cut) == json.loads(json.dumps(cut))
    door = Remote(server.url, server.token)
    assert door.start("long", facts=facts_of_command(words)) == "long#1"
    door.start("short", facts=facts_of_command(["sh", "caf\udce9"]))
    for name in ("long", "short"):
        door.stop(name)
    assert manifest_of(server, "long")["command_left_out"] == cut["command_left_out"]
    assert manifest_of(server, "short")["command"] == ["sh", "caf\\udce9"]


def test_what_is_no_ordinary_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    found = facts_of_command(["no-such-program"], tmp_path / "fifo")
    assert found == {"command": ["no-such-program"], "files": {}}


def test_an_older_server_is_told_what_it_knows() -> None:
    asked: list[dict[str, Any]] = []

    class Older(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(said)
            text = "Starting x#1\n"
            if "facts" in said:
                text = json.dumps({"detail": "facts: Extra inputs are not permitted"})
            self.send_response(400 if "facts" in said else 201)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *words: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older) as older:
        threading.Thread(target=older.serve_forever, daemon=True).start()
        door = Remote(f"http://127.0.0.1:{older.server_address[1]}")
        assert door.start("x", facts={"command": ["true"]}, tags=["t"]) == "x#1"
        older.shutdown()
    assert asked[0]["facts"]["command"] == ["true"]
    assert {k: v for k, v in asked[0].items() if k != "facts"} == asked[1]
