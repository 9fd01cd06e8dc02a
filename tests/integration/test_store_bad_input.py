"""Stores that cannot start or that die: one clear error, and nothing remains up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.parts.stores.engines.moosefs import MooseFS
from tests.integration.node_ground import NODES, Ground
from tests.integration.test_store import (
    PLATFORM,
    assert_clean,
    new_ground,
    penstock,
    write_platform,
)
from tests.support import commands
from tests.support.waiting import until

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]
#: ports of MooseFS' servers
PORTS = (9419, 9420, 9421, 9422)


@pytest.fixture(name="ground", scope="module")
def module_ground() -> Iterator[Ground]:
    with new_ground() as ground:
        yield ground


def assert_nothing_left(ground: Ground) -> None:
    assert_clean(ground)
    assert ground.journal().open_entries() == []
    assert "nothing" in penstock(ground, "undo").lower()


def test_nodes_with_too_little_memory(ground: Ground) -> None:
    """The node's memory limit kills the master; the message names the node."""
    text = PLATFORM.format(name="gt-small", engine="moosefs")
    text = text.replace("roles: [manager]", "roles: [manager], memory: 24MiB")
    (ground.where / "gt-small.yaml").write_text(text)
    message = penstock(ground, "store", "up", "moosefs", "-p", "gt-small.yaml", status=1)
    (line,) = message.strip().splitlines()
    assert line.startswith("penstock: head-0: ")
    assert_nothing_left(ground)


def test_ports_of_the_host_do_not_matter(ground: Ground) -> None:
    """Servers listen in the networks of their nodes, independent of ports of this host."""
    file = write_platform(ground, "moosefs", "gt-ports")
    with contextlib.ExitStack() as stack:
        for port in PORTS:
            with contextlib.suppress(OSError):  # already in use, which serves the test too
                stack.enter_context(socket.create_server(("0.0.0.0", port)))
        penstock(ground, "store", "up", "moosefs", "-p", file)
        penstock(ground, "store", "down", "gt-ports")
    assert_nothing_left(ground)


def test_without_storage(ground: Ground) -> None:
    text = PLATFORM.format(name="gt-none", engine="moosefs").replace(
        "[storage, client]", "[client]"
    )
    (ground.where / "gt-none.yaml").write_text(text)
    for arguments in (
        ["store", "up", "-p", "gt-none.yaml"],
        ["seed", "gt-none.yaml", "-o", "x.yaml"],
    ):
        assert "role" in penstock(ground, *arguments, status=2)
    assert_nothing_left(ground)


@pytest.mark.parametrize("victim", ["mfschunkserver", "mfsmaster"])
def test_a_store_that_dies_while_it_is_measured(ground: Ground, victim: str) -> None:
    """Clients of a dead store wait forever; the command does not."""
    file = write_platform(ground, "moosefs", "gt-die")
    arguments = ["seed", file, "-o", "never.yaml", "--budget", "60", "--no-compare"]
    child = commands.popen(
        [sys.executable, "-m", "penstock", *arguments],
        env=ground.environment,
        cwd=ground.where,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    lines = []
    for line in child.stderr:
        lines.append(line)
        if "round 1" in line:
            until(lambda: ground.processes(victim))
            os.kill(ground.processes(victim)[0], signal.SIGKILL)
            break
    errors = child.communicate(timeout=180)[1]
    assert child.returncode == 1, "".join(lines) + errors
    assert "the store died (" in errors
    assert f"{victim} has ended" in errors
    assert not (ground.where / "never.yaml").exists()
    assert_nothing_left(ground)
