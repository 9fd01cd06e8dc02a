"""`nodes status` names the failed parts of a live cluster and exits with status 1."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from tests.integration.node_ground import NODES, Ground, one_ground
from tests.support.waiting import wait_for_end

__all__ = ["one_ground"]  # a fixture
pytestmark = NODES

PLATFORM = """
penstock_platform: 1
name: gt
hosts:
  - {group: n, count: 1, disks: [{name: data, directory: files}]}
  - {group: m, count: 1}
network: {bandwidth: 1 Gbit/s}
"""


def process(ground: Ground, kind: str) -> int:
    entries = ground.journal().open_entries()
    (pid,) = {int(e.facts["pid"]) for e in entries if e.target == f"penstock-{kind}"}
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def status(ground: Ground, *arguments: str) -> tuple[int, str]:
    result = ground.penstock("nodes", "status", *arguments)
    return result.returncode, result.stdout


def test_links_that_are_gone_or_changed_are_named(ground: Ground) -> None:
    platform = ground.where / "p.yaml"
    platform.write_text(
        PLATFORM.replace("name: gt", "name: gtl").replace(
            "directory: files", "size: 1MiB, limits: {read: 9MB/s}"
        )
    )
    assert ground.penstock("nodes", "up", str(platform)).returncode == 0
    (namespace,) = (ground.where / "run").glob("netns-*")
    inside = ["nsenter", f"--net={namespace}"]
    listed = subprocess.run([*inside, "ip", "-json", "link"], capture_output=True, check=True)
    links = [link["ifname"] for link in json.loads(listed.stdout) if link["ifname"][0] == "n"]
    assert (status(ground)[0], len(links)) == (0, 2)
    subprocess.run([*inside, "tc", "qdisc", "del", "dev", links[0], "root"], check=True)
    subprocess.run([*inside, "ip", "link", "del", links[1]], check=True)
    code, text = status(ground, "--json")
    failures = json.loads(text)["clusters"][0]["failures"]
    assert (code, [f["part"] for f in failures]) == (1, ["link", "link"])
    assert "requested in_bps 125000000.0, found None" in failures[0]["message"]
    assert "network net: " in failures[1]["message"]
    assert "No such device" in failures[1]["message"]
    # the values of a stopped node are those of its next start; its links are no failures
    assert ground.penstock("nodes", "set", "*", "state=down").returncode == 0
    assert ground.penstock("nodes", "set", "m-0", "latency=7ms").returncode == 0
    code, text = status(ground, "--json")
    (node,) = [n for n in json.loads(text)["clusters"][0]["nodes"] if n["name"] == "m-0"]
    asked = node["links"]["net"]["asked"]
    assert (code, asked["delay"]["mean_s"], asked["in_delay"]["mean_s"]) == (0, 7e-3, 7e-3)
    assert ground.penstock("nodes", "down").returncode == 0


def test_parts_that_have_died_are_named(ground: Ground) -> None:
    platform = ground.where / "p.yaml"
    platform.write_text(PLATFORM)
    (ground.where / "files").mkdir()
    assert ground.penstock("nodes", "up", str(platform)).returncode == 0
    assert ground.penstock("nodes", "set", "m-0", "latency=5ms").returncode == 0
    code, text = status(ground, "--json")
    assert (code, json.loads(text)["failures"]) == (0, [])

    relay, server = process(ground, "relay"), process(ground, "disk")
    end(relay)
    code, text = status(ground)
    assert code == 1
    assert f"gt: relay (process {relay}) has died: no frame passes on net" in text

    os.kill(server, signal.SIGSTOP)
    code, text = status(ground, "gt", "--json")
    os.kill(server, signal.SIGCONT)
    failures = json.loads(text)["clusters"][0]["failures"]
    assert (code, [(f["part"], f["pid"]) for f in failures]) == (
        1,
        [("relay", relay), ("disk server", server)],
    )
    assert "does not answer" in failures[1]["message"]
    end(server)
    code, text = status(ground, "gt")
    assert code == 1
    assert f"disk server (process {server}) has died: no file can be used" in text
    assert "n-0.data" in text

    supervisor = process(ground, "nodes")
    end(supervisor)
    code, text = status(ground)
    assert code == 1
    assert f"gt: its supervisor (process {supervisor}) has died" in text
    assert "No node is up" not in text
    code, text = status(ground, "gt", "--json")
    (failure,) = json.loads(text)["failures"]
    assert (code, failure["part"], failure["pid"]) == (1, "supervisor", supervisor)
    refused = ground.penstock("nodes", "set", "m-0", "cpus=1")
    assert (refused.returncode, "has died" in refused.stderr) == (2, True)
    assert ground.penstock("undo").returncode == 0
    assert status(ground) == (0, "No node is up.\n")
