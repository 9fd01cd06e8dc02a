"""Tags that programs set: a watched store applies them before the first byte is written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.parts.stores.engines.moosefs import MooseFS
from tests.integration.node_ground import NODES, Ground
from tests.integration.test_store import assert_clean, new_ground, penstock, write_platform

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("setfattr") is None, reason="needs setfattr(1) of Debian's attr"
    ),
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]
MIB = 2**20


@pytest.fixture(name="watched", scope="module")
def watched_store() -> Iterator[Ground]:
    with new_ground() as ground:
        file = write_platform(ground, "moosefs", "gt-watch")
        penstock(ground, "store", "up", "moosefs", "-p", file, "--watch")
        yield ground
        penstock(ground, "store", "down", "--discard", "*")
        assert_clean(ground)


def run_in_node(ground: Ground, node: str, script: str) -> str:
    return penstock(ground, "nodes", "exec", node, "--", "/bin/sh", "-ec", script)


def bytes_on_disks(ground: Ground) -> dict[str, int]:
    for number in range(3):
        run_in_node(ground, f"node-{number}", "sync")
    (cluster,) = json.loads(penstock(ground, "nodes", "status", "--json"))["clusters"]
    rows = cluster["nodes"]
    return {
        r["name"]: sum(int((d["stats"] or {}).get("written_bytes", 0)) for d in r["disks"].values())
        for r in rows
        if r["disks"]
    }


def nodes_written_to(ground: Ground, before: dict[str, int], size: int) -> list[str]:
    """Nodes whose disks received at least 90 % of `size` bytes."""
    until = time.monotonic() + 60
    while True:
        now = bytes_on_disks(ground)
        nodes = [n for n in now if now[n] - before[n] >= 0.9 * size]
        if nodes or time.monotonic() > until:
            return nodes
        time.sleep(0.3)


def test_setfattr_followed_by_a_write(watched: Ground) -> None:
    """Tag and write without a pause, on each node in turn."""
    for node in ("node-2", "node-0", "node-1"):
        before = bytes_on_disks(watched)
        tag = f": > /store/{node}; setfattr -n user.penstock.DP -v local /store/{node}; "
        write = f"head -c {6 * MIB} /dev/urandom > /store/{node}; sync /store/{node}"
        run_in_node(watched, node, tag + write)
        assert nodes_written_to(watched, before, 6 * MIB) == [node]
        extents = json.loads(penstock(watched, "store", "locate", node, "--json"))["extents"]
        assert {n for e in extents for n in e["nodes"]} == {node}


def test_copies_by_setfattr(watched: Ground) -> None:
    script = ": > /store/two; setfattr -n user.penstock.Replication -v 2 /store/two; "
    run_in_node(
        watched, "node-0", script + "head -c 1000000 /dev/urandom > /store/two; sync /store/two"
    )
    until, nodes = time.monotonic() + 90, 0
    while nodes != 2 and time.monotonic() < until:
        (extent,) = json.loads(penstock(watched, "store", "locate", "two", "--json"))["extents"]
        nodes = len(extent["nodes"])
    assert nodes == 2


def test_status_lists_refused_tags(watched: Ground) -> None:
    script = "cd /store; : > odd; setfattr -n user.penstock.DP -v nowhere odd; echo x > odd; "
    script += "echo data > full; sync full; setfattr -n user.penstock.DP -v local full; cat full; "
    script += (
        ": > plain; setfattr -n user.penstock.colour -v blue plain; echo y > plain; cat odd plain"
    )
    assert run_in_node(watched, "node-1", script).split() == ["data", "x", "y"]
    until = time.monotonic() + 60
    while True:
        watch = json.loads(penstock(watched, "store", "status", "--json"))["watch"]
        why = {t["path"]: t["why"] for t in watch["refused"]}
        if len(why) >= 2 or time.monotonic() > until:
            break
    assert "found 'nowhere'; expected local" in why["/odd"]
    assert why["/full"] == "written data are not moved"
    assert watch["taken"] >= 1
    assert "hints that programs set: " in penstock(watched, "store", "status")
    assert penstock(watched, "store", "get", "/plain") == "colour=blue\n"


def test_store_tag_takes_precedence_over_the_watch(watched: Ground) -> None:
    """`store tag --node` names the writer, even if another node opens the file first."""
    penstock(watched, "store", "tag", "/theirs", "DP=local", "--create", "--node", "node-2")
    run_in_node(
        watched,
        "node-0",
        "cat /store/theirs; head -c 100000 /dev/zero > /store/theirs; sync /store/theirs",
    )
    (extent,) = json.loads(penstock(watched, "store", "locate", "theirs", "--json"))["extents"]
    assert extent["nodes"] == ["node-2"]


def test_concurrent_opens_of_the_same_files(watched: Ground) -> None:
    names = [f"m{i}" for i in range(12)]
    tag = "".join(f": > {n}; setfattr -n user.penstock.DP -v local {n}; " for n in names)
    run_in_node(watched, "node-1", f"cd /store; {tag}")
    write = "".join(f"echo $$ >> {n} & " for n in names)
    with ThreadPoolExecutor(3) as pool:
        list(
            pool.map(lambda _: run_in_node(watched, "node-1", f"cd /store; {write} wait"), range(3))
        )
    for name in names[::4]:
        (extent,) = json.loads(penstock(watched, "store", "locate", name, "--json"))["extents"]
        assert extent["nodes"] == ["node-1"]
    counts = run_in_node(watched, "node-2", f"cd /store; cat {' '.join(names)} | wc -l")
    assert int(counts) == 3 * len(names)


def test_a_dead_watch_does_not_block_programs(watched: Ground) -> None:
    facts = json.loads(next(watched.where.glob("**/store.json")).read_text())
    pid = facts["state"]["watch"]["pid"]
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "penstock-tags"
    os.kill(pid, signal.SIGKILL)
    assert (
        run_in_node(watched, "node-0", "echo alive > /store/after; cat /store/after") == "alive\n"
    )
    status = json.loads(penstock(watched, "store", "status", "--json"))["watch"]
    assert "trouble" in status
