"""Emulated nodes and disks over HTTP: a real server process, a real cluster and the client."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.client import Client
from penstock.errors import BadInput
from tests.integration.known_host import with_known_host
from tests.integration.node_ground import NODES
from tests.support import commands
from tests.support.waiting import until

pytestmark = NODES

PLATFORM = """penstock_platform: 1
name: served
hosts:
  - group: n
    count: 2
    memory: 256MiB
    disks: [{name: data, profile: sata-ssd}]
network: {bandwidth: 100 Mbit/s}
"""


class Server:
    """`penstock serve` in its own process."""

    def __init__(self, directory: Path) -> None:
        self.runtime = directory / "run"
        environment = {
            **os.environ,
            "PENSTOCK_STATE": str(with_known_host(directory / "state")),
            "PENSTOCK_RUNTIME": str(self.runtime),
        }
        self.process = commands.popen(
            [sys.executable, "-m", "penstock", "serve", "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.url = self.process.stdout.readline().strip()
        self.messages = [self.process.stderr.readline() for _ in range(2)]
        self.file = self.runtime / f"serve-{self.process.pid}.json"
        self.token = json.loads(self.file.read_text())["token"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("serve")
    running = Server(directory)
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(120) == 0
    assert not running.file.exists()
    remaining = ("disk-server.log", "disk-stats", "standing-nodes.lock", "standing-disks.lock")
    assert {p.name for p in running.runtime.iterdir()} <= set(remaining)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_RUNTIME", str(server.runtime))
        with Client.local() as local:
            yield local


def test_the_token_is_in_a_private_file_and_required(server: Server) -> None:
    """Standard error, which is not a terminal, gets the path of the file."""
    assert str(server.file) in server.messages[0]
    assert not any(server.token in line for line in server.messages)
    assert stat.S_IMODE(server.file.stat().st_mode) == 0o600
    with httpx.Client(base_url=server.url) as http:
        for method, path in (
            ("GET", "/api/v1"),
            ("GET", "/openapi.json"),
            ("GET", "/api/v1/clusters"),
            ("GET", "/api/v1/state"),
            ("GET", "/api/v1/live"),
            ("POST", "/api/v1/clusters"),
            ("POST", "/api/v1/journal/undo"),
            ("DELETE", "/api/v1/clusters/x"),
            ("PATCH", "/api/v1/clusters/x/nodes/y/cpu"),
            ("GET", "/api/v1/jobs"),
        ):
            for headers in ({}, {"Authorization": f"Bearer {server.token}x"}):
                assert http.request(method, path, headers=headers).status_code == 401, path
        # a page whose own host name points to the server (DNS rebinding)
        foreign = {"Host": "evil.example", "Authorization": f"Bearer {server.token}"}
        assert http.get("/api/v1/state", headers=foreign).status_code == 421
        assert "<h1>Live</h1>" in http.get("/nodes").text
        assert server.token not in http.get("/nodes").text
        authorized = {"Authorization": f"Bearer {server.token}"}
        schema = http.get("/openapi.json", headers=authorized).json()
        assert schema["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
        assert "/api/v1/clusters/{cluster}/nodes/{node}/links/{network}" in schema["paths"]


def test_a_cluster_over_http(client: Client) -> None:
    job = client.begin("POST", "/clusters", json={"platform": PLATFORM})
    assert job.state()["what"] == "start served"
    assert job.result()["cluster"] == "served"
    cluster = client.cluster("served")
    try:
        assert client.clusters() == ["served"]
        assert [n["name"] for n in cluster.nodes()] == ["n-0", "n-1"]

        change = cluster.set_link("n-0", "net", out_bps=1e6, delay=0.003)
        assert change["found"]["out_bps"] == 1e6
        assert change["found"]["delay"]["mean_s"] == 0.003
        change = cluster.set_disk("n-0", "data", limits={"read_bps": 5e6})
        assert change["found"] == {"limits": {"read_bps": 5e6}}
        applied = cluster.change([{"nodes": ["n-*"], "resource": "cpu", "patch": {"cpus": 0.5}}])
        assert [(a["node"], a["found"]["cpus"]) for a in applied] == [("n-0", 0.5), ("n-1", 0.5)]

        # arguments reach the program unchanged, without a shell
        text = "a b; $(touch /tmp/owned) 'x' \"y\" *"
        results = cluster.exec(["*"], ["printf", "%s", text])
        assert [(r["node"], r["stdout"]) for r in results] == [("n-0", text), ("n-1", text)]
        timed_out = cluster.exec(["n-0"], ["sleep", "30"], timeout_s=0.3)[0]
        assert timed_out["timed_out"]
        assert cluster.exec(["n-1"], ["false"])[0]["exit_status"] == 1

        cluster.write_file("n-0", "/tmp/x %?#y", b"\x00\xff" * 5000)
        assert cluster.read_file("n-0", "/tmp/x %?#y") == b"\x00\xff" * 5000
        with pytest.raises(BadInput, match="No such file"):
            cluster.read_file("n-1", "/tmp/x %?#y")

        start = cluster.schedule(
            [
                {
                    "when": {"at_s": 0.2},
                    "resource": "network",
                    "name": "net",
                    "patch": {"in_bps": 2e6},
                    "nodes": ["n-1"],
                }
            ]
        )
        deadline = time.monotonic() + 60
        applied_events: list[dict[str, Any]] = []
        while not applied_events and time.monotonic() < deadline:
            time.sleep(0.05)
            applied_events = [e for e in cluster.events() if "in_bps" in e["asked"]]
        assert applied_events[0]["found"] == {"in_bps": 2e6}
        assert applied_events[0]["applied_ns"] >= start + 200_000_000

        assert cluster.set_state("n-1", "frozen")["error"] == ""
        states = {n["name"]: n for n in client.state()["clusters"][0]["nodes"]}
        assert states["n-1"]["state"] == "frozen"
        assert states["n-0"]["links"]["net"]["asked"]["out_bps"] == 1e6
        saved = cluster.platform()
        assert {e["kind"] for e in client.journal()} >= {"netns", "cgroup", "mount"}
    finally:
        cluster.down()
    assert client.journal() == []

    copy = client.put_up(spec=saved, name="again")
    assert [n["name"] for n in copy.nodes()] == ["n-0", "n-1"]
    copy.down()


def test_an_invalid_request_is_refused_and_changes_nothing(client: Client) -> None:
    for body, message in (
        ({"platform": "penstock_platform: 1\nname: 3"}, r"platform.yaml:2:7: found 3.* \(400\)"),
        ({"platform": PLATFORM, "spec": {}}, "expected one of them"),
        ({"spec": {"name": "x", "nodes": [{"name": "a", "colour": 1}]}}, "found 'colour'"),
        ({"platform": PLATFORM, "set": ["hosts.n.count=0"]}, "400"),
        ({"plattform": PLATFORM}, r"plattform.*\(422\)"),
        ({"platform": PLATFORM, "name": "../x"}, r"name.*\(422\)"),
    ):
        with pytest.raises(BadInput, match=message):
            client.request("POST", "/clusters", json=body)
    with pytest.raises(BadInput, match="no cluster nosuch is up"):
        client.cluster("nosuch")
    with pytest.raises(BadInput, match="no job 999"):
        client.request("GET", "/jobs/999")
    with pytest.raises(BadInput, match="no disk standing-x is up"):
        client.set_disk("standing-x", read_only=True)
    assert client.journal() == []
    assert client.clusters() == []


def test_errors_of_a_cluster_name_the_mistake(client: Client) -> None:
    cluster = client.put_up(PLATFORM)
    try:
        for request, message in (
            (lambda: cluster.set_link("n-0", "net", colour=1), "no 'colour'"),
            (lambda: cluster.set_link("n-0", "net", out_bps=-1), "1 B/s to"),
            (lambda: cluster.set_link("n-0", "lan", out_bps=1e6), "not on network lan"),
            (lambda: cluster.set_link("n-7", "net", out_bps=1e6), "no node n-7"),
            (lambda: cluster.set_disk("n-0", "log", read_only=True), "no disk log"),
            (lambda: cluster.set_disk("n-0", "data", colour=1), "colour"),
            (lambda: cluster.exec(["m-*"], ["true"]), "no node 'm-*'"),
            (lambda: cluster.exec(["*"], []), "422"),
            (lambda: client.put_up(PLATFORM), "is up already"),
        ):
            with pytest.raises(BadInput, match=message.replace("*", r"\*")):
                request()
        live = client.live(0.2)
        first, second = next(live), next(live)
        assert second["t_ns"] - first["t_ns"] >= 150_000_000
        assert first["clusters"][0]["cluster"] == "served"
        live.close()  # type: ignore[attr-defined]
    finally:
        cluster.down()


def test_networks_and_certificates(client: Client) -> None:
    cluster = client.put_up(PLATFORM.replace("sata-ssd", "hdd-7200"))
    try:
        (network,) = cluster.networks()
        assert (network["engine"], network["relay"]) == ("bridge", None)
        network = cluster.set_delays("net", {"n-0": {"n-1": 0.004}})
        assert network["engine"] == "relay"
        assert sorted(network["delays"]) == [["n-0", "n-1", 0.004], ["n-1", "n-0", 0.004]]
        with pytest.raises(BadInput, match="'n-9'; there is none"):
            cluster.set_delays("net", {"n-0": {"n-9": 0.1}})
        with pytest.raises(BadInput, match="no network lan"):
            cluster.set_delays("lan", {"n-0": {"n-1": 0.1}})

        job = client.begin("POST", "/clusters/served/certificate", json={"seconds": 10})
        until(lambda: job.state()["seconds"] > 0.3)
        with pytest.raises(BadInput, match="being measured already"):
            cluster.certificate(0.5)
        write = "dd if=/dev/zero of=/disks/data/f bs=64k count=60 oflag=direct 2>/dev/null"
        assert cluster.exec(["n-0"], ["sh", "-c", write])[0]["exit_status"] == 0
        disks = job.result()["disks"]
        assert set(disks) == {"n-0.data", "n-1.data"}
        busy, idle = disks["n-0.data"], disks["n-1.data"]
        assert [r["reason"] for r in idle["fidelity"]] == ["no requests"]
        rows = {r["metric"]: r for r in busy["fidelity"] if r["n"]}
        assert any(r["n"] >= 60 for r in rows.values()), busy
        # on a busy host it is invalid and has a reason
        assert busy["valid"] or busy["reason"], busy
    finally:
        cluster.down()


def test_a_disk_without_a_node(client: Client, tmp_path: Path) -> None:
    for name in ("files", "disk"):
        (tmp_path / name).mkdir()
    disk = client.put_disk_up("hdd-7200", tmp_path / "files", tmp_path / "disk", time_scale=16)
    try:
        assert [d["disk_id"] for d in client.disks()] == [disk["disk_id"]]
        change = client.set_disk(disk["disk_id"], limits={"write_bps": 1e6})
        assert change["found"] == {"limits": {"write_bps": 1e6}}
        (tmp_path / "disk" / "f").write_text("x")
    finally:
        client.take_disk_down(disk["disk_id"])
    assert (tmp_path / "files" / "f").read_text() == "x"
    assert client.disks() == []


def test_requests_run_concurrently(client: Client) -> None:
    cluster = client.put_up(PLATFORM)
    try:
        outputs: list[str] = []
        threads = [
            threading.Thread(
                target=lambda: outputs.extend(
                    r["stdout"] for r in cluster.exec(["*"], ["sh", "-c", "sleep 0.2; hostname"])
                )
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outputs) == ["n-0\n"] * 4 + ["n-1\n"] * 4
    finally:
        cluster.down()
