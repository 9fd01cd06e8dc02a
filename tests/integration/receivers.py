"""A configuration with every receiver and a metric server, for tests that attack them."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

TOKEN = "a-token-of-the-receivers"
#: empty answer of a server with Prometheus' API
MATRIX = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'


@dataclass(frozen=True)
class Receivers:
    """Configuration file of the receivers, and their ports while an experiment runs."""

    config: Path
    lines: int
    pickles: int
    influx: int
    remote: int
    prometheus_port: int

    @classmethod
    def of(cls, directory: Path, prometheus_port: int = 0) -> Receivers:
        """Write a configuration in `directory`; `prometheus_port`: port of a server with Prometheus' API."""
        ports = [free_port() for _ in range(4)]
        lines, pickles, influx, remote = ports
        settings = {
            "targets": [
                {"server": "prom", "type": "prometheus", "address": f"127.0.0.1:{prometheus_port}"}
            ],
            "metrics": [{"name": "cpu", "server": "prom", "query": "cpu"}],
            "collectors": {
                "collectd": {"type": "graphite", "port": lines, "pickle_port": pickles},
                "influx": {"type": "influxdb", "port": influx, "token": TOKEN},
                "remote": {"type": "remote-write", "port": remote},
            },
        }
        config = directory / "config.json"
        config.write_text(json.dumps(settings))
        config.chmod(0o600)
        return cls(config, *ports, prometheus_port)


def listens(port: int) -> bool:
    """True if a program listens at this port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def post(port: int, path: str, body: bytes, **headers: str) -> int:
    """Post a body to a receiver and return the status; with its token unless `headers` has another one."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=body,
        method="POST",
        headers={"Authorization": f"Token {TOKEN}", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@contextlib.contextmanager
def run_server(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[int, list[str]]]:
    """Run a server that gives the answers in turn and repeats the last; yield its port and request paths."""
    request_paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, headers, body = answers[min(len(request_paths), len(answers) - 1)]
            request_paths.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], request_paths
    finally:
        server.shutdown()
        server.server_close()
