"""The control group of a node, with ordinary files instead of the kernel's."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.host.cgroups.cgroup import Hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.nodes import node_group
from penstock.host.nodes.node_group import NodeGroup

MIB = 1 << 20


def test_hard_limit_set_during_memory_pressure_remains(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text(str(100 * MIB))
    (tmp_path / "memory.soft_limit_in_bytes").write_text(str(50 * MIB))
    (tmp_path / "memory.usage_in_bytes").write_text(str(80 * MIB))
    os.mkfifo(tmp_path / "memory.oom_control")  # `press` blocks here until the pipe is read
    limits_read = threading.Event()

    class PressedGroup(NodeGroup):
        def memory(self) -> tuple[int | None, int | None]:
            limits = super().memory()
            limits_read.set()
            return limits

    group = PressedGroup("n", {"memory": tmp_path}, None, [], "t")
    press = threading.Thread(target=group.press)
    change = threading.Thread(target=group.set_memory, args=(200 * MIB, 50 * MIB))
    press.start()
    assert limits_read.wait(60)
    change.start()
    change.join(timeout=0.2)
    assert change.is_alive()
    reader = os.open(tmp_path / "memory.oom_control", os.O_RDONLY | os.O_NONBLOCK)
    for thread in (press, change):
        thread.join(timeout=60)
        assert not thread.is_alive()
    os.close(reader)
    assert group.memory() == (200 * MIB, 50 * MIB)


@pytest.mark.parametrize(("nodes", "weight"), [(3, "300"), (200, "10000")])
def test_nodes_of_a_unified_hierarchy_have_a_parent_with_their_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, weight: str
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("")
    host = Hierarchies({}, tmp_path, frozenset(("cpu", "memory", "io", "cpuset", "pids")))
    monkeypatch.setattr(node_group, "hierarchies", lambda: host)
    mkdir = Path.mkdir

    def mkdir_as_kernel(path: Path, *arguments: Any, **options: Any) -> None:
        """Create the files of a new group, as the kernel does."""
        mkdir(path, *arguments, **options)
        if path.name.startswith("penstock-"):
            (path / "cpu.weight").write_text("100")
            (path / "cgroup.controllers").write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir_as_kernel)
    journal = Journal(tmp_path / "journal.jsonl")
    created = node_group.create_node_groups("c", (f"n{i}" for i in range(nodes)), journal)
    assert created.above is not None
    assert created.above.parent == tmp_path
    enabled = (created.above / "cgroup.subtree_control").read_text().split()
    assert sorted(enabled) == ["+cpu", "+cpuset", "+io", "+memory", "+pids"]
    assert (created.above / "cpu.weight").read_text() == weight
    for name, group in created.groups.items():
        assert {path.parent for path in group.paths.values()} == {created.above}
        assert f"-{name}-" in group.name
        assert len(group.directories) == 1
    (entry,) = [e for e in journal.open_entries() if e.kind == "cgroup"]
    # the parent is removed last
    assert entry.new[-1] == str(created.above)


def test_groups_of_a_runtime_are_at_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("")
    host = Hierarchies({}, tmp_path, frozenset(("cpu", "memory")))
    monkeypatch.setattr(node_group, "hierarchies", lambda: host)
    monkeypatch.setattr(node_group, "mounts", list)
    created = node_group.create_node_groups("c", ["a"], Journal(tmp_path / "j"), everywhere=True)
    assert created.above is None
    assert created.groups["a"].paths["unified"].parent == tmp_path
