"""Shared stores on virtual nodes: kills, start, tags, staging, stop.

The kills come first, because they look for remains by name while no other store is up.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from tests.integration.node_ground import NODES, Ground
from tests.support import commands

pytestmark = NODES

PLATFORM = """
penstock_platform: 1
name: {name}
hosts:
  - {{group: head, count: 1, roles: [manager]}}
  - group: node
    count: 3
    roles: [storage, client]
    disks: [{{name: store, limits: {{read: 400MB/s, write: 400MB/s}}}}]
network: {{bandwidth: 1 Gbit/s, loopback: 1 GB/s, subnet: 10.93.0.0/24}}
store: {{engine: {engine}, keep: [results/*]}}
"""


def penstock(ground: Ground, *arguments: str, status: int = 0, env: Any = None) -> str:
    result = commands.run(
        [sys.executable, "-m", "penstock", *arguments],
        env={**ground.environment, **(env or {})},
        cwd=ground.where,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout if status == 0 else result.stderr


def write_platform(ground: Ground, engine: str, name: str = "gt-st") -> str:
    (ground.where / f"{name}.yaml").write_text(PLATFORM.format(name=name, engine=engine))
    return f"{name}.yaml"


def assert_clean(ground: Ground) -> None:
    """No object of this state remains on the host."""
    assert not any(ground.host_objects().values()), ground.host_objects()


@contextlib.contextmanager
def new_ground() -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    ground = Ground.create(directory)
    (directory / "run").mkdir()
    try:
        yield ground
    finally:
        undo(Journal(directory / "state" / "journal.jsonl"), own=True, everything=True)
        shutil.rmtree(directory)


def nodes_exist(ground: Ground) -> bool:
    return any(ground.where.glob("run/cluster-gt-kill*"))


def servers_have_started(ground: Ground) -> bool:
    return any(ground.where.glob("state-passable/clusters/gt-kill-*/store.json"))


def a_client_has_mounted(ground: Ground) -> bool:
    return bool(ground.processes("mfsmount"))


def killed_at(moment: Callable[[Ground], bool], ground: Ground, file: str) -> bool:
    """Kill the start of a store at a moment; false if it was complete earlier: this process was paused."""
    child = commands.popen(
        [sys.executable, "-m", "penstock", "store", "up", "moosefs", "-p", file],
        env=ground.environment,
        cwd=ground.where,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while not moment(ground):
        if child.poll() is not None:
            assert child.returncode == 0
            return False
        assert time.monotonic() < until
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    return any(entry.kind == "cluster" for entry in ground.journal().open_entries())


@pytest.mark.parametrize("moment", [nodes_exist, servers_have_started, a_client_has_mounted])
def test_undo_after_a_kill_at_any_moment(moment: Callable[[Ground], bool]) -> None:
    with new_ground() as ground:
        file = write_platform(ground, "moosefs", "gt-kill")
        for _ in range(5):
            if killed_at(moment, ground, file):
                break
            penstock(ground, "store", "down")
        else:
            pytest.fail("the store was complete before the kill, five times")
        status = commands.run(
            [sys.executable, "-m", "penstock", "store", "status"],
            env=ground.environment,
            capture_output=True,
            text=True,
        )
        output = status.stdout + status.stderr
        assert "the store gt-kill is not complete" in output, output
        assert "`penstock undo` removes it" in output
        undone = penstock(ground, "undo")
        assert "cluster    gt-kill" in undone, undone
        assert_clean(ground)


@pytest.fixture(name="ground", scope="module")
def module_ground() -> Iterator[Ground]:
    with new_ground() as ground:
        yield ground


@pytest.fixture(scope="module")
def moosefs(ground: Ground) -> Iterator[Ground]:
    file = write_platform(ground, "moosefs")
    output = penstock(ground, "store", "up", "moosefs", "-p", file)
    assert "moosefs up on 3 storage nodes" in output
    yield ground
    penstock(ground, "store", "down", "--discard", "*")
    assert_clean(ground)


def test_moosefs_conforms_to_its_support_table(moosefs: Ground) -> None:
    cells = json.loads(penstock(moosefs, "store", "conformance", "--json"))["cells"]
    assert len(cells) > 15
    assert [c for c in cells if not c["holds"]] == []
    support = {c["cell"]: c["how"] for c in cells}
    assert (support["Replication=2"], support["DP=local"], support["ChunkSize=256KiB"]) == (
        "native",
        "emulated",
        "refused",
    )


def test_a_second_up_changes_nothing(moosefs: Ground) -> None:
    before = json.loads(penstock(moosefs, "store", "status", "--json"))
    penstock(moosefs, "store", "up", "moosefs", "-p", "gt-st.yaml")
    assert json.loads(penstock(moosefs, "store", "status", "--json"))["nodes"] == before["nodes"]
    message = penstock(
        moosefs, "store", "up", "moosefs", "-p", "gt-st.yaml", "--set", "store.replicas=2", status=2
    )
    assert "a store gt-st is up that is another" in message


def test_a_file_to_keep_is_not_lost(moosefs: Ground) -> None:
    inputs = moosefs.where / "inputs"
    (inputs / "deep").mkdir(parents=True)
    (inputs / "a").write_bytes(os.urandom(300_000))
    (inputs / "deep" / "b with a blank").write_bytes(b"x" * 17)
    staged = json.loads(penstock(moosefs, "store", "stage-in", "inputs", "/", "--json"))
    assert [f["path"] for f in staged["files"]] == ["inputs/a", "inputs/deep/b with a blank"]
    script = "mkdir -p /store/results && cp /store/inputs/a /store/results/r"
    penstock(moosefs, "nodes", "exec", "node-1", "--", "sh", "-c", script)
    message = penstock(moosefs, "store", "down", status=1)
    assert "results/r: to be kept, but without a verified copy" in message
    penstock(moosefs, "store", "stage-out", "outside")
    assert (moosefs.where / "outside/results/r").read_bytes() == (inputs / "a").read_bytes()
    # a later change of either side invalidates the copy
    (moosefs.where / "outside/results/r").write_bytes(b"changed")
    assert "results/r: to be kept" in penstock(moosefs, "store", "down", status=1)
    penstock(moosefs, "store", "stage-out", "outside")
    penstock(moosefs, "nodes", "exec", "node-2", "--", "sh", "-c", "echo more >> /store/results/r")
    assert "results/r: to be kept" in penstock(moosefs, "store", "down", status=1)


def test_a_dead_node_loses_files_without_another_copy(moosefs: Ground) -> None:
    for path, tags in (("two", "Replication=2"), ("one", "DP=local")):
        penstock(moosefs, "store", "tag", path, tags, "--create", "--node", "node-2")
        script = f"head -c 2000000 /dev/urandom > /store/{path}; sync /store/{path}; sha256sum /store/{path}"
        penstock(moosefs, "nodes", "exec", "node-2", "--", "sh", "-c", script)
    extents = json.loads(penstock(moosefs, "store", "locate", "two", "--json"))["extents"]
    assert len(extents[0]["nodes"]) == 2
    victim = "node-2"
    penstock(moosefs, "nodes", "set", victim, "state=down")
    try:
        status = json.loads(penstock(moosefs, "store", "status", "--json"))
        states = {s["node"]: s["up"] for s in status["servers"]}
        assert states == {"node-0": True, "node-1": True, "node-2": False}
        checksum = ["nodes", "exec", "node-0", "--", "timeout", "60", "sha256sum", "/store/two"]
        penstock(moosefs, *checksum)
        located = json.loads(
            penstock(moosefs, "store", "locate", "one", "--node", "node-0", "--json")
        )
        assert located["extents"][0]["nodes"] == []  # `locate` reports that no node has a copy
    finally:
        penstock(moosefs, "nodes", "set", victim, "state=up")


def test_mistakes_are_reported_before_a_node_starts(ground: Ground) -> None:
    file = write_platform(ground, "moosefs", "gt-bad")
    for options, expected in (
        (["--set", "store.replicas=4"], "4 replicas on 3 storage hosts"),
        (["--set", "store.stripe=2", "--strict"], "store.stripe: moosefs refuses it"),
        (["--name", "two names"], "cluster name: found 'two names'; expected letters"),
    ):
        message = penstock(ground, "store", "up", "moosefs", "-p", file, *options, status=2)
        assert expected in message
    message = penstock(ground, "store", "up", "ext4", "-p", file, status=2)
    assert "found 'ext4'; expected moosefs" in message
    assert not list(ground.where.glob("run/cluster-gt-bad*"))


def test_a_directory_as_a_store(ground: Ground) -> None:
    file = write_platform(ground, "directory", "gt-of-file")
    penstock(ground, "store", "up", "directory", "-p", file, "--name", "gt-dir")
    try:
        output = penstock(
            ground, "store", "tag", "/f", "Replication=2", "note=x", "--create", "-s", "gt-dir"
        )
        assert "Replication=2: refused: one directory" in output
        assert "note=x: native" in output
        script = "echo shared > /store/results-f"
        penstock(ground, "nodes", "exec", "-c", "gt-dir", "node-0", "--", "sh", "-c", script)
        arguments = ["nodes", "exec", "-c", "gt-dir", "node-2", "--", "cat", "/store/results-f"]
        assert penstock(ground, *arguments) == "shared\n"
    finally:
        penstock(ground, "store", "down", "gt-dir")
