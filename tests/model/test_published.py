"""The published scenarios' shapes hold (E-4), and a wrong platform is detected."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
sys.path.insert(0, str(STUDIES))
sys.path.insert(0, str(STUDIES / "published"))

import published  # noqa: E402
import scenario  # noqa: E402

from penstock.errors import PenstockError  # noqa: E402
from studies.claims import Result, status  # noqa: E402


def failing(
    name: str, rows: published.Rows, required: Iterable[published.Key] | None = None
) -> list[str]:
    """Shapes that are not met, or not measured."""
    return [
        c.wording
        for c in published.claims_on(name, rows, required)
        if c.result is not Result.MET and not c.wording.endswith("(a number)")
    ]


@pytest.mark.parametrize("name", ["reduce", "pipeline", "energy", "dvfs", "blast-cost"])
def test_the_shape_is_the_published_one(name: str) -> None:
    assert failing(name, published.predicted(name, seeds=3)) == []


def test_the_seeds_best_split_and_chunk_of_blast() -> None:
    chosen = {("14", "256KiB"), ("14", "1MiB"), ("14", "4MiB"), ("12", "256KiB"), ("16", "256KiB")}
    every = dict(published.treatments("blast"))
    assert chosen < set(every)
    rows = {key: scenario.prediction(every[key], seeds=3) for key in (*chosen, ("1", "4MiB"))}
    assert failing("blast", rows, rows) == []


@pytest.mark.parametrize("name", published.NAMES)
def test_a_removed_treatment_is_not_measured(name: str) -> None:
    """Every claim that reads the treatment; without any prediction all of them."""
    row = {"makespan_s": 1.0, "energy_j": 1.0, "cost": {"amount": 1.0}}
    rows = {key: row for key, _ in published.treatments(name)}
    complete = published.claims_on(name, rows, rows)
    assert Result.NOT_MEASURED not in {c.result for c in complete}
    affected = set()
    for key in rows:
        rest = {k: v for k, v in rows.items() if k != key}
        claims = published.claims_on(name, rest, rows)
        missing = [c for c in claims if c.result is Result.NOT_MEASURED]
        assert all(c.missing == (" ".join(key),) for c in missing)
        assert not missing or status(claims) == 3
        affected |= {c.wording for c in missing}
    assert affected == {c.wording for c in complete}
    assert {c.result for c in published.claims_on(name, {}, rows)} == {Result.NOT_MEASURED}


def test_a_wrong_platform_changes_the_shape() -> None:
    """Planted: a loopback slower than the network makes local files a mistake."""
    rows = published.predicted("reduce", ["network.loopback=5 MB/s"], seeds=3)
    assert failing("reduce", rows)


def test_the_large_pipeline_does_not_fit_in_tb20_itself() -> None:
    """Costa 2014: the machines' memory could not hold it."""
    platform = STUDIES.parent / "examples" / "platforms" / "tb20.yaml"
    with pytest.raises(PenstockError, match="full"):
        scenario.prediction(["pipeline", "--size", "large", "--platform", str(platform)], seeds=3)
