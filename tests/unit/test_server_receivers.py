"""A server with receivers accepts pushes right after the start of an experiment; remote servers."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import httpx

from tests.integration.receivers import MATRIX, run_server
from tests.support.ports import free_port
from tests.unit.test_experiment_server import Server


def test_receivers_listen_after_the_start_of_an_experiment(tmp_path: Path) -> None:
    """Fails if a push right after the response finds no listener; another process uses the last port."""
    with run_server((200, {}, MATRIX)) as (remote_port, _), socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        port = free_port()
        config = tmp_path / "config.json"
        target = {"server": "p", "type": "prometheus", "address": f"127.0.0.1:{remote_port}"}
        lines = {"type": "influxdb", "port": port}
        busy = {"type": "influxdb", "port": busy_socket.getsockname()[1], "experiments": "busy"}
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
                query_body = json.dumps({"metric": "x_v"}).encode()
                rows = server.http.request(
                    "GET", f"/exp/race{n}", content=query_body
                ).text.splitlines()
                assert [row.partition(",")[2] for row in rows] == ["x_v", str(n)]
            started = server.http.post("/exp/busy", content=b"{}")
            assert started.status_code == 201
            assert "busy" in started.headers["X-Penstock-Not-Listening"]
            query = json.dumps({"query": "m", "server": "p"}).encode()
            for name in ("busy", "race0"):
                response = server.http.request("GET", f"/exp/{name}", content=query)
                assert (response.status_code, response.text) == (200, "timestamp\n"), name
            for form in ("jsonl", "parquet", "openmetrics"):
                query = json.dumps({"query": "m", "server": "p", "format": form}).encode()
                response = server.http.request("GET", "/exp/race0", content=query)
                assert response.status_code == 200, response.text
            unknown = json.dumps({"metric": "m"}).encode()
            assert server.http.request("GET", "/exp/race0", content=unknown).status_code == 404
        finally:
            server.end()
