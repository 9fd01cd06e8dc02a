"""The generator of versions: its similarity is exact, by bytes and by chunks."""

from __future__ import annotations

import filecmp
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.parts.dedup.measure import compare
from penstock.parts.dedup.versions import (
    PRESETS,
    Edit,
    Segment,
    VersionPlan,
    splice,
    write_versions,
)

CHUNK = 4 << 10
SIZE = 4 << 20
FINE = "fastcdc:256,1KiB,4KiB"


def plan(change: str, similarity: float, **options: int) -> VersionPlan:
    fields = {"size_bytes": SIZE, "versions": 3, "chunk_bytes": CHUNK, **options}
    return VersionPlan(similarity=(similarity, similarity), change=change, **fields)


@pytest.mark.parametrize("percent", [0, 10, 37, 60, 95, 100])
def test_aligned_changes_have_the_exact_similarity_of_fixed_chunks(
    percent: int, tmp_path: Path
) -> None:
    written = list(write_versions(plan("aligned", percent / 100), tmp_path))
    for old, new in pairwise(written):
        result = compare(old.path, new.path, f"fixed:{CHUNK}")
        assert result.similar_chunks == round(percent / 100 * SIZE / CHUNK)
        assert new.similarity == pytest.approx(result.share)
        assert new.size_bytes == SIZE


def test_unaligned_changes_spoil_two_fixed_chunks_each(tmp_path: Path) -> None:
    written = list(write_versions(plan("unaligned", 0.9), tmp_path))
    first, second = (version.path.read_bytes() for version in written[:2])
    same = sum(a == b for a, b in zip(first, second, strict=True))
    # one of 256 random bytes is equal by chance
    assert same / SIZE == pytest.approx(0.9 + 0.1 / 256, abs=0.002)
    assert written[1].similarity == pytest.approx(0.9, abs=1e-3)
    fixed = compare(written[0].path, written[1].path, f"fixed:{CHUNK}").share
    assert 0.78 < fixed < 0.84


@pytest.mark.parametrize("change", ["insert", "delete"])
def test_moved_content_is_found_by_content_defined_chunks_only(change: str, tmp_path: Path) -> None:
    options = {"size_bytes": SIZE + 1, "chunk_bytes": 64 << 10}
    written = list(write_versions(plan(change, 0.8, **options), tmp_path))
    for old, new in pairwise(written):
        assert new.similarity == pytest.approx(0.8, abs=0.01)
        grown = new.size_bytes / old.size_bytes
        assert grown == pytest.approx(1 / 0.8 if change == "insert" else 0.8, abs=0.01)
        by_content = compare(old.path, new.path, FINE).share
        assert by_content > (0.75 if change == "insert" else 0.93)
        assert compare(old.path, new.path, "fixed:1000").share < 0.4


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    for name, seed in zip(names, (1, 1, 2), strict=True):
        list(write_versions(plan("unaligned", 0.5, seed=seed), tmp_path, name))
    files = [f"{name}.0003" for name in names]
    assert filecmp.cmp(tmp_path / files[0], tmp_path / files[1], shallow=False)
    assert not filecmp.cmp(tmp_path / files[0], tmp_path / files[2], shallow=False)


def test_versions_can_replace_each_other(tmp_path: Path) -> None:
    sizes = [
        version.size_bytes
        for version in write_versions(plan("delete", 0.5), tmp_path, overwrite=True)
    ]
    assert sizes == [SIZE, SIZE // 2, SIZE // 4]
    assert [file.name for file in tmp_path.iterdir()] == ["version"]


def test_edits_split_segments() -> None:
    segments = [Segment(1, 0, 10), Segment(2, 0, 10)]
    edits = [Edit(3, 2), Edit(8, 4, Segment(3, 0, 4)), Edit(20, 0, Segment(4, 0, 1))]
    assert splice(segments, edits) == [
        Segment(1, 0, 3),
        Segment(1, 5, 3),
        Segment(3, 0, 4),
        Segment(2, 2, 8),
        Segment(4, 0, 1),
    ]


def test_presets_are_possible() -> None:
    for preset in PRESETS.values():
        VersionPlan(SIZE, 1, (preset.least, preset.most), preset.change)


@pytest.mark.parametrize(
    ("change", "similarity", "chunk"), [("move", 0.5, 64), ("insert", 0.0, 64), ("aligned", 0.5, 1)]
)
def test_impossible_plans_are_refused(change: str, similarity: float, chunk: int) -> None:
    with pytest.raises(BadInput, match=r"found .*expected"):
        VersionPlan(SIZE, 1, (similarity, similarity), change, chunk)


def test_versions_that_grow_without_end_are_refused() -> None:
    VersionPlan(SIZE, 3, (0.5, 0.5), "insert", CHUNK)
    VersionPlan(SIZE, 10_000, (1.0, 1.0), "insert", CHUNK)
    with pytest.raises(BadInput, match=r"found 5 versions .* expected fewer, or more similar ones"):
        VersionPlan(SIZE, 5, (0.01, 0.5), "insert", CHUNK)
