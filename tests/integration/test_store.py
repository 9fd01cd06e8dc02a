"""Shared stores on virtual nodes: killed at any moment, put up, tagged, moved in and out, taken down.

The kills come first: what they leave is looked for by name, while the store of the other tests is not up.
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


def penstock(ground: Ground, *words: str, status: int = 0, env: Any = None) -> str:
    done = commands.run(
        [sys.executable, "-m", "penstock", *words],
        env={**ground.environment, **(env or {})},
        cwd=ground.where,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def written(ground: Ground, engine: str, name: str = "gt-st") -> str:
    (ground.where / f"{name}.yaml").write_text(PLATFORM.format(name=name, engine=engine))
    return f"{name}.yaml"


def clean(ground: Ground) -> None:
    """Nothing is there any more because of it."""
    assert not any(ground.seen().values()), ground.seen()


@contextlib.contextmanager
def a_ground() -> Iterator[Ground]:
    where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    made = Ground.made(where)
    (where / "run").mkdir()
    yield made
    undo(Journal(where / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(where)


def nodes_are_made(ground: Ground) -> bool:
    return any(ground.where.glob("run/cluster-gt-kill*"))


def servers_start(ground: Ground) -> bool:
    return any(ground.where.glob("state-passable/clusters/gt-kill-*/store.json"))


def a_client_has_mounted(_: Ground) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, groups = ((process / one).read_text() for one in ("comm", "cgroup"))
            if name.strip() == "mfsmount" and "penstock-gt-kill-" in groups:
                return True
    return False


@pytest.mark.parametrize("moment", [nodes_are_made, servers_start, a_client_has_mounted])
def test_killed_at_any_moment_it_is_undone(moment: Callable[[Ground], bool]) -> None:
    with a_ground() as ground:
        file = written(ground, "moosefs", "gt-kill")
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
            assert child.poll() is None, "it came to its end before"
            assert time.monotonic() < until
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        status = commands.run(
            [sys.executable, "-m", "penstock", "store", "status"],
            env=ground.environment,
            capture_output=True,
            text=True,
        )
        said = status.stdout + status.stderr
        assert "the store gt-kill is not complete" in said, said
        assert "`penstock undo` removes it" in said
        done = penstock(ground, "undo")
        assert "cluster    gt-kill" in done, done
        clean(ground)


@pytest.fixture(name="ground", scope="module")
def one_for_all() -> Iterator[Ground]:
    with a_ground() as ground:
        yield ground


@pytest.fixture(scope="module")
def moosefs(ground: Ground) -> Iterator[Ground]:
    file = written(ground, "moosefs")
    said = penstock(ground, "store", "up", "moosefs", "-p", file)
    assert "moosefs up on 3 storage nodes" in said
    yield ground
    penstock(ground, "store", "down", "--discard", "*")
    clean(ground)


def test_moosefs_does_what_it_says(moosefs: Ground) -> None:
    cells = json.loads(penstock(moosefs, "store", "conformance", "--json"))["cells"]
    assert len(cells) > 15
    assert [c for c in cells if not c["holds"]] == []
    how = {c["cell"]: c["how"] for c in cells}
    assert (how["Replication=2"], how["DP=local"], how["ChunkSize=256KiB"]) == (
        "native",
        "emulated",
        "refused",
    )


def test_a_second_up_changes_nothing(moosefs: Ground) -> None:
    before = json.loads(penstock(moosefs, "store", "status", "--json"))
    penstock(moosefs, "store", "up", "moosefs", "-p", "gt-st.yaml")
    assert json.loads(penstock(moosefs, "store", "status", "--json"))["nodes"] == before["nodes"]
    said = penstock(
        moosefs, "store", "up", "moosefs", "-p", "gt-st.yaml", "--set", "store.replicas=2", status=2
    )
    assert "a store gt-st is up that is another" in said


def test_a_kept_file_is_not_lost(moosefs: Ground) -> None:
    inside = moosefs.where / "inputs"
    (inside / "deep").mkdir(parents=True)
    (inside / "a").write_bytes(os.urandom(300_000))
    (inside / "deep" / "b with a blank").write_bytes(b"x" * 17)
    said = json.loads(penstock(moosefs, "store", "stage-in", "inputs", "/", "--json"))
    assert [f["path"] for f in said["files"]] == ["inputs/a", "inputs/deep/b with a blank"]
    script = "mkdir -p /store/results && cp /store/inputs/a /store/results/r"
    penstock(moosefs, "nodes", "exec", "node-1", "--", "sh", "-c", script)
    said = penstock(moosefs, "store", "down", status=1)
    assert "results/r: to be kept, but without a verified copy" in said
    penstock(moosefs, "store", "stage-out", "outside")
    assert (moosefs.where / "outside/results/r").read_bytes() == (inside / "a").read_bytes()
    # what changes afterwards is not safe any more: on either side
    (moosefs.where / "outside/results/r").write_bytes(b"changed")
    assert "results/r: to be kept" in penstock(moosefs, "store", "down", status=1)
    penstock(moosefs, "store", "stage-out", "outside")
    penstock(moosefs, "nodes", "exec", "node-2", "--", "sh", "-c", "echo more >> /store/results/r")
    assert "results/r: to be kept" in penstock(moosefs, "store", "down", status=1)


def test_a_node_that_dies_takes_what_it_alone_held(moosefs: Ground) -> None:
    for path, tags in (("two", "Replication=2"), ("one", "DP=local")):
        penstock(moosefs, "store", "tag", path, tags, "--create", "--node", "node-2")
        script = f"head -c 2000000 /dev/urandom > /store/{path}; sync /store/{path}; sha256sum /store/{path}"
        penstock(moosefs, "nodes", "exec", "node-2", "--", "sh", "-c", script)
    two = json.loads(penstock(moosefs, "store", "locate", "two", "--json"))["extents"]
    assert len(two[0]["nodes"]) == 2
    victim = "node-2"
    penstock(moosefs, "nodes", "set", victim, "state=down")
    try:
        status = json.loads(penstock(moosefs, "store", "status", "--json"))
        states = {s["node"]: s["up"] for s in status["servers"]}
        assert states == {"node-0": True, "node-1": True, "node-2": False}
        read = ["nodes", "exec", "node-0", "--", "timeout", "60", "sha256sum", "/store/two"]
        penstock(moosefs, *read)
        one = json.loads(penstock(moosefs, "store", "locate", "one", "--node", "node-0", "--json"))
        assert one["extents"][0]["nodes"] == []  # nobody holds it any more, and locate says so
    finally:
        penstock(moosefs, "nodes", "set", victim, "state=up")


def test_mistakes_are_told_before_anything_is_put_up(ground: Ground) -> None:
    file = written(ground, "moosefs", "gt-bad")
    for words, expected in (
        (["--set", "store.replicas=4"], "4 replicas on 3 storage hosts"),
        (["--set", "store.engine=ext4"], None),
        (["--set", "store.stripe=2", "--strict"], "store.stripe: moosefs refuses it"),
        (["--name", "two names"], "cluster name: found 'two names'; expected letters"),
    ):
        if expected is not None:
            said = penstock(ground, "store", "up", "moosefs", "-p", file, *words, status=2)
            assert expected in said
    said = penstock(ground, "store", "up", "ext4", "-p", file, status=2)
    assert "found 'ext4'; expected moosefs" in said
    assert not list(ground.where.glob("run/cluster-gt-bad*"))


def test_a_directory_is_a_store_too(ground: Ground) -> None:
    file = written(ground, "directory", "gt-of-file")
    penstock(ground, "store", "up", "directory", "-p", file, "--name", "gt-dir")
    try:
        said = penstock(
            ground, "store", "tag", "/f", "Replication=2", "note=x", "--create", "-s", "gt-dir"
        )
        assert "Replication=2: refused: one directory" in said
        assert "note=x: native" in said
        script = "echo shared > /store/results-f"
        penstock(ground, "nodes", "exec", "-c", "gt-dir", "node-0", "--", "sh", "-c", script)
        words = ["nodes", "exec", "-c", "gt-dir", "node-2", "--", "cat", "/store/results-f"]
        assert penstock(ground, *words) == "shared\n"
    finally:
        penstock(ground, "store", "down", "gt-dir")
