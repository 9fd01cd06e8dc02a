"""Requests to each operation of the OpenAPI description, and a server with a cluster and a disk for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import requests
import schemathesis
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation

from penstock.client import Client
from penstock.parts.server.app import application
from penstock.parts.server.traces import Served
from tests.examples.trace_page import events, write_bundle
from tests.integration.known_host import with_known_host
from tests.integration.receivers import MATRIX, Receivers, listens, run_server
from tests.support import commands
from tests.support.waiting import until

PLATFORM = """penstock_platform: 1
name: fuzzed
hosts:
  - group: n
    count: 1
    memory: 256MiB
    disks: [{name: data, profile: service-5ms}]
network: {bandwidth: 100 Mbit/s}
"""
#: requests that remove objects which the other requests need
REMOVALS = {
    ("DELETE", "/api/v1/clusters/{cluster}"),
    ("DELETE", "/api/v1/disks/{disk}"),
    ("DELETE", "/exp/{name}"),
    ("PUT", "/exp/{name}"),
}
#: number of authorised requests to each operation; `make fuzz` sends more
EXAMPLES = int(os.environ.get("PENSTOCK_HTTP_EXAMPLES", "20"))
#: endless streams
STREAMS = {("GET", "/api/v1/live")}
#: paths whose parameters are names of the configuration
EXPERIMENT_PATHS = ("/exp", "/api/v1/experiments")
CONFIGURED_NAMES = {"collector": "influx", "server": "prom"}
#: parameters with the time that a request may wait [s]
WAIT_PARAMETERS = ("seconds", "timeout_s", "wait_s")


def describe_operations() -> dict[str, APIOperation[Any, Any, Any, Any]]:
    """Return all operations of the interface, by method and path."""
    document = application(Served([]), "a-word-of-many-letters").openapi()
    operations = [o.ok() for o in schemathesis.openapi.from_dict(document).get_all_operations()]
    return {f"{o.method.upper()} {o.path}": o for o in operations}


OPERATIONS = describe_operations()


class Server:
    """A server with a trace, a cluster, a disk, running receivers, and the port of a metric server."""

    def __init__(self, directory: Path, prometheus_port: int) -> None:
        receivers = Receivers.of(directory, prometheus_port)
        bundle = write_bundle(directory / "T", events(500))
        environment = {
            **os.environ,
            "PENSTOCK_STATE": str(with_known_host(directory / "state")),
            "PENSTOCK_RUNTIME": str(directory / "run"),
        }
        (directory / "cwd").mkdir()
        self.requests = 0
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = commands.popen(
                [
                    *(sys.executable, "-m", "penstock", "serve", str(bundle)),
                    *("--port", "0", "--config", str(receivers.config)),
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=directory / "cwd",
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        record = json.loads((directory / "run" / f"serve-{self.process.pid}.json").read_text())
        self.token: str = record["token"]
        self.client = Client(self.url, self.token)
        self.client.put_up(PLATFORM)
        for name in ("backing", "mount"):
            (directory / name).mkdir()
        disk = self.client.put_disk_up("none", directory / "backing", directory / "mount")
        self.known: dict[str, Any]
        self.known = {"cluster": "fuzzed", "node": "n-0", "network": "net", "path": "etc/hostname"}
        self.known |= {"dashboard": "compute"}
        requests.post(
            f"{self.url}exp/attacked",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
        ).raise_for_status()
        until(lambda: listens(receivers.influx))
        self.known |= {
            "name": "attacked",
            "number": 0,
            "file_id": 1,
            "table": "io_events",
            "job": 1,
        }
        self.disk_id: str = disk["disk_id"]

    def journal(self) -> list[str]:
        """Return the ids of the server's open changes on the host."""
        return sorted(str(entry["id"]) for entry in self.client.journal())

    def end(self) -> None:
        """Remove all clusters and disks, and end the server."""
        for name in self.client.clusters():
            self.client.cluster(name).down()
        for disk in self.client.disks():
            self.client.take_disk_down(disk["disk_id"])
        entries = self.client.journal()
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0
        assert entries == []


@pytest.fixture(name="server", scope="module")
def one_server(
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[Server]:
    with run_server((200, {}, MATRIX)) as (prometheus_port, _):
        server = Server(tmp_path_factory.mktemp("attack-http"), prometheus_port)
        yield server
        record_testsuite_property("requests", server.requests)
        server.end()


def run_cases(name: str, examples: int) -> Any:
    """Return a decorator that runs a test with valid and invalid requests to one operation."""
    operation = OPERATIONS[name]
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )
    settings = hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    return lambda test: settings(hypothesis.given(case=cases, known=st.booleans())(test))()


def send(case: Case, server: Server, authorization: str | None) -> requests.Response:
    """Send the request of a case with this Authorization header, or without one; return the response."""
    options = case.as_transport_kwargs(base_url=server.url)
    headers = {k: v for k, v in options.pop("headers").items() if k.lower() != "authorization"}
    if authorization is not None:
        headers["Authorization"] = authorization
    server.requests += 1
    return requests.request(**options, headers=headers, timeout=60)


def use_existing_objects(case: Case, server: Server) -> None:
    """Set the path parameters of a request to existing objects, so that it is processed further."""
    if (case.method, case.path) in REMOVALS:
        return
    for key in case.path_parameters:
        is_disk_path = case.path.startswith("/api/v1/disks")
        case.path_parameters[key] = {
            **server.known,
            "disk": server.disk_id if is_disk_path else "data",
        }[key]
    for fields in (case.body, case.query):
        if case.path.startswith(EXPERIMENT_PATHS) and isinstance(fields, dict):
            fields |= {key: value for key, value in CONFIGURED_NAMES.items() if key in fields}


def shorten_waits(value: Any) -> None:
    """Limit the waiting time in a request."""
    for key in WAIT_PARAMETERS:
        if isinstance(value, dict) and isinstance(value.get(key), int | float) and value[key] > 0.5:
            value[key] = 0.5
