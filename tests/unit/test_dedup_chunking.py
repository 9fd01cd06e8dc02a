"""Chunks of deduplicated files: sizes, boundaries after changes, names of configurations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.errors import BadInput
from penstock.parts.dedup.cli.dedup import app
from penstock.parts.dedup.measure import compare
from penstock.parts.dedup.options import DEFAULT_CHUNKING, MountOptions, native, normal_chunking

CDC = ("fastcdc:2KiB,8KiB,32KiB", "seqcdc:2KiB,8KiB,32KiB")
SIZE = 16 << 20


def random_bytes(size: int, seed: int = 1) -> bytes:
    return np.random.Generator(np.random.SFC64(seed)).bytes(size)


@pytest.fixture(scope="module")
def content() -> bytes:
    return random_bytes(SIZE)


def share(tmp_path: Path, old: bytes, new: bytes, chunking: str) -> float:
    (tmp_path / "old").write_bytes(old)
    (tmp_path / "new").write_bytes(new)
    return compare(tmp_path / "old", tmp_path / "new", chunking).share


@pytest.mark.parametrize("chunking", CDC)
def test_sizes_are_within_the_limits_and_near_the_average(chunking: str, content: bytes) -> None:
    lengths = native.dedup_cuts(content, chunking)
    assert sum(lengths) == SIZE
    assert all(2 << 10 <= length <= 32 << 10 for length in lengths[:-1])
    assert 6 << 10 < SIZE / len(lengths) < 11 << 10


@pytest.mark.parametrize("average", [1 << 10, 8 << 10, 64 << 10, 1 << 20])
def test_the_average_of_hashless_chunks_follows_the_request(average: int) -> None:
    data = random_bytes(max(SIZE, 64 * average), 2)
    lengths = native.dedup_cuts(data, f"seqcdc:{average // 4},{average},{4 * average}")
    assert 0.7 < len(data) / len(lengths) / average < 1.4


@pytest.mark.parametrize("chunking", CDC)
@pytest.mark.parametrize("byte", [0, 255])
def test_content_without_boundaries_has_chunks_of_the_largest_size(
    chunking: str, byte: int
) -> None:
    lengths = native.dedup_cuts(bytes([byte]) * (1 << 20), chunking)
    assert set(lengths) == {32 << 10}


@pytest.mark.parametrize("chunking", CDC)
def test_an_inserted_byte_changes_few_content_defined_chunks(
    chunking: str, content: bytes, tmp_path: Path
) -> None:
    assert share(tmp_path, content, b"x" + content, chunking) >= 0.95


def test_an_inserted_byte_changes_all_fixed_chunks(content: bytes, tmp_path: Path) -> None:
    assert share(tmp_path, content, b"x" + content, "fixed:64KiB") < 0.01


def test_overwritten_chunks_are_the_share_that_differs(content: bytes, tmp_path: Path) -> None:
    chunk = 64 << 10
    count = SIZE // chunk
    changed = bytearray(content)
    cells = np.random.Generator(np.random.SFC64(3)).choice(count, round(0.3 * count), replace=False)
    for cell in cells:
        changed[cell * chunk : (cell + 1) * chunk] = random_bytes(chunk, 100 + int(cell))
    similar = share(tmp_path, content, bytes(changed), "fixed:64KiB")
    assert similar == pytest.approx(1 - len(cells) / count)
    assert similar == pytest.approx(0.7, abs=0.01)


def test_names_have_one_form() -> None:
    assert normal_chunking("fixed:1MiB") == "fixed:1048576"
    assert normal_chunking(DEFAULT_CHUNKING) == "seqcdc:16384,65536,262144"


@pytest.mark.parametrize(
    "options",
    [
        {"chunking": "fixed:0"},
        {"chunking": "seqcdc:8KiB,2KiB,32KiB"},
        {"hash": "md5"},
        {"scope": "world"},
        {"chunking": "auto", "configurations": ("off", "nothing")},
        {"controller": Path("settings.yaml")},
    ],
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"found .*expected"):
        MountOptions(**options)  # type: ignore[arg-type]


def test_configurations_need_the_controller(tmp_path: Path) -> None:
    """Fails if --configuration is accepted without effect, with a fixed chunking."""
    place = (str(tmp_path / "store"), str(tmp_path / "mount"))
    result = CliRunner().invoke(app, ["mount", *place, "--configuration", "off"])
    assert "--configuration: found off; expected --chunking auto" in str(result.exception)
