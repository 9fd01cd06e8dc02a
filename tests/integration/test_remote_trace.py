"""Nodes on two hosts, which are network namespaces: one trace, and copies of files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.analyse.traces.traced_run import TracedRun

from .node_ground import NODES
from .remote_hosts import RemoteHosts

pytestmark = [*NODES, pytest.mark.long]

PLATFORM = """
penstock_platform: 1
name: far
hosts:
  - {group: n, count: 2, memory: 128MiB, host: left}
  - {group: m, count: 1, memory: 128MiB, host: right}
"""
TURNS = 23
#: two nodes write in turn, each 50 ms after the message of the other
TAKE_TURNS = f"""
import os, socket, time
first = socket.gethostname() == "n-0"
other = ("m-0" if first else "n-0", 7001)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7001))

def wait(message):
    while udp.recv(100) != message:
        pass

udp.settimeout(30 if first else 0.2)
if first:
    wait(b"ready")
else:
    while True:
        udp.sendto(b"ready", other)
        try:
            wait(b"done")
            break
        except TimeoutError:
            pass
udp.settimeout(30)
file = os.open("/root/turns", os.O_CREAT | os.O_WRONLY)
for turn in range({TURNS}):
    if turn:
        wait(b"done")
    time.sleep(0.05)
    os.write(file, bytes(512))
    udp.sendto(b"done", other)
"""


@pytest.fixture(name="hosts")
def two_hosts() -> Iterator[RemoteHosts]:
    with RemoteHosts.up(("left", "right")) as hosts:
        platform = hosts.where / "far.yaml"
        platform.write_text(PLATFORM)
        up = run(hosts, "hosts", "up", str(platform), "--hosts", str(hosts.file))
        assert up.returncode == 0, up.stderr
        hosts.record_tokens()
        yield hosts
        assert run(hosts, "hosts", "down").returncode == 0
        hosts.assert_nothing_left()


def run(hosts: RemoteHosts, *arguments: str) -> subprocess.CompletedProcess[str]:
    return hosts.here.penstock(*arguments)


def writes(run: TracedRun) -> list[dict[str, Any]]:
    """Successful writes in order of time, with the names of their files."""
    events = run.table("io_events", ["t_ns", "op", "file_id", "done_bytes"]).to_pylist()
    with_paths = [{**e, "path": run.named.get(e["file_id"])} for e in events if "write" in e["op"]]
    return sorted((e for e in with_paths if e["done_bytes"] == 512), key=lambda e: e["t_ns"])


def test_a_trace_of_two_hosts_orders_their_writes(hosts: RemoteHosts) -> None:
    """Nodes of two hosts write in turn; an untraced node writes at the same time."""
    busy = "nohup sh -c 'while :; do head -c 512 /dev/zero >/root/other; done' >/dev/null 2>&1 &"
    assert run(hosts, "hosts", "exec", "n-1", "--", "sh", "-c", busy).returncode == 0
    bundle = hosts.where / "traced"
    arguments = ("hosts", "trace", "-o", str(bundle), "--json")
    nodes = ("n-0", "m-0", "--")
    result = run(hosts, *arguments, "--monitor", "0.2", *nodes, "python3", "-c", TAKE_TURNS)
    assert result.returncode == 0, result.stderr
    traced = TracedRun(bundle)
    turns = writes(traced)
    assert [str(e["path"]).partition(":")[0] for e in turns] == ["n-0", "m-0"] * TURNS
    assert all(str(e["path"]).endswith("/turns") for e in turns)
    owners = {row["host_id"]: row["node_id"] for row in traced.table("threads").to_pylist()}
    assert owners == {"left": "n-0", "right": "m-0"}
    summary = json.loads(result.stdout)
    assert summary["lost"] == 0
    assert summary["source"]["not_known"][0].startswith("order of events on two hosts within ")
    assert {h: host["nodes"] for h, host in traced.manifest["hosts"].items()} == {
        "left": ["n-0"],
        "right": ["m-0"],
    }
    samples = traced.table("samples", ["host_id", "source", "entity"]).to_pylist()
    groups = {(s["host_id"], s["entity"]) for s in samples if s["source"] == "cgroup"}
    assert {("left", "n-0"), ("right", "m-0")} <= groups
    assert {s["entity"].partition(":")[0] for s in samples if s["source"] == "memory"} == {
        "left",
        "right",
    }
    second = run(hosts, *arguments, *nodes, "true")
    assert (second.returncode, "exists already" in second.stderr) == (2, True)
    failed = run(hosts, "hosts", "trace", "-o", f"{bundle}2", "m-0", "--", "sh", "-c", "exit 7")
    assert failed.returncode == 7, failed.stderr


def test_copy_files_to_nodes_of_all_hosts_and_back(hosts: RemoteHosts) -> None:
    tree = hosts.where / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "run.sh").write_text("echo from $(hostname)\n")
    copied = run(hosts, "hosts", "cp", str(tree), "*:/opt", "--json")
    assert copied.returncode == 0, copied.stderr
    assert json.loads(copied.stdout) == {"nodes": ["n-0", "n-1", "m-0"]}
    printed = run(hosts, "hosts", "exec", "*", "--", "sh", "/opt/tree/deep/run.sh")
    assert printed.stdout.splitlines() == [f"{n} | from {n}" for n in ("n-0", "n-1", "m-0")]
    copy = hosts.where / "back"
    assert run(hosts, "hosts", "cp", "m-0:/opt/tree", str(copy)).returncode == 0
    assert (copy / "deep" / "run.sh").read_text() == "echo from $(hostname)\n"
    missing = run(hosts, "hosts", "cp", "m-0:/missing", str(hosts.where))
    assert (missing.returncode, "m-0:/missing cannot be read" in missing.stderr) == (1, True)
