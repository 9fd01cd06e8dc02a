"""One cluster on two hosts, which are network namespaces with their own state directories."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spec.units import parse_duration

from .node_ground import NODES
from .remote_hosts import RemoteHosts

pytestmark = [*NODES, pytest.mark.long]

LATENCY = "5ms"
PLATFORM = f"""
penstock_platform: 1
name: far
hosts:
  - {{group: n, count: 2, memory: 128MiB, host: left}}
  - {{group: m, count: 2, memory: 128MiB, host: right}}
network: {{bandwidth: 40 Mbit/s, latency: {LATENCY}}}
"""
ECHO = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7000))
while True:
    data, sender = udp.recvfrom(2000)
    udp.sendto(data, sender)
"""
ASK = """
import socket, statistics, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(1)
times = []
until = time.monotonic() + 60
for number in range(200):
    message = number.to_bytes(64, "big")
    start = time.perf_counter()
    udp.sendto(message, (sys.argv[1], 7000))
    try:
        while udp.recv(2000) != message:
            pass
        times.append(time.perf_counter() - start)
    except TimeoutError:  # the server starts later, or was paused
        assert time.monotonic() < until
    if len(times) == 41:
        break
print(min(times[1:]))
"""


class Hosts(RemoteHosts):
    """This host (the coordinator) and two others with two nodes each."""

    @property
    def platform(self) -> Path:
        return self.where / "far.yaml"

    def start(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Start the nodes and wait."""
        return self.here.penstock(
            "hosts", "up", str(self.platform), "--hosts", str(self.file), *options
        )

    def start_in_background(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "penstock", "hosts", "up", str(self.platform)]
        return subprocess.Popen(
            [*argv, "--hosts", str(self.file)],
            env=self.here.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *arguments: str) -> str:
        result = self.here.penstock("hosts", *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(name="hosts")
def two_hosts() -> Iterator[Hosts]:
    with Hosts.up(("left", "right")) as hosts:
        hosts.platform.write_text(PLATFORM)
        yield hosts


def test_nodes_on_two_hosts_are_one_cluster(hosts: Hosts) -> None:
    """Names, latency and changes equal those of one host; `down` restores both hosts."""
    started = hosts.start("--json")
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["host_of"] == {
        "n-0": "left",
        "n-1": "left",
        "m-0": "right",
        "m-1": "right",
    }
    second = hosts.start()
    assert second.returncode == 2
    assert "cluster far is up" in second.stderr
    start = f"nohup python3 -c '{ECHO}' >/dev/null 2>&1 &"
    hosts.run("exec", "n-1", "m-0", "--", "sh", "-c", start)
    ask = ["python3", "-c", ASK]
    near, far = (float(hosts.run("exec", "n-0", "--", *ask, target)) for target in ("n-1", "m-0"))
    requested_s = 2 * parse_duration(LATENCY)
    for trip_s in (near, far):
        assert trip_s >= requested_s
    assert far - near < 0.6e-3 + 0.2 * requested_s
    named = hosts.run("exec", "*", "--", "sh", "-c", "getent hosts m-1 | cut -d' ' -f1")
    assert {line.split(" | ")[1] for line in named.splitlines()} == {"10.88.0.4"}
    assert [line.split()[0] for line in named.splitlines()] == ["n-0", "n-1", "m-0", "m-1"]
    applied = json.loads(hosts.run("set", "*-1", "cpus=0.5", "--json"))["applied"]
    assert [(row["host"], row["node"]) for row in applied] == [("left", "n-1"), ("right", "m-1")]
    hosts.record_tokens()
    status = json.loads(hosts.run("status", "--json"))["hosts"]
    assert [len(h["status"]["nodes"]) for h in status.values()] == [2, 2]
    failed = hosts.here.penstock("hosts", "exec", "m-1", "--", "sh", "-c", "echo no >&2; exit 7")
    assert (failed.returncode, failed.stderr) == (7, "no\n")
    hosts.run("down")
    hosts.assert_nothing_left()


def test_a_lost_host_is_named_and_the_other_is_restored(hosts: Hosts) -> None:
    assert hosts.start().returncode == 0
    hosts.record_tokens()
    python = hosts.others["right"].where / "python"
    python.chmod(0)
    status = hosts.here.penstock("hosts", "status")
    assert status.returncode == 1
    assert "lost: " in status.stdout
    stopped = hosts.here.penstock("hosts", "down")
    assert stopped.returncode == 1
    assert "host right was not restored" in stopped.stderr
    assert "run there: penstock nodes down far; penstock undo" in stopped.stderr
    assert hosts.others["left"].journal().open_entries() == []
    right = hosts.others["right"].penstock("nodes", "status", "--json")
    assert [c["cluster"] for c in json.loads(right.stdout)["clusters"]] == ["far"]
    python.chmod(0o755)
    hosts.run("down")
    hosts.assert_nothing_left()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.95])
def test_undo_restores_every_host_after_a_kill(hosts: Hosts, share: float) -> None:
    """Kill the coordinator after a `share` of the time that a start takes."""
    began = time.monotonic()
    assert hosts.start().returncode == 0
    took_s = time.monotonic() - began
    hosts.record_tokens()
    hosts.run("down")
    coordinator = hosts.start_in_background()
    time.sleep(share * took_s)
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    hosts.record_tokens()
    undone = hosts.here.penstock("undo")
    assert undone.returncode == 0, undone.stderr
    if (
        "Nothing to undo" in undone.stdout
        and hosts.here.penstock("hosts", "status").returncode == 0
    ):
        hosts.run("down")  # the start was complete
    hosts.assert_nothing_left()


def test_a_failed_start_on_one_host_leaves_no_nodes_on_the_other(hosts: Hosts) -> None:
    """The second host has a cluster of that name already."""
    right = hosts.others["right"]
    platform = right.where / "one.yaml"
    platform.write_text("{penstock_platform: 1, name: far, hosts: [{group: x, count: 1}]}")
    assert right.penstock("nodes", "up", str(platform)).returncode == 0
    result = hosts.start()
    assert result.returncode == 1
    assert "host right: " in result.stderr
    assert hosts.others["left"].journal().open_entries() == []
    status = right.penstock("nodes", "status", "--json")
    assert len(json.loads(status.stdout)["clusters"]) == 1
    right.penstock("nodes", "down")
