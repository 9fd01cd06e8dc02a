"""Nodes of other hosts: the commands that enter them, and hosts that do not respond."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError, Refused
from penstock.host.processes.processes import start_ticks
from penstock.parts.remote.cluster.coordinator import RemoteCluster
from penstock.parts.remote.running.nodes import ClusterOnHosts
from penstock.parts.remote.workers import on_host, python_on
from penstock.spec.study import Worker
from tests.support import commands

ARGUMENTS = ["a b", "$HOME", "it's", 'say "x"', "two\nlines", "*", ""]
#: prints its arguments as JSON
ECHO = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def output(argv: list[str]) -> Any:
    result = commands.run(argv, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_arguments_of_a_command_arrive_unchanged_over_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshd passes the last argument of ssh to a shell."""
    program(tmp_path / "ssh", '#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    echo = program(tmp_path / "echo words", ECHO)
    host = Worker(name="far", ssh="root@192.0.2.1", ssh_options=("-p", "2222"))
    argv = on_host(host, [str(echo), *ARGUMENTS])
    assert argv[:5] == ["ssh", "-o", "BatchMode=yes", "-p", "2222"]
    assert argv[-3:-1] == ["--", "root@192.0.2.1"]
    assert output(argv) == ARGUMENTS


def test_a_module_runs_with_the_state_of_its_host(tmp_path: Path) -> None:
    code = '#!/bin/sh\nprintf \'["%s", "%s", "%s"]\' "$PENSTOCK_STATE" "$PENSTOCK_RUNTIME" "$3"\n'
    python = program(tmp_path / "python", code)
    host = Worker(name="far", python=str(python), state="/var/tmp/far")
    assert output(python_on(host, "m", "x y")) == ["/var/tmp/far", "/var/tmp/far/run", "x y"]


class Hosts:
    """Two hosts: `near` answers with a file, `far` has no Python. Node n-0 of `near` is this process."""

    def __init__(self, place: Path) -> None:
        self.reply = place / "reply.json"
        self.echo = program(place / "enter", ECHO)
        python = program(place / "python", f'#!/bin/sh\ncat "{self.reply}"\n')
        workers = (Worker(name="near", python=str(python)), Worker(name="far", python="/no/python"))
        self.remote = RemoteCluster(
            "lab", "key", "192.0.2.9", workers, {"n-0": "near", "m-0": "far"}, {"m-0": {"net": "a"}}
        )
        self.answer(start_ticks(os.getpid()))

    def answer(self, ticks: int | None) -> None:
        """Set the reply of the near host: its node began at `ticks`."""
        node = {
            "name": "n-0",
            "state": "running",
            "pid": os.getpid(),
            "start_ticks": ticks,
            "group": "g",
            "paths": {"pids": "/sys/fs/cgroup/pids/g"},
            "memory_bytes": None,
            "missing": [],
            "group_token": "t",
            "addresses": {"net": "10.88.0.1"},
            "image": None,
            "failure": "",
            "entrance": {"pid": os.getpid(), "groups": [], "capabilities": 0, "filter": "/f"},
            "disks": {},
        }
        document = {"python": "/opt/python", "program": str(self.echo), "nodes": [node]}
        self.reply.write_text(json.dumps(document))

    def nodes(self) -> dict[str, RunningNode]:
        return ClusterOnHosts(self.remote).nodes


@pytest.fixture(name="hosts")
def two_hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def test_a_node_is_entered_by_the_programs_of_its_host(hosts: Hosts) -> None:
    node = hosts.nodes()["n-0"]
    assert (node.address, node.pid, node.cgroup.paths) == ("10.88.0.1", 0, {})
    described, *command = output(node.enter([sys.executable, "-c", *ARGUMENTS], env={"A": "b c"}))
    assert command == ["/opt/python", "-c", *ARGUMENTS]
    entered = json.loads(described)
    assert (entered["pid"], entered["env"]["A"]) == (os.getpid(), "b c")


@pytest.mark.parametrize("number", [1, 5])
def test_another_process_with_the_pid_of_a_node_is_not_entered(hosts: Hosts, number: int) -> None:
    """`number` is added to the start time of the process with the pid."""
    hosts.answer((start_ticks(os.getpid()) or 0) + number)
    result = commands.run(hosts.nodes()["n-0"].enter(["true"]), capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (125, "")
    assert "the node has died" in result.stderr


def test_an_ended_process_is_not_entered(hosts: Hosts) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    reply = json.loads(hosts.reply.read_text())
    reply["nodes"][0]["entrance"]["pid"] = ended.pid
    hosts.reply.write_text(json.dumps(reply))
    result = commands.run(hosts.nodes()["n-0"].enter(["true"]), capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (125, "")


def test_nodes_of_a_host_that_does_not_respond_are_lost(hosts: Hosts) -> None:
    node = hosts.nodes()["m-0"]
    assert (node.state, node.address) == ("lost", "a")
    with pytest.raises(Refused, match=r"node m-0 is lost: host far: .*/no/python"):
        node.enter(["true"])
    with pytest.raises(PenstockError, match=r"host far: "):
        ClusterOnHosts(hosts.remote).status()


def test_a_node_that_its_host_lacks_is_lost(hosts: Hosts) -> None:
    reply = json.loads(hosts.reply.read_text())
    hosts.reply.write_text(json.dumps({**reply, "nodes": []}))
    assert hosts.nodes()["n-0"].state == "lost"
