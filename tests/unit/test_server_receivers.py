"""A server with receivers: who begins an experiment may push at once. A server elsewhere: an empty answer."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import httpx

from tests.integration.receivers import MATRIX, answering
from tests.support.ports import free_port
from tests.unit.test_experiment_server import Server


def test_receivers_listen_once_an_experiment_has_begun(tmp_path: Path) -> None:
    """Breaks where a push right after the answer finds no listener; the last port is somebody else's."""
    with answering((200, {}, MATRIX)) as (elsewhere, _), socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = free_port()
        config = tmp_path / "config.json"
        target = {"server": "p", "type": "prometheus", "address": f"127.0.0.1:{elsewhere}"}
        lines = {"type": "influxdb", "port": port}
        busy = {"type": "influxdb", "port": other.getsockname()[1], "experiments": "busy"}
        collectors = {"lp": lines, "busy": busy}
        config.write_text(json.dumps({"targets": [target], "collectors": collectors}))
        config.chmod(0o600)
        server = Server(tmp_path, "--config", str(config))
        try:
            for n in range(3):
                assert server.http.post(f"/exp/race{n}", content=b"{}").status_code == 201
                body = f"x v={n} {time.time_ns()}"
                pushed = httpx.post(f"http://127.0.0.1:{port}/write", content=body)
                assert pushed.status_code == 204
                assert server.http.put(f"/exp/race{n}", content=b"{}").status_code == 201
                said = json.dumps({"metric": "x_v"}).encode()
                rows = server.http.request("GET", f"/exp/race{n}", content=said).text.splitlines()
                assert [row.partition(",")[2] for row in rows] == ["x_v", str(n)]
            begun = server.http.post("/exp/busy", content=b"{}")
            assert begun.status_code == 201
            assert "busy" in begun.headers["X-Penstock-Not-Listening"]
            query = json.dumps({"query": "m", "server": "p"}).encode()
            for name in ("busy", "race0"):
                found = server.http.request("GET", f"/exp/{name}", content=query)
                assert (found.status_code, found.text) == (200, "timestamp\n"), name
            for form in ("jsonl", "parquet", "openmetrics"):
                query = json.dumps({"query": "m", "server": "p", "format": form}).encode()
                found = server.http.request("GET", "/exp/race0", content=query)
                assert found.status_code == 200, found.text
            unknown = json.dumps({"metric": "m"}).encode()
            assert server.http.request("GET", "/exp/race0", content=unknown).status_code == 404
        finally:
            server.end()
