"""Limits of the kernel's table of neighbours: raised by what is needed, lowered by as much."""

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
    """A kernel's limits as they are on a fresh host."""
    place = tmp_path / "default"
    place.mkdir()
    (place / "gc_thresh2").write_text("512\n")
    (place / "gc_thresh3").write_text("1024\n")
    monkeypatch.setattr(neighbour_table, "_LIMITS", place)
    return place


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    return Journal(tmp_path / "journal.jsonl")


def now(limits: Path) -> tuple[int, int]:
    return int((limits / "gc_thresh2").read_text()), int((limits / "gc_thresh3").read_text())


def test_what_there_is_room_for_changes_nothing(limits: Path, journal: Journal) -> None:
    assert needed([15]) < ENOUGH < needed([16])
    assert reserve(needed([15]), journal) == []
    assert now(limits) == (512, 1024)
    assert not journal.open_entries()


def test_nodes_on_other_hosts_have_entries_here() -> None:
    """A node here has one of each other node and of the host, also of those elsewhere."""
    here, elsewhere = [f"n-{i}" for i in range(20)], [f"m-{i}" for i in range(40)]
    all_of = {
        node: {*here, *elsewhere, "host"} - {node} if node in here else set(here)
        for node in (*here, "host")
    }
    assert needed([20], [40]) == sum(map(len, all_of.values())) == 1220
    assert needed([20, 3], [40, 0]) == 1220 + needed([3])


@pytest.mark.parametrize("first", [0, 1])
def test_two_clusters_that_overlap_leave_what_was_before_the_first(
    limits: Path, journal: Journal, first: int
) -> None:
    taken = [reserve(needed([100, 100]), journal), reserve(needed([20]), journal)]
    assert now(limits) == (512 + 20200 + 420, 1024 + 20200 + 420)
    assert [put_back(e, journal).outcome for e in taken[first]] == ["undone"] * 2
    left = (420, 20200)[first]
    assert now(limits) == (512 + left, 1024 + left)
    assert [put_back(e, journal).outcome for e in taken[1 - first]] == ["undone"] * 2
    assert now(limits) == (512, 1024)
    assert not journal.open_entries()


def test_what_is_released_and_not_yet_closed_counts_for_nobody(
    limits: Path, journal: Journal
) -> None:
    first, second = reserve(5000, journal), reserve(1000, journal)
    assert [release(e, journal)[0] for e in first] == ["undone"] * 2
    third = reserve(300, journal)
    assert now(limits) == (1812, 2324)
    assert [release(e, journal)[0] for e in [*second, *third]] == ["undone"] * 4
    assert [put_back(e, journal).outcome for e in [*first, *second, *third]] == ["gone"] * 6
    assert now(limits) == (512, 1024)


def test_what_somebody_else_set_since_is_left_and_said(limits: Path, journal: Journal) -> None:
    entries = reserve(5000, journal)
    (limits / "gc_thresh3").write_text("99\n")
    said = {Path(row.target).name: row for row in (put_back(e, journal) for e in entries)}
    assert said["gc_thresh3"].outcome == "left"
    assert "99" in said["gc_thresh3"].note
    assert now(limits) == (512, 99)


@pytest.mark.parametrize("which", ["gc_thresh3", "gc_thresh2"])
def test_one_that_cannot_be_set_leaves_both_as_they_were(
    limits: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    write = neighbour_table._write

    def failing(path: Path, value: int) -> None:
        if path.name == which and value > 1024:
            raise OSError(22, "Invalid argument")
        write(path, value)

    monkeypatch.setattr(neighbour_table, "_write", failing)
    with pytest.raises(PenstockError, match="Invalid argument"):
        reserve(5000, journal)
    assert now(limits) == (512, 1024)
    assert not journal.open_entries()


def test_what_the_dead_reserved_is_released(limits: Path, journal: Journal) -> None:
    child = os.fork()
    if child == 0:
        reserve(5000, journal)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert now(limits) == (5512, 6024)
    mine = reserve(1000, journal)
    assert [u.outcome for u in undo(journal)] == ["undone"] * 2
    assert now(limits) == (1512, 2024)
    assert [put_back(e, journal).outcome for e in mine] == ["undone"] * 2
    assert now(limits) == (512, 1024)


def test_limits_that_are_not_ours_are_a_warning(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(count: int) -> list[str]:
        nodes = tuple(NodeSpec(f"n{i}", links=(LinkSpec(),)) for i in range(count))
        return [w for w in warnings(ClusterSpec("c", nodes)) if "gc_thresh3" in w]

    monkeypatch.setattr(neighbour_table, "_LIMITS", tmp_path / "none")
    assert reserve(5000, journal) == []
    assert not journal.open_entries()
    (said,) = of(100)
    assert "10100 entries" in said
    assert of(3) == []
