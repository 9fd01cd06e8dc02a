"""What a store cannot be put up with, or dies of: one clear error, and nothing left up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.parts.stores.engines.moosefs import MooseFS
from tests.integration.node_ground import NODES, Ground
from tests.integration.test_store import PLATFORM, a_ground, clean, penstock, written
from tests.support import commands

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]
#: where MooseFS' servers listen
PORTS = (9419, 9420, 9421, 9422)


@pytest.fixture(name="ground", scope="module")
def one_for_all() -> Iterator[Ground]:
    with a_ground() as ground:
        yield ground


def nothing_left(ground: Ground) -> None:
    clean(ground)
    assert ground.journal().open_entries() == []
    assert "nothing" in penstock(ground, "undo").lower()


def test_nodes_with_too_little_memory(ground: Ground) -> None:
    """The master is killed by its node's limit; who put it up is told which node and what ended."""
    text = PLATFORM.format(name="gt-small", engine="moosefs")
    text = text.replace("roles: [manager]", "roles: [manager], memory: 24MiB")
    (ground.where / "gt-small.yaml").write_text(text)
    said = penstock(ground, "store", "up", "moosefs", "-p", "gt-small.yaml", status=1)
    (line,) = said.strip().splitlines()
    assert line.startswith("penstock: head-0: ")
    nothing_left(ground)


def test_ports_that_the_host_uses_are_no_matter(ground: Ground) -> None:
    """Servers listen in their nodes' own networks: what listens on this host is another's."""
    file = written(ground, "moosefs", "gt-ports")
    with contextlib.ExitStack() as stack:
        for port in PORTS:
            with contextlib.suppress(OSError):  # somebody listens there already: as good
                stack.enter_context(socket.create_server(("0.0.0.0", port)))
        penstock(ground, "store", "up", "moosefs", "-p", file)
        penstock(ground, "store", "down", "gt-ports")
    nothing_left(ground)


def test_without_storage(ground: Ground) -> None:
    text = PLATFORM.format(name="gt-none", engine="moosefs").replace(
        "[storage, client]", "[client]"
    )
    (ground.where / "gt-none.yaml").write_text(text)
    for words in (["store", "up", "-p", "gt-none.yaml"], ["seed", "gt-none.yaml", "-o", "x.yaml"]):
        assert "role" in penstock(ground, *words, status=2)
    nothing_left(ground)


@pytest.mark.parametrize("victim", ["mfschunkserver", "mfsmaster"])
def test_a_store_that_dies_while_it_is_measured(ground: Ground, victim: str) -> None:
    """Its clients would wait for it for ever; nobody else does."""
    file = written(ground, "moosefs", "gt-die")
    words = ["seed", file, "-o", "never.yaml", "--budget", "60", "--no-compare"]
    child = commands.popen(
        [sys.executable, "-m", "penstock", *words],
        env=ground.environment,
        cwd=ground.where,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    said = []
    for line in child.stderr:
        said.append(line)
        if "round 1" in line:
            os.kill(of_ground(ground, victim), signal.SIGKILL)
            break
    rest = child.communicate(timeout=180)[1]
    assert child.returncode == 1, "".join(said) + rest
    assert "the store died (" in rest
    assert f"{victim} has ended" in rest
    assert not (ground.where / "never.yaml").exists()
    nothing_left(ground)


def of_ground(ground: Ground, name: str) -> int:
    """The server of that name that runs in one of the nodes of this test: its group bears their name."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for comm in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                groups = (comm.parent / "cgroup").read_text()
                if comm.read_text().strip() == name[:15] and "gt-die" in groups:
                    return int(comm.parent.name)
    raise AssertionError(f"no {name} of gt-die runs")
