"""One cluster on two hosts, which are network namespaces with a state of their own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.host.cgroups.cgroup import hierarchies
from penstock.spec.units import parse_duration
from tests.support import commands

from .node_ground import NODES, Ground

pytestmark = [*NODES, pytest.mark.long]

LATENCY = "5ms"
_NUMBER = itertools.count()
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
udp.settimeout(5)
times = []
for _ in range(41):
    start = time.perf_counter()
    udp.sendto(bytes(64), (sys.argv[1], 7000))
    udp.recv(2000)
    times.append(time.perf_counter() - start)
print(min(times[1:]))
"""


@dataclass
class Hosts:
    """This host (the coordinator) and two others."""

    here: Ground
    others: dict[str, Ground]
    file: Path
    platform: Path

    def up(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.here.penstock(
            "hosts", "up", str(self.platform), "--hosts", str(self.file), *words
        )

    def start_up(self) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "penstock", "hosts", "up", str(self.platform)]
        return subprocess.Popen(
            [*line, "--hosts", str(self.file)],
            env=self.here.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *words: str) -> str:
        done = self.here.penstock("hosts", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def grounds(self) -> list[Ground]:
        return [self.here, *self.others.values()]

    def note(self) -> None:
        """Note the tokens in the journals, by which their objects are recognised."""
        for ground in self.grounds():
            ground.seen()

    def nothing_left(self) -> None:
        """No change of any host is open, and nothing of the nodes is there."""
        for ground in self.grounds():
            assert ground.journal().open_entries() == []
            assert ground.tokens or ground is self.here
            left = {
                k: v for k, v in ground.seen().items() if v and k not in ("groups", "processes")
            }
            groups = [g for r in _roots() for g in r.glob("penstock-*")]
            left["groups"] = [g for g in groups if any(t in g.name for t in ground.tokens)]
            assert not any(left.values()), left


def _roots() -> set[Path]:
    """Roots of the hierarchies of control groups."""
    layout = hierarchies()
    return {*layout.v1.values(), *([layout.unified] if layout.unified else [])}


@pytest.fixture(name="hosts")
def two_hosts() -> Iterator[Hosts]:
    name = (
        f"pr{os.getpid() % 10000}{next(_NUMBER)}"  # links of a removed namespace stay for a moment
    )
    where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))

    def ip(*words: str) -> None:
        commands.run(["ip", *words], check=True, capture_output=True)

    grounds = {}
    try:
        ip("link", "add", name, "type", "bridge")
        ip("addr", "add", "10.88.251.254/24", "dev", name)
        ip("link", "set", name, "up")
        workers = []
        for i, host in enumerate(("left", "right")):
            there, link = f"{name}-{i}", f"{name}v{i}"
            ip("netns", "add", there)
            ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", there)
            ip("link", "set", link, "master", name, "up")
            ip("-n", there, "addr", "add", f"10.88.251.{i + 1}/24", "dev", "e0")
            ip("-n", there, "link", "set", "e0", "up")
            ip("-n", there, "link", "set", "lo", "up")
            (where / host).mkdir()
            grounds[host] = Ground.made(where / host)
            state = grounds[host].environment["PENSTOCK_STATE"]
            grounds[host].environment["PENSTOCK_RUNTIME"] = f"{state}/run"
            workers.append(
                f"  - {{name: {host}, netns: {there}, address: 10.88.251.{i + 1}, link: 1 Gbit/s, "
                f"mtu: 1500, state: {state}, python: {where / host / 'python'}}}"
            )
            python = where / host / "python"
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
        (where / "here").mkdir()
        here = Ground.made(where / "here")
        facts = here.penstock("hosts", "facts", "--json")
        assert facts.returncode == 0, facts.stderr
        (where / "facts").mkdir()
        for host in grounds:
            (where / "facts" / f"{host}.json").write_text(facts.stdout)
        file, platform = where / "hosts.yaml", where / "far.yaml"
        file.write_text(
            "\n".join(
                [
                    "penstock_hosts: 1",
                    "listen: 10.88.251.254",
                    "workers:",
                    *workers,
                    "paths: [{from: '*', to: '*', latency: 20us}]",
                ]
            )
        )
        platform.write_text(PLATFORM)
        yield Hosts(here, grounds, file, platform)
    finally:
        for ground in grounds.values():
            ground.penstock("undo", "--all")
        for i in range(2):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", f"{name}-{i}")
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", name)
        shutil.rmtree(where, ignore_errors=True)


def test_nodes_on_two_hosts_are_one_cluster(hosts: Hosts) -> None:
    """Names, latency and changes are those of a cluster on one host; `down` restores both hosts."""
    done = hosts.up("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["host_of"] == {
        "n-0": "left",
        "n-1": "left",
        "m-0": "right",
        "m-1": "right",
    }
    again = hosts.up()
    assert again.returncode == 2
    assert "cluster far is up" in again.stderr
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
    hosts.note()
    shown = json.loads(hosts.run("status", "--json"))["hosts"]
    assert [len(h["status"]["nodes"]) for h in shown.values()] == [2, 2]
    failed = hosts.here.penstock("hosts", "exec", "m-1", "--", "sh", "-c", "echo no >&2; exit 7")
    assert (failed.returncode, failed.stderr) == (7, "no\n")
    hosts.run("down")
    hosts.nothing_left()


def test_a_lost_host_is_named_and_the_others_are_restored(hosts: Hosts) -> None:
    assert hosts.up().returncode == 0
    hosts.note()
    python = hosts.others["right"].where / "python"
    python.chmod(0)
    shown = hosts.here.penstock("hosts", "status")
    assert shown.returncode == 1
    assert "lost: " in shown.stdout
    stopped = hosts.here.penstock("hosts", "down")
    assert stopped.returncode == 1
    assert "host right was not restored" in stopped.stderr
    assert "run there: penstock nodes down far; penstock undo" in stopped.stderr
    assert hosts.others["left"].journal().open_entries() == []
    right = hosts.others["right"].penstock("nodes", "status", "--json")
    assert [c["cluster"] for c in json.loads(right.stdout)["clusters"]] == ["far"]
    python.chmod(0o755)
    hosts.run("down")
    hosts.nothing_left()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.95])
def test_undo_restores_every_host_after_a_kill(hosts: Hosts, share: float) -> None:
    """`share`: of the time that a start takes, after which the coordinator is killed."""
    began = time.monotonic()
    assert hosts.up().returncode == 0
    took_s = time.monotonic() - began
    hosts.note()
    hosts.run("down")
    coordinator = hosts.start_up()
    time.sleep(share * took_s)
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    hosts.note()
    undone = hosts.here.penstock("undo")
    assert undone.returncode == 0, undone.stderr
    if (
        "Nothing to undo" in undone.stdout
        and hosts.here.penstock("hosts", "status").returncode == 0
    ):
        hosts.run("down")  # it was complete
    hosts.nothing_left()


def test_a_host_that_fails_to_start_its_nodes_leaves_none(hosts: Hosts) -> None:
    """The second host has a cluster of that name already."""
    right = hosts.others["right"]
    one = right.where / "one.yaml"
    one.write_text("{penstock_platform: 1, name: far, hosts: [{group: x, count: 1}]}")
    assert right.penstock("nodes", "up", str(one)).returncode == 0
    done = hosts.up()
    assert done.returncode == 1
    assert "host right: " in done.stderr
    assert hosts.others["left"].journal().open_entries() == []
    status = right.penstock("nodes", "status", "--json")
    assert len(json.loads(status.stdout)["clusters"]) == 1
    right.penstock("nodes", "down")
