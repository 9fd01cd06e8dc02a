"""The watch of a store ends with its nodes; engines that do not support it refuse it."""

from __future__ import annotations

import shutil
import time

import pytest

from penstock.parts.stores.engines.glusterfs import GlusterFS
from tests.integration.node_ground import NODES
from tests.integration.test_store import assert_clean, new_ground, penstock, write_platform
from tests.integration.test_store_watch import run_in_node

LACKING = GlusterFS().missing()
pytestmark = [
    *NODES,
    pytest.mark.skipif(
        shutil.which("setfattr") is None, reason="needs setfattr(1) of Debian's attr"
    ),
]


def test_the_watch_ends_with_its_nodes() -> None:
    with new_ground() as ground:
        file = write_platform(ground, "directory", "gt-gone")
        penstock(ground, "store", "up", "directory", "-p", file, "--watch")
        run_in_node(
            ground,
            "node-0",
            ": > /store/a; setfattr -n user.penstock.DP -v local /store/a; cat /store/a",
        )
        penstock(ground, "nodes", "down", "gt-gone")
        until = time.monotonic() + 60
        while any(ground.host_objects().values()) and time.monotonic() < until:
            time.sleep(0.2)
        assert_clean(ground)
        assert ground.journal().open_entries() == []


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_an_engine_without_watch_support_refuses_it() -> None:
    with new_ground() as ground:
        file = write_platform(ground, "glusterfs", "gt-no")
        message = penstock(ground, "store", "up", "glusterfs", "-p", file, "--watch", status=2)
        assert "glusterfs: tags cannot be watched: tags replace the file" in message
        assert_clean(ground)
