"""Limits of the kernel's neighbour table: raised by the needed entries and lowered by as many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.emulate.cluster.capacity import warnings
from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import put_back, undo
from penstock.host.network import neighbour_table
from penstock.host.network.neighbour_table import ENOUGH, needed, release, reserve
from penstock.spec.cluster import ClusterSpec, LinkSpec, NodeSpec


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default limits of the kernel."""
    folder = tmp_path / "default"
    folder.mkdir()
    (folder / "gc_thresh2").write_text("512\n")
    (folder / "gc_thresh3").write_text("1024\n")
    monkeypatch.setattr(neighbour_table, "_LIMITS", folder)
    return folder


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    return Journal(tmp_path / "journal.jsonl")


def current(limits: Path) -> tuple[int, int]:
    return int((limits / "gc_thresh2").read_text()), int((limits / "gc_thresh3").read_text())


def test_small_needs_change_nothing(limits: Path, journal: Journal) -> None:
    assert needed([15]) < ENOUGH < needed([16])
    assert reserve(needed([15]), journal) == []
    assert current(limits) == (512, 1024)
    assert not journal.open_entries()


def test_nodes_on_other_hosts_need_local_entries() -> None:
    """A local node has an entry for the host and each other node, including remote ones."""
    local, remote = [f"n-{i}" for i in range(20)], [f"m-{i}" for i in range(40)]
    entries = {
        node: {*local, *remote, "host"} - {node} if node in local else set(local)
        for node in (*local, "host")
    }
    assert needed([20], [40]) == sum(map(len, entries.values())) == 1220
    assert needed([20, 3], [40, 0]) == 1220 + needed([3])


@pytest.mark.parametrize("first", [0, 1])
def test_overlapping_clusters_restore_the_original_limits(
    limits: Path, journal: Journal, first: int
) -> None:
    reserved = [reserve(needed([100, 100]), journal), reserve(needed([20]), journal)]
    assert current(limits) == (512 + 20200 + 420, 1024 + 20200 + 420)
    assert [put_back(e, journal).outcome for e in reserved[first]] == ["undone"] * 2
    remaining = (420, 20200)[first]
    assert current(limits) == (512 + remaining, 1024 + remaining)
    assert [put_back(e, journal).outcome for e in reserved[1 - first]] == ["undone"] * 2
    assert current(limits) == (512, 1024)
    assert not journal.open_entries()


def test_released_entries_are_not_counted(limits: Path, journal: Journal) -> None:
    first, second = reserve(5000, journal), reserve(1000, journal)
    assert [release(e, journal)[0] for e in first] == ["undone"] * 2
    third = reserve(300, journal)
    assert current(limits) == (1812, 2324)
    assert [release(e, journal)[0] for e in [*second, *third]] == ["undone"] * 4
    assert [put_back(e, journal).outcome for e in [*first, *second, *third]] == ["gone"] * 6
    assert current(limits) == (512, 1024)


def test_limits_changed_by_others_are_left(limits: Path, journal: Journal) -> None:
    entries = reserve(5000, journal)
    (limits / "gc_thresh3").write_text("99\n")
    results = {Path(row.target).name: row for row in (put_back(e, journal) for e in entries)}
    assert results["gc_thresh3"].outcome == "left"
    assert "99" in results["gc_thresh3"].note
    assert current(limits) == (512, 99)


@pytest.mark.parametrize("name", ["gc_thresh3", "gc_thresh2"])
def test_failure_of_one_limit_restores_both(
    limits: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = neighbour_table._write

    def failing(path: Path, value: int) -> None:
        if path.name == name and value > 1024:
            raise OSError(22, "Invalid argument")
        write(path, value)

    monkeypatch.setattr(neighbour_table, "_write", failing)
    with pytest.raises(PenstockError, match="Invalid argument"):
        reserve(5000, journal)
    assert current(limits) == (512, 1024)
    assert not journal.open_entries()


def test_reservations_of_dead_processes_are_released(limits: Path, journal: Journal) -> None:
    child = os.fork()
    if child == 0:
        reserve(5000, journal)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert current(limits) == (5512, 6024)
    own = reserve(1000, journal)
    assert [u.outcome for u in undo(journal)] == ["undone"] * 2
    assert current(limits) == (1512, 2024)
    assert [put_back(e, journal).outcome for e in own] == ["undone"] * 2
    assert current(limits) == (512, 1024)


def test_missing_limits_are_a_warning(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warnings_of(count: int) -> list[str]:
        nodes = tuple(NodeSpec(f"n{i}", links=(LinkSpec(),)) for i in range(count))
        return [w for w in warnings(ClusterSpec("c", nodes)) if "gc_thresh3" in w]

    monkeypatch.setattr(neighbour_table, "_LIMITS", tmp_path / "none")
    assert reserve(5000, journal) == []
    assert not journal.open_entries()
    (message,) = warnings_of(100)
    assert "10100 entries" in message
    assert warnings_of(3) == []
