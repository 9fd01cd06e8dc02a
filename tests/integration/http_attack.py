"""Requests to each operation that the OpenAPI describes, and a server with a cluster and a disk for them."""

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
from tests.integration.receivers import MATRIX, Receivers, answering, listens
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
#: what would take away what the others are tried on
ENDS = {
    ("DELETE", "/api/v1/clusters/{cluster}"),
    ("DELETE", "/api/v1/disks/{disk}"),
    ("DELETE", "/exp/{name}"),
    ("PUT", "/exp/{name}"),
}
#: requests to each operation by who may; `make fuzz` sends more
EXAMPLES = int(os.environ.get("PENSTOCK_HTTP_EXAMPLES", "20"))
#: a stream of states has no end
STREAMS = {("GET", "/api/v1/live")}
#: whose words are names of the configuration
OF_EXPERIMENTS = ("/exp", "/api/v1/experiments")
CONFIGURED = {"collector": "influx", "server": "prom"}
#: how long a request may wait for what it asks for [s]
PATIENT = ("seconds", "timeout_s", "wait_s")


def described() -> dict[str, APIOperation[Any, Any, Any, Any]]:
    """All operations of the interface, by method and path."""
    document = application(Served([]), "a-word-of-many-letters").openapi()
    found = [o.ok() for o in schemathesis.openapi.from_dict(document).get_all_operations()]
    return {f"{o.method.upper()} {o.path}": o for o in found}


OPERATIONS = described()


class Server:
    """A server with a trace, a cluster and a disk; with receivers at work, and a server elsewhere to ask."""

    def __init__(self, place: Path, elsewhere: int) -> None:
        receivers = Receivers.of(place, elsewhere)
        bundle = write_bundle(place / "T", events(500))
        environment = {
            **os.environ,
            "PENSTOCK_STATE": str(with_known_host(place / "state")),
            "PENSTOCK_RUNTIME": str(place / "run"),
        }
        (place / "cwd").mkdir()
        self.requests = 0
        self.log = place / "log"
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
                cwd=place / "cwd",
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        said = json.loads((place / "run" / f"serve-{self.process.pid}.json").read_text())
        self.token: str = said["token"]
        self.client = Client(self.url, self.token)
        self.client.put_up(PLATFORM)
        for name in ("backing", "mount"):
            (place / name).mkdir()
        up = self.client.put_disk_up("none", place / "backing", place / "mount")
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
        self.disk_id: str = up["disk_id"]

    def journal(self) -> list[str]:
        """Ids of the open changes of the server on the host."""
        return sorted(str(entry["id"]) for entry in self.client.journal())

    def end(self) -> None:
        """Remove all clusters and disks, and end the server."""
        for name in self.client.clusters():
            self.client.cluster(name).down()
        for disk in self.client.disks():
            self.client.take_disk_down(disk["disk_id"])
        left = self.client.journal()
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0
        assert left == []


@pytest.fixture(name="server", scope="module")
def one_server(
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[Server]:
    with answering((200, {}, MATRIX)) as (elsewhere, _):
        running = Server(tmp_path_factory.mktemp("attack-http"), elsewhere)
        yield running
        record_testsuite_property("requests", running.requests)
        running.end()


def tried(name: str, examples: int) -> Any:
    """A test of requests to one operation: such as it describes, and such as it does not."""
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


def answered(case: Case, server: Server, authorization: str | None) -> requests.Response:
    """Send the request of a case with this Authorization header, or without one; return the response."""
    options = case.as_transport_kwargs(base_url=server.url)
    headers = {k: v for k, v in options.pop("headers").items() if k.lower() != "authorization"}
    if authorization is not None:
        headers["Authorization"] = authorization
    server.requests += 1
    return requests.request(**options, headers=headers, timeout=60)


def aimed(case: Case, server: Server) -> None:
    """Turns a request on what there is, so that more of it is reached than its name."""
    if (case.method, case.path) in ENDS:
        return
    for key in case.path_parameters:
        alone = case.path.startswith("/api/v1/disks")
        case.path_parameters[key] = {
            **server.known,
            "disk": server.disk_id if alone else "data",
        }[key]
    for words in (case.body, case.query):
        if case.path.startswith(OF_EXPERIMENTS) and isinstance(words, dict):
            words |= {key: said for key, said in CONFIGURED.items() if key in words}


def hurried(said: Any) -> None:
    """Lets it wait for little."""
    for key in PATIENT:
        if isinstance(said, dict) and isinstance(said.get(key), int | float) and said[key] > 0.5:
            said[key] = 0.5
