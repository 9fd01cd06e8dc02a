"""kill -9 at many points of up, set, run and down: `penstock undo` then restores the host.

The command, the supervisor and the processes that build nodes are killed at their n-th change to
the host. The supervisor is killed at random times too. PENSTOCK_CRASH_POINTS sets the number of
points (default 12; the full sweep is 60 or more).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.cluster.cluster import registered
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.journal import new_token
from penstock.host.journal.undo import undo
from penstock.host.processes.daemon import Daemon
from tests.integration.node_ground import NODES, Ground, one_ground
from tests.support.waiting import until, wait_for_end

CHILD = Path(__file__).with_name("crash_nodes.py")
HOOK = Path(__file__).with_name("crash_points")
POINTS = int(os.environ.get("PENSTOCK_CRASH_POINTS", "12"))

__all__ = ["one_ground"]  # a fixture
pytestmark = NODES


def start(ground: Ground, crash: str, runtime: str = "namespaces") -> subprocess.Popen[str]:
    path = os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")])
    environment = {**ground.environment, "PENSTOCK_CRASH": crash, "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, str(CHILD), runtime],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def changes_of(ground: Ground, role: str) -> int:
    """Number of changes that a role makes in a complete life of a cluster."""
    counts = ground.where / f"count-{role}"
    child = start(ground, f"{role}:0:{counts}")
    output, errors = child.communicate(timeout=120)
    assert output.split()[-1] == "end", errors
    until(lambda: counts.exists() and counts.read_text())  # a process writes it at its end
    return int(counts.read_text())


def await_settled(ground: Ground) -> None:
    """Wait until a supervisor that lost its command has either adopted the cluster or ended it."""
    until(lambda: not any(_unkept(daemon) for daemon in registered().values()))


def _unkept(daemon: Daemon) -> list[str]:
    """Clusters of a supervisor that their command has not confirmed; all while it is ending."""
    try:
        clusters: list[str] = daemon.call("ping")["unkept"]
    except PenstockError:
        return list(registered())
    daemon.hang_up()
    return clusters


class Planted:
    """A foreign group, mount and directory, which undo must not touch."""

    def __init__(self, ground: Ground) -> None:
        self.group = next(iter(hierarchies().v1.values()), None) or hierarchies().unified
        assert self.group is not None
        self.group = self.group / f"penstock-foreign-one-{new_token()}"
        self.group.mkdir()
        self.mount = ground.where / "state-passable" / "clusters" / "gt-foreign"
        self.mount.mkdir(parents=True)
        argv = ["mount", "-t", "tmpfs", f"penstock:{new_token()}", str(self.mount)]
        subprocess.run(argv, check=True)

    def exists(self) -> bool:
        return self.group.is_dir() and os.path.ismount(self.mount)

    def remove(self) -> None:
        subprocess.run(["umount", str(self.mount)], check=True)
        self.mount.rmdir()
        self.group.rmdir()


def kill(pid: int) -> None:
    """Send SIGKILL and wait until the process has gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def check_undone(ground: Ground, before: dict[str, Any], context: str, everything: bool) -> bool:
    """Undo twice: true if the first changed something; the second must change nothing."""
    ground.host_objects()  # records the tokens, which a completed undo removes from the journal
    first = undo(ground.journal(), everything=everything)
    assert [u for u in first if u.outcome in ("failed", "left")] == [], context
    ground.assert_host_objects(before, context)
    assert undo(ground.journal(), everything=everything) == [], context
    assert ground.journal().open_entries() == [], context
    return any(u.outcome == "undone" for u in first)


def test_undo_after_a_kill_at_many_points(ground: Ground) -> None:
    rng = random.Random(20261122)
    totals = {role: changes_of(ground, role) for role in ("command", "nodes")}
    totals["spawn"] = 60
    assert totals["nodes"] > 150, "the supervisor's changes are not counted"
    planted = Planted(ground)
    before = ground.host_objects()
    shares = {"command": 0.25, "nodes": 0.5, "spawn": 0.25}
    killed = undone = 0
    phases: set[str] = set()
    try:
        for role, share in shares.items():
            count = max(2, round(POINTS * share))
            step = totals[role] / count
            for number in range(count):
                change = 1 + int(number * step) + rng.randrange(max(1, int(step)))
                child = start(ground, f"{role}:{change}")
                output, errors = child.communicate(timeout=120)
                context = (
                    f"{role} killed at change {change}, in {output.split()[-1:]}: {errors[-300:]}"
                )
                phases |= set(output.split()[-1:])
                killed += child.returncode != 0
                await_settled(ground)
                undone += check_undone(ground, before, context, everything=role == "command")
                assert planted.exists(), context
    finally:
        planted.remove()
    assert killed > POINTS // 2, "too few processes were killed before their end"
    assert undone > POINTS // 3, "too few kills left something to undo"
    assert {"up", "down"} <= phases


