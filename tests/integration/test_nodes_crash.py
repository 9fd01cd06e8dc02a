"""kill -9 at many points of up, set, run and down: `penstock undo` then leaves the host as it was.

The command and the supervisor are killed at the n-th change they make to the host, the processes that build
nodes likewise, and the supervisor at random times. PENSTOCK_CRASH_POINTS sets how many points are tried
(default 12; the full sweep is 60 or more).
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
from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.journal import new_token
from penstock.host.journal.undo import undo
from penstock.host.processes.processes import Identity
from tests.integration.node_ground import NODES, Ground, one_ground

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
    """How many changes a whole life makes, and that it ends as it should."""
    counts = ground.where / f"count-{role}"
    child = start(ground, f"{role}:0:{counts}")
    output, errors = child.communicate(timeout=120)
    assert output.split()[-1] == "end", errors
    until = time.monotonic() + 20
    while not counts.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return int(counts.read_text())


def settled(ground: Ground) -> None:
    """Until a supervisor that lost its command has either kept the cluster or taken it down."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        busy = False
        for daemon in registered().values():
            said = daemon.call("ping")
            daemon.hang_up()
            busy |= bool(said["unkept"])
        if not busy:
            return
        time.sleep(0.05)


class Planted:
    """What undo must not touch: a foreign group, mount and directory, and a living owner's cluster."""

    def __init__(self, ground: Ground) -> None:
        self.group = next(iter(hierarchies().v1.values()), None) or hierarchies().unified
        assert self.group is not None
        self.group = self.group / f"penstock-foreign-one-{new_token()}"
        self.group.mkdir()
        self.mount = ground.where / "state-passable" / "clusters" / "gt-foreign"
        self.mount.mkdir(parents=True)
        line = ["mount", "-t", "tmpfs", f"penstock:{new_token()}", str(self.mount)]
        subprocess.run(line, check=True)

    def there(self) -> bool:
        return self.group.is_dir() and os.path.ismount(self.mount)

    def remove(self) -> None:
        subprocess.run(["umount", str(self.mount)], check=True)
        self.mount.rmdir()
        self.group.rmdir()


def kill(pid: int) -> None:
    """SIGKILL, and until it has gone."""
    identity = Identity.of(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while identity is not None and identity.alive and time.monotonic() < until:
        time.sleep(0.002)


def check_undone(ground: Ground, before: dict[str, Any], where: str, everything: bool) -> bool:
    """Undoes; gives whether there was something. The second time there is nothing."""
    ground.seen()  # learns the tokens that the journal forgets when nothing is left
    first = undo(ground.journal(), everything=everything)
    assert [u for u in first if u.outcome in ("failed", "left")] == [], where
    until = time.monotonic() + 5  # interfaces go a moment after their namespace
    while ground.seen() != before and time.monotonic() < until:
        time.sleep(0.05)
    assert ground.seen() == before, where
    assert undo(ground.journal(), everything=everything) == [], where
    assert ground.journal().open_entries() == [], where
    return any(u.outcome == "undone" for u in first)


def test_undo_after_a_kill_at_many_points(ground: Ground) -> None:
    draw = random.Random(20261122)
    totals = {role: changes_of(ground, role) for role in ("command", "nodes")}
    totals["spawn"] = 60
    assert totals["nodes"] > 150, "the supervisor's changes are not seen"
    planted = Planted(ground)
    before = ground.seen()
    share = {"command": 0.25, "nodes": 0.5, "spawn": 0.25}
    fell = undone = 0
    phases: set[str] = set()
    try:
        for role, part in share.items():
            count = max(2, round(POINTS * part))
            step = totals[role] / count
            for number in range(count):
                at = 1 + int(number * step) + draw.randrange(max(1, int(step)))
                child = start(ground, f"{role}:{at}")
                output, errors = child.communicate(timeout=120)
                where = f"{role} killed at change {at}, in {output.split()[-1:]}: {errors[-300:]}"
                phases |= set(output.split()[-1:])
                fell += child.returncode != 0
                settled(ground)
                undone += check_undone(ground, before, where, everything=role == "command")
                assert planted.there(), where
    finally:
        planted.remove()
    assert fell > POINTS // 2, "too few kills came before the end"
    assert undone > POINTS // 3, "the kills came at points where nothing was to be undone"
    assert {"up", "down"} <= phases


@pytest.mark.skipif(shutil.which("runc") is None, reason="needs runc")
def test_undo_after_a_kill_while_runc_makes_the_nodes(ground: Ground) -> None:
    before = ground.seen()
    for number in range(max(2, POINTS // 5)):
        at = 60 + 400 * number // max(2, POINTS // 5)
        child = start(ground, f"nodes:{at}", "runc")
        output, errors = child.communicate(timeout=120)
        where = f"supervisor killed at change {at}, in {output.split()[-1:]}: {errors[-300:]}"
        settled(ground)
        check_undone(ground, before, where, everything=False)


def test_undo_after_the_supervisor_is_killed_at_random_times(ground: Ground) -> None:
    draw = random.Random(7)
    before = ground.seen()
    for _ in range(max(3, POINTS // 4)):
        child = start(ground, "")
        until = time.monotonic() + 30
        while not (held := list(registered().values())) and time.monotonic() < until:
            time.sleep(0.002)
        assert held, "no supervisor"
        time.sleep(draw.random() * 0.8)
        kill(held[0].pid)
        child.communicate(timeout=60)
        check_undone(ground, before, "supervisor killed", everything=False)


def test_a_living_owner_and_its_data_are_left_alone(ground: Ground) -> None:
    before = ground.seen()
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
    done = subprocess.run(
        [sys.executable, str(child)],
        env=ground.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    during = ground.seen()
    assert undo(ground.journal()) == []
    assert ground.seen() == during != before
    pid = next(iter(registered().values())).pid
    kill(pid)
    kinds = {u.kind for u in undo(ground.journal()) if u.outcome == "undone"}
    assert {"process", "cgroup", "directory"} <= kinds
    assert (data / "f").read_text() == "kept\n"
    assert ground.seen() == before
    assert json.loads(done.stdout)["nodes"][0]["state"] == "running"


def test_what_a_dead_conductor_held_goes_with_it(ground: Ground) -> None:
    before = ground.seen()
    words = (
        "from penstock.emulate.cluster.cluster import Cluster\n"
        "from penstock.spec.cluster import *\n"
        "from penstock.host.journal.journal import Journal\n"
        "c = Cluster.up(ClusterSpec('gt', (NodeSpec('one'),)), Journal(), outlive=False)\n"
        "print(c.pid, flush=True)\n"
        "input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", words],
        env=ground.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    supervisor = Identity.of(int(child.stdout.readline()))
    assert supervisor is not None
    assert ground.seen() != before
    kill(child.pid)
    child.wait()
    until = time.monotonic() + 20
    while supervisor.alive and time.monotonic() < until:
        time.sleep(0.02)
    assert not supervisor.alive
    assert undo(ground.journal()) == []
    assert ground.seen() == before
