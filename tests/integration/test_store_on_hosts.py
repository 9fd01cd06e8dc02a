"""MooseFS on six nodes of three hosts, which are network namespaces with their own state."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import commands

from .node_ground import NODES
from .remote_hosts import RemoteHosts

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("mfsmaster") is None, reason="needs moosefs-master"),
]

HOSTS = ("one", "two", "three")
CLIENTS = [f"{host}-{i}" for host in HOSTS for i in (0, 1)]
GROUP = """
  - group: {name}
    count: 2
    host: {name}
    roles: [storage, client]
    storage: {{read: 1ms, write: 1ms}}
    disks: [{{name: store, limits: {{read: 30MB/s, write: 30MB/s}}}}]
"""
PLATFORM = f"""
penstock_platform: 1
name: wide
hosts: {"".join(GROUP.format(name=name) for name in HOSTS)}
network: {{bandwidth: 100 Mbit/s, latency: 1ms}}
store: {{engine: moosefs, keep: [results/*]}}
"""
UP = ("up", "moosefs", "-p", "wide.yaml", "--hosts", "hosts.yaml")


def write_operation(name: str) -> dict[str, Any]:
    return {"op": "write", "file": name, "size_bytes": 100_000}


#: a task on each client, and one that reads their files
WORKFLOW = {
    "schema": "penstock/workload/1",
    "name": "gather",
    "files": [],
    "tasks": [
        *(
            {"name": n, "stage": "part", "machine": n, "operations": [write_operation(n)]}
            for n in CLIENTS
        ),
        {
            "name": "all",
            "stage": "all",
            "operations": [
                *({"op": "read", "file": n, "size_bytes": 100_000} for n in CLIENTS),
                write_operation("sum"),
            ],
        },
    ],
}


class Hosts(RemoteHosts):
    """Three hosts, and a platform of two nodes on each."""

    def store(self, *arguments: str, status: int = 0) -> str:
        result = self.here.penstock("store", *arguments, cwd=self.where)
        assert result.returncode == status, result.stdout + result.stderr
        return result.stdout if status == 0 else result.stderr

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.store(*arguments, "--json"))

    def run(self, node: str, script: str) -> str:
        """Output of a script in a node."""
        result = self.here.penstock("hosts", "exec", node, "--", "/bin/sh", "-c", script)
        assert result.returncode == 0, result.stderr
        return result.stdout


def hosts_of(*, ssh: bool) -> Iterator[Hosts]:
    with Hosts.up(HOSTS, ssh=ssh) as hosts:
        (hosts.where / "wide.yaml").write_text(PLATFORM)
        yield hosts


@pytest.fixture(name="hosts")
def three_hosts() -> Iterator[Hosts]:
    yield from hosts_of(ssh=False)


@pytest.fixture(name="far")
def three_hosts_over_ssh() -> Iterator[Hosts]:
    if not Path("/usr/sbin/sshd").exists():
        pytest.skip("needs sshd")
    if not Path("/proc/self/ns/time").exists():
        pytest.skip("kernel: no time namespaces")
    yield from hosts_of(ssh=True)


def test_a_store_on_three_hosts_works(far: Hosts) -> None:
    """Use files, hints, staging and a workflow; nothing remains on any host.

    The times of tasks are in order although the clocks of the hosts differ.
    """
    status = far.ask(*UP)
    assert {s["node"]: s["up"] for s in status["servers"]} == dict.fromkeys(CLIENTS, True)
    far.record_tokens()
    assert far.ask(*UP)["nodes"] == status["nodes"]  # already up
    _write_and_locate(far)
    _stage(far)
    _run_workflow(far)
    assert "results/r: to be kept, but without a verified copy" in far.store("down", status=1)
    far.store("stage-out", "outside")
    assert (far.where / "outside/results/r").read_bytes() == b"r\n"
    far.store("down")
    far.assert_nothing_left()


def _write_and_locate(far: Hosts) -> None:
    far.store("tag", "three", "Replication=3", "--create", "--node", "one-0")
    far.store("tag", "own", "DP=local", "--create", "--node", "three-1")
    script = "head -c 300000 /dev/urandom >/store/{0} && sync /store/{0} && sha256sum /store/{0}"
    sums = {name: far.run(node, script.format(name)) for name, node in _WRITERS.items()}
    for name, text in sums.items():
        assert far.run("two-0", f"sha256sum /store/{name}") == text
    (own,) = far.ask("locate", "own")["extents"]
    assert own["nodes"] == ["three-1"]
    (extent,) = far.ask("locate", "three")["extents"]
    assert len(set(extent["nodes"])) == 3
    assert far.ask("get", "three", "Replication")["tags"] == {"Replication": "3"}


_WRITERS = {"three": "one-0", "own": "three-1"}


def _stage(far: Hosts) -> None:
    source = far.where / "inputs" / "deep"
    source.mkdir(parents=True)
    (source / "b with a blank").write_bytes(os.urandom(300_000))
    far.store("stage-in", "inputs", "/", "--node", "two-1")
    far.store("stage-out", "copies", "inputs/*")
    copy = far.where / "copies" / "inputs" / "deep" / "b with a blank"
    assert copy.read_bytes() == (source / "b with a blank").read_bytes()
    far.run("three-0", "mkdir /store/results && echo r >/store/results/r && sync /store/results/r")


def _run_workflow(far: Hosts) -> None:
    (far.where / "gather.json").write_text(json.dumps(WORKFLOW))
    arguments = ["workflow", "run", "gather.json", "-p", "wide.yaml", "--no-predict", "-o", "out"]
    result = far.here.penstock(*arguments, "--json", cwd=far.where)
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["placement"]) == {*CLIENTS, "sum"}
    (table,) = (far.where / "out").glob("**/workflow_tasks.parquet")
    tasks = {row["task"]: row for row in pq.read_table(table).to_pylist()}
    assert [tasks[name]["host"] for name in CLIENTS] == CLIENTS
    last = max(tasks[name]["end_s"] for name in CLIENTS)
    assert last <= tasks["all"]["ready_s"] <= tasks["all"]["start_s"] <= tasks["all"]["end_s"]


def test_a_lost_host_is_named_and_restored_later(hosts: Hosts) -> None:
    hosts.store(*UP)
    hosts.record_tokens()
    python = hosts.others["three"].where / "python"
    python.chmod(0)
    refused = hosts.store("tag", "x", "Replication=1", "--create", "--node", "three-0", status=1)
    assert "node three-0 is lost: host three: " in refused
    stopped = hosts.store("down", "--discard", "*", status=1)
    assert "host three was not restored" in stopped
    assert hosts.others["one"].journal().open_entries() == []
    python.chmod(0o755)
    undone = hosts.here.penstock("undo")
    assert undone.returncode == 0, undone.stderr
    hosts.assert_nothing_left()


def killed_at(hosts: Hosts, moment: str) -> bool:
    """Kill the start of the store at a moment; false if the store is complete."""
    argv = [sys.executable, "-m", "penstock", "store", *UP]
    log = hosts.where / "up.log"
    with log.open("wb") as sink:
        child = commands.popen(
            argv, env=hosts.here.environment, cwd=hosts.where, stdout=sink, stderr=sink
        )
    until = time.monotonic() + 120
    while not _reached(hosts, moment) and child.poll() is None:
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() in (0, -signal.SIGKILL), log.read_text()
    hosts.record_tokens()
    status = hosts.here.penstock("store", "status")
    return "the store wide is not complete" in status.stdout + status.stderr


@pytest.mark.parametrize("moment", ["nodes", "servers", "mounts"])
def test_undo_restores_every_host_after_a_kill(hosts: Hosts, moment: str) -> None:
    """Kill the command that starts the store as soon as `moment` is reached."""
    for _ in range(5):
        if killed_at(hosts, moment):
            break
        hosts.store("down", "--discard", "*")  # it was complete: this process was paused
    else:
        pytest.fail("the store was complete before the kill, five times")
    undone = hosts.here.penstock("undo")
    assert undone.returncode == 0, undone.stderr
    hosts.assert_nothing_left()


def _reached(hosts: Hosts, moment: str) -> bool:
    record = Path(hosts.here.environment["PENSTOCK_STATE"]) / "remote-clusters" / "wide"
    if moment == "nodes":
        hosts.record_tokens()
        return all(ground.tokens for ground in hosts.others.values())
    if moment == "servers":
        return (record / "store.json").exists()
    return any(ground.processes("mfsmount") for ground in hosts.others.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["directory"], "found directory on several hosts"),
        (["moosefs", "--watch"], "--watch: found it on several hosts"),
        (["moosefs", "--set", "network.bandwidth=600 Mbit/s"], "link"),
    ],
)
def test_unsupported_stores_on_several_hosts_are_refused(
    hosts: Hosts, arguments: list[str], message: str
) -> None:
    argv = ["up", *arguments, "-p", "wide.yaml", "--hosts", "hosts.yaml"]
    assert message in hosts.store(*argv, status=2)
    assert not (hosts.here.where / "state" / "remote-clusters" / "wide").exists()