@pytest.mark.skipif(shutil.which("runc") is None, reason="needs runc")
def test_undo_after_a_kill_while_runc_starts_the_nodes(ground: Ground) -> None:
    before = ground.host_objects()
    for number in range(max(2, POINTS // 5)):
        change = 60 + 400 * number // max(2, POINTS // 5)
        child = start(ground, f"nodes:{change}", "runc")
        output, errors = child.communicate(timeout=120)
        context = f"supervisor killed at change {change}, in {output.split()[-1:]}: {errors[-300:]}"
        await_settled(ground)
        check_undone(ground, before, context, everything=False)


def test_undo_after_the_supervisor_is_killed_at_random_times(ground: Ground) -> None:
    rng = random.Random(7)
    before = ground.host_objects()
    for _ in range(max(3, POINTS // 4)):
        child = start(ground, "")
        deadline = time.monotonic() + 60
        while not (supervisors := list(registered().values())) and time.monotonic() < deadline:
            time.sleep(0.002)
        assert supervisors, "no supervisor"
        time.sleep(rng.random() * 0.8)
        kill(supervisors[0].pid)
        child.communicate(timeout=60)
        check_undone(ground, before, "supervisor killed", everything=False)


def test_undo_spares_a_living_owner_and_its_data(ground: Ground) -> None:
    before = ground.host_objects()
    data = ground.where / "data"
    data.mkdir()
    child = ground.where / "child.py"
    child.write_text(
        "import sys, json\n"
        "from pathlib import Path\n"
        "from penstock.emulate.cluster.cluster import Cluster\n"
        "from penstock.spec.cluster import *\n"
        "from penstock.host.journal.journal import Journal\n"
        "from penstock.profile.load import load_profile\n"
        "profile = json.loads(load_profile('sata-ssd').json)\n"
        f"disk = DiskSpec('data', profile=profile, directory=Path({str(data)!r}))\n"
        "spec = ClusterSpec('gt', (NodeSpec('one', disks=(disk,)),))\n"
        "c = Cluster.up(spec, Journal(), outlive=True)\n"
        "c.exec('one', ['sh', '-c', 'echo kept > /disks/data/f; sync /disks/data/f'])\n"
        "print(json.dumps(c.described), flush=True)\n"
    )
    result = subprocess.run(
        [sys.executable, str(child)],
        env=ground.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    during = ground.host_objects()
    assert undo(ground.journal()) == []
    assert ground.host_objects() == during != before
    pid = next(iter(registered().values())).pid
    kill(pid)
    kinds = {u.kind for u in undo(ground.journal()) if u.outcome == "undone"}
    assert {"process", "cgroup", "directory"} <= kinds
    assert (data / "f").read_text() == "kept\n"
    ground.assert_host_objects(before)
    assert json.loads(result.stdout)["nodes"][0]["state"] == "running"


def test_the_cluster_of_a_dead_conductor_ends(ground: Ground) -> None:
    before = ground.host_objects()
    code = (
        "from penstock.emulate.cluster.cluster import Cluster\n"
        "from penstock.spec.cluster import *\n"
        "from penstock.host.journal.journal import Journal\n"
        "c = Cluster.up(ClusterSpec('gt', (NodeSpec('one'),)), Journal(), outlive=False)\n"
        "print(c.pid, flush=True)\n"
        "input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env=ground.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    supervisor = int(child.stdout.readline())
    assert ground.host_objects() != before
    kill(child.pid)
    child.wait()
    wait_for_end(supervisor)
    assert undo(ground.journal()) == []
    ground.assert_host_objects(before)
