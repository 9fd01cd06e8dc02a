"""Claims of the black-box study: programs, disks and sizes without a valid run are not measured."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.claims import Result, status

FOLDER = Path(__file__).parents[2] / "studies" / "blackbox"
DISKS = {"hard-disk": 4.0, "flash": 1.0}
SIZES = {"48MiB": 1.0, "96MiB": 2.0}


@pytest.fixture(scope="module", name="compare")
def _compare() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("compare")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("compare", "observed"):
            sys.modules.pop(name, None)


@pytest.fixture(name="treatments")
def _treatments(compare: Any) -> Any:
    return compare.Treatments(tuple(compare.TASKS), tuple(DISKS), tuple(SIZES))


def rows(compare: Any, share: float = 1.0) -> list[Any]:
    """A run of each treatment; the storage takes `share` of the measured time, computing the rest."""
    all_rows = []
    for program in compare.TASKS:
        for disk, disk_s in DISKS.items():
            for size, size_s in SIZES.items():
                time_s = disk_s * size_s
                run = compare.Observed(disk, program, size, 1, time_s, {}, 0.0, 1e6)
                row = compare.Compared(run, share * time_s, time_s, 0.9 * time_s, 1.1 * time_s)
                all_rows.append(row)
    return all_rows


def test_exact_predictions_meet_every_claim(compare: Any, treatments: Any) -> None:
    claims = compare.claims(rows(compare), treatments)
    assert {c.result for c in claims} == {Result.MET}
    assert status(claims) == 0
    short = compare.claims(rows(compare, share=0.2), treatments)
    assert sum(c.result is Result.NOT_MET for c in short) == len(compare.TASKS)  # their accuracy


def test_each_treatment_that_is_removed_is_not_measured(compare: Any, treatments: Any) -> None:
    all_rows = rows(compare)
    for removed in all_rows:
        claims = compare.claims([r for r in all_rows if r is not removed], treatments)
        missing = [c for c in claims if c.result is Result.NOT_MEASURED]
        of_program = [
            c for c in claims if c.wording.split(":")[0].split(",")[0] == removed.run.program
        ]
        assert missing == of_program != []
        treatment = f"{removed.run.program} {removed.run.disk} {removed.run.size}"
        assert {c.missing for c in missing} == {(treatment,)}
        assert status(claims) == 3


def test_coverage_is_calibrated_by_the_other_programs(compare: Any) -> None:
    """One program takes twice as long as predicted, which widens the intervals of the others only."""
    late = compare.coverage([], "word-count")
    assert (late.runs, late.level) == (0, None)
    late_rows = [
        replace(r, run=replace(r.run, time_s=2 * r.run.time_s))
        if r.run.program == "word-count"
        else r
        for r in rows(compare)
    ]
    late_rows = [
        replace(r, low_s=np.float64(r.low_s)) for r in late_rows
    ]  # the type that a model returns
    late = compare.coverage(late_rows, "word-count")
    assert (late.runs, late.inside, late.calibrated) == (4, 0, 0)
    assert json.loads(json.dumps(vars(late))) == vars(late)
    assert late.level == pytest.approx(0.75, abs=1e-5)  # three other programs
    grep = compare.coverage(late_rows, "grep-fixed")
    assert (grep.inside, grep.calibrated) == (4, 4)
    far = [replace(r, run=replace(r.run, time_s=1.5 * r.run.time_s)) for r in rows(compare)]
    assert compare.coverage(far, "grep-fixed").inside == 0
    assert compare.coverage(far, "grep-fixed").calibrated == 4


def test_without_runs_nothing_is_measured(compare: Any, treatments: Any) -> None:
    claims = compare.claims([], treatments)
    assert {c.result for c in claims} == {Result.NOT_MEASURED}
    assert compare.best_of_others([[], []]) is None
    far = [replace(r, storage_s=3 * r.storage_s) for r in rows(compare)]
    assert compare.best_of_others([far]) < compare.PUBLISHED["grep-fixed"][1]
