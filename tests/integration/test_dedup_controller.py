"""The online controller on a mount: records of real versions, decisions, log."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.parts.dedup.controller.decision import read_decisions
from penstock.parts.dedup.controller.stream import PROBE, STEADY_OFF, STEADY_ON
from tests.integration.dedup_ground import HOST, Ground, content_of, ground, records

pytestmark = HOST
__all__ = ["ground"]

SIZE = 4 << 20


def write_versions(ground: Ground, tmp_path: Path, names: str, contents: list[bytes]) -> list[str]:
    """Write versions through a mount with the controller; return their configurations."""
    settings = tmp_path / f"{names}.yaml"
    # an attempt without deduplication would depend on the speed of this host
    settings.write_text(f"log: {names}.jsonl\nadaptive: false\n")
    served = ground.mount(
        chunking="auto", configurations=("off", "fixed:64KiB"), controller=settings
    )
    for number, content in enumerate(contents, 1):
        (ground.point / f"{names}.{number}").write_bytes(content)
        records(served, number)
    rows = records(served, len(contents))
    for number, content in enumerate(contents, 1):
        assert (ground.point / f"{names}.{number}").read_bytes() == content
    return [row["configuration"] for row in rows]


def test_dissimilar_versions_end_without_deduplication(ground: Ground, tmp_path: Path) -> None:
    chosen = write_versions(
        ground, tmp_path, "apart", [content_of(SIZE, seed) for seed in range(8)]
    )
    assert chosen == ["fixed:65536"] * 5 + ["off"] * 3
    decisions = read_decisions(tmp_path / "apart.jsonl")
    assert [decision.after for decision in decisions] == [PROBE, STEADY_OFF]
    assert decisions[-1].similarity == (None, 0.0)
    hashing, sending = decisions[-1].hash_s_per_byte[1], decisions[-1].send_s_per_byte[1]
    assert hashing is not None
    assert sending is not None
    assert hashing > 0
    assert sending > 0


def test_equal_versions_stay_deduplicated(ground: Ground, tmp_path: Path) -> None:
    chosen = write_versions(ground, tmp_path, "equal", [content_of(SIZE, 1)] * 8)
    assert chosen == ["fixed:65536"] * 8
    decisions = read_decisions(tmp_path / "equal.jsonl")
    assert [decision.after for decision in decisions] == [PROBE, STEADY_ON]
    assert decisions[-1].similarity[1] == pytest.approx(1.0)
