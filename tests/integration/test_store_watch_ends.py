"""What watches a store for tags goes with its nodes, and is refused where an engine cannot be watched."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from tests.integration.node_ground import NODES
from tests.integration.test_store import a_ground, clean, penstock, written
from tests.integration.test_store_watch import on

pytestmark = [
    *NODES,
    pytest.mark.skipif(
        shutil.which("setfattr") is None, reason="needs setfattr(1) of Debian's attr"
    ),
]


def test_nodes_that_go_take_the_watch_with_them() -> None:
    with a_ground() as ground:
        file = written(ground, "directory", "gt-gone")
        penstock(ground, "store", "up", "directory", "-p", file, "--watch")
        on(
            ground,
            "node-0",
            ": > /store/a; setfattr -n user.penstock.DP -v local /store/a; cat /store/a",
        )
        penstock(ground, "nodes", "down", "gt-gone")
        until = time.monotonic() + 20
        while any(ground.seen().values()) and time.monotonic() < until:
            time.sleep(0.2)
        clean(ground)
        assert ground.journal().open_entries() == []


def test_an_engine_that_cannot_is_told_so_before_anything_is_put_up() -> None:
    with a_ground() as ground:
        file = written(ground, "glusterfs", "gt-no")
        if subprocess.run(["which", "glusterd"], capture_output=True).returncode == 0:
            said = penstock(ground, "store", "up", "glusterfs", "-p", file, "--watch", status=2)
            assert "glusterfs: tags cannot be watched: tags replace the file" in said
        clean(ground)
