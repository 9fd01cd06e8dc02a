"""Routes between networks through the router of one host, and of two hosts (network namespaces)."""

from __future__ import annotations

import json

import pytest

from .node_ground import NODES, Ground, one_ground
from .remote_hosts import RemoteHosts

__all__ = ["one_ground"]  # a fixture
pytestmark = [*NODES, pytest.mark.long]

PLATFORM = """
penstock_platform: 1
name: routed
hosts:
  - {group: a, count: 1, memory: 128MiB, interfaces: [{network: one}], host: "*"}
  - {group: b, count: 1, memory: 128MiB, interfaces: [{network: two}], host: "*"}
  - {group: c, count: 1, memory: 128MiB, interfaces: [{network: alone}], host: "*"}
networks:
  - {name: one, host: true, latency: 2ms}
  - {name: two, host: true, latency: 2ms}
  - {name: alone}
"""
SERVE = """
import socket
with socket.create_server(("", 7000)) as server:
    while True:
        other, address = server.accept()
        other.sendall(f"{address[0]}\\n".encode())
        other.close()
"""
ASK = """
import socket, sys, time
until = time.monotonic() + 60
while True:
    try:
        with socket.create_connection((sys.argv[1], 7000), timeout=30) as other:
            print(other.makefile().readline().strip())
    except ConnectionRefusedError:  # the server starts later
        assert time.monotonic() < until
        time.sleep(0.1)
        continue
    except OSError as error:
        print(type(error).__name__, error.errno)
    break
"""
START = f"nohup python3 -c '{SERVE}' >/dev/null 2>&1 &"


def check(ground: Ground, verb: str) -> None:
    """Nodes of routed networks reach each other by name with own addresses; other nodes do not."""
    for node in ("a-0", "b-0", "c-0"):
        started = ground.penstock(verb, "exec", node, "--", "sh", "-c", START)
        assert started.returncode == 0, started.stderr

    def reply(node: str, target: str) -> str:
        result = ground.penstock(verb, "exec", node, "--", "python3", "-c", ASK, target)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    addresses = {
        node: ground.penstock(
            verb, "exec", node, "--", "sh", "-c", f"getent hosts {node} | cut -d' ' -f1"
        ).stdout.strip()
        for node in ("a-0", "b-0")
    }
    assert reply("a-0", "b-0") == addresses["a-0"]
    assert reply("b-0", "a-0") == addresses["b-0"]
    assert reply("a-0", "c-0").startswith("OSError")
    assert reply("c-0", "a-0").startswith("OSError")


def test_nodes_of_one_host_reach_those_of_other_networks(ground: Ground) -> None:
    platform = ground.where / "routed.yaml"
    platform.write_text(PLATFORM)
    before = ground.host_objects()
    up = ground.penstock("nodes", "up", str(platform))
    assert up.returncode == 0, up.stderr
    check(ground, "nodes")
    assert ground.penstock("nodes", "down").returncode == 0
    ground.assert_host_objects(before)


def test_nodes_of_two_hosts_reach_those_of_other_networks() -> None:
    with RemoteHosts.up(("left", "right")) as hosts:
        platform = hosts.where / "routed.yaml"
        text = PLATFORM
        for host in ("left", "right", "left"):
            text = text.replace('"*"', host, 1)
        platform.write_text(text)
        up = hosts.here.penstock("hosts", "up", str(platform), "--hosts", str(hosts.file), "--json")
        assert up.returncode == 0, up.stderr
        assert json.loads(up.stdout)["host_of"] == {"a-0": "left", "b-0": "right", "c-0": "left"}
        check(hosts.here, "hosts")
        hosts.record_tokens()
        assert hosts.here.penstock("hosts", "down").returncode == 0
        hosts.assert_nothing_left()
