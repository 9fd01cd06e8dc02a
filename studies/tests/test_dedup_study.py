"""The studies of deduplication: claims on modelled writes, and a small run on this host."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.host.journal.journal import Journal
from penstock.parts.dedup.options import normal_chunking
from studies.claims import Result, status
from studies.dedup_study import write_part
from studies.dedup_study.break_even import Estimate, break_even, crossing, rates
from studies.dedup_study.cells import (
    AUTO,
    FIXED,
    MIB,
    OFF,
    SEQCDC,
    STATIC,
    Cell,
    controlled,
    static,
)
from studies.dedup_study.ground import Calibration, calibrated
from studies.dedup_study.write_part import RatioRun, WriteResult
from studies.dedup_study.writer import CELLS, RUNS, run_cell
from studies.tests.dedup_model import FLOOR_S, HASH_S, SIZE, Modelled, modelled, named, write_result

STUDY = Path(__file__).parents[1] / "dedup.py"


@pytest.mark.parametrize(
    ("y", "at"),
    [
        ([2.0, 1.5, 0.5], 0.75),
        ([2.0, 1.0, 0.5], 0.5),
        ([2.0, 1.5, 1.1], math.inf),
        ([1.0, 0.9, 0.8], -math.inf),
    ],
)
def test_a_crossing_is_interpolated_between_points(y: list[float], at: float) -> None:
    assert crossing([0.0, 0.5, 1.0], y) == pytest.approx(at)
    # in any order of the points
    assert crossing([1.0, 0.5, 0.0], y[::-1]) == pytest.approx(at)


def test_an_estimate_is_inside_outside_or_across() -> None:
    estimate = Estimate(0.4, 0.38, 0.42)
    assert estimate.within(0.35, 0.45) is True
    assert estimate.within(0.41, 0.45) is None
    assert estimate.within(0.5, 0.6) is False
    assert estimate.text(100, "%") == "40.0 (38.0 to 42.0) %"
    assert Estimate(math.inf, 0.9, math.inf).text() == "never (0.9 to never)"


@pytest.mark.parametrize("ratio", [0.16, 0.4, 0.5])
def test_the_break_even_of_modelled_writes_is_their_ratio(ratio: float) -> None:
    size = replace(write_part.FULL, ratios=(ratio,), versions=24, paired=24)
    (run,) = write_result(size).runs
    at = break_even(run.cells, FIXED)
    assert at is not None
    assert at.value == pytest.approx(ratio, abs=0.01)
    assert at.low <= at.value <= at.high
    measured = rates(run.cells, FIXED)
    assert measured is not None
    assert measured.ratio == pytest.approx(ratio)
    assert measured.break_even == pytest.approx(ratio)
    slower, expected = break_even(run.cells, SEQCDC), rates(run.cells, SEQCDC)
    assert slower is not None
    assert expected is not None
    # (1.2 h + 1.2 t - t) / 1.2 t
    assert expected.break_even == pytest.approx(ratio + 1 / 6)
    assert slower.value == pytest.approx(expected.break_even, abs=0.01)


def test_modelled_writes_meet_every_claim_of_the_part() -> None:
    result = write_result()
    claims = write_part.claims_of(result)
    assert {claim.result for claim in claims} == {Result.MET}, [claim.evidence for claim in claims]
    assert len(claims) == 7
    assert write_part.planted(result) is True
    assert all("value" in row for row in write_part.rows_of(result))
    assert len(write_part.lines(result)) == 2


def test_the_complete_size_also_evaluates_the_first_probes() -> None:
    size = replace(write_part.FULL, ratios=(0.4,))
    claims = write_part.claims_of(write_result(size))
    assert (
        named(claims, "auto: time over the best static configuration, in 200").result is Result.MET
    )


def test_a_wrong_choice_of_the_controller_is_not_met() -> None:
    result = write_result()
    (run,) = result.runs
    size = result.size
    wrong = tuple(
        modelled(write_part.cell_of(z, size), HASH_S / 0.4, {AUTO: OFF if z > 0.4 else FIXED})
        for z in size.similarities
    )
    claims = write_part.claims_of(replace(result, runs=(replace(run, cells=wrong),)))
    assert named(claims, "auto: time over").result is Result.NOT_MET
    assert named(claims, "auto: ends in").result is Result.NOT_MET
    assert named(claims, "fixed chunks: break-even").result is Result.MET


def test_another_send_time_is_not_the_requested_ratio() -> None:
    result = write_result()
    (run,) = result.runs
    slower = replace(run, calibration=replace(run.calibration, ratio=0.6))
    claims = write_part.claims_of(replace(result, runs=(slower,)))
    assert named(claims, "the ratio of").result is Result.NOT_MET


def test_bytes_that_are_stored_twice_are_detected() -> None:
    result = write_result()
    (run,) = result.runs
    doubled = tuple(
        replace(cell, stored_bytes={name: 2 * size for name, size in cell.stored_bytes.items()})
        for cell in run.cells
    )
    claims = write_part.claims_of(replace(result, runs=(replace(run, cells=doubled),)))
    assert named(claims, "fixed chunks: stored").result is Result.NOT_MET


def test_a_ratio_that_the_ground_cannot_have_is_not_measured() -> None:
    result = write_result()
    calibration = Calibration(0.4, 0.0, HASH_S, FLOOR_S, "too slow")
    result = replace(result, runs=(RatioRun(calibration, ()),))
    claims = write_part.claims_of(result)
    assert {claim.result for claim in claims} == {Result.NOT_MEASURED}
    assert status(claims) == 3
    assert write_part.planted(result) is None
    assert write_part.rows_of(result) == []
    assert write_part.lines(result) == ["r = 0.40: not measured: too slow"]


@pytest.mark.parametrize("ratio", [0.16, 0.4, 0.5])
def test_a_rate_is_calibrated_to_the_ratio(ratio: float) -> None:
    ground = Modelled()
    calibration = calibrated(ground, ratio, SIZE)
    assert calibration.measured_ratio == pytest.approx(ratio, rel=0.02)
    assert calibration.rate_bps == pytest.approx(1 / (HASH_S / ratio - FLOOR_S), rel=0.02)
    assert calibration.reason == ""
    # the ground alone takes as long to send as to hash
    assert "r of 0.90 at most" in calibrated(ground, 0.95, SIZE).reason


def test_an_interrupted_result_is_continued() -> None:
    size = replace(write_part.QUICK, ratios=(0.16, 0.4), versions=14, paired=14)
    saved: list[WriteResult] = []
    complete = write_part.measure(Modelled(), size, save=saved.append)
    assert [len(result.runs) for result in saved] == [1, 2]
    ground = Modelled()
    continued = write_part.measure(ground, size, earlier=saved[0])
    assert [run.calibration.ratio for run in continued.runs] == [0.16, 0.4]
    assert continued.runs[0] == complete.runs[0]
    # calibrations have one contender
    assert sum(len(cell.contenders) > 1 for cell in ground.cells) == len(size.similarities)
    other_size = replace(size, versions=16)
    assert len(write_part.measure(Modelled(), other_size, earlier=saved[0]).runs) == 2


def test_controllers_write_all_versions_and_others_the_first_and_last() -> None:
    cell = write_part.cell_of(0.5, write_part.FULL)
    numbers = {
        contender.name: [n for n in range(1, cell.versions + 1) if cell.writes(contender, n)]
        for contender in cell.contenders
    }
    assert numbers[AUTO] == list(range(1, 201))
    assert numbers[OFF] == [*range(1, 21), *range(181, 201)]


def test_results_are_evaluated_again_and_bad_ones_refused(tmp_path: Path) -> None:
    from pydantic import TypeAdapter

    result = write_result()
    file = tmp_path / "write.json"
    adapter = TypeAdapter(WriteResult)
    file.write_bytes(adapter.dump_json(result))
    assert adapter.validate_json(file.read_bytes()) == result
    line = [sys.executable, str(STUDY), "write", "--compare", "-o", str(tmp_path), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {claim["result"] for claim in document["claims"]} == {"met"}
    assert list(document["planted"].values()) == [True]
    assert (tmp_path / "dedup-time.svg").exists()
    file.write_text('{"ground": 1}')
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "write.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def private_state(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    base = tmp_path_factory.mktemp("state")
    for name in ("STATE", "RUNTIME"):
        (base / name).mkdir(mode=0o700)
        monkeypatch.setenv(f"PENSTOCK_{name}", str(base / name))
    yield
    assert not Journal().open_entries()


@pytest.mark.host
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE"
)
@pytest.mark.usefixtures("private_state")
def test_a_small_cell_is_written_by_all_contenders(tmp_path: Path) -> None:
    contenders = (*(static(chunking) for chunking in STATIC), controlled(AUTO, STATIC))
    # more than one collection; static contenders pause in the middle
    cell = Cell(0.5, contenders, 18, 4 * MIB, MIB, 5)
    run = run_cell(CELLS.validate_json(CELLS.dump_json(cell)), tmp_path)
    assert RUNS.validate_json(RUNS.dump_json(run)) == run
    assert not list(tmp_path.iterdir())
    numbers = [write.number for write in run.writes if write.contender == OFF]
    assert numbers == [*range(1, 6), *range(14, 19)]
    assert [write.number for write in run.writes if write.contender == AUTO] == list(range(1, 19))
    assert {write.similarity for write in run.of(FIXED)} == {0.5}
    assert run.stored_bytes[OFF] == 10 * 4 * MIB
    # a complete version, eight halves, and of a version after a pause a share by chance
    assert 20 * MIB <= run.stored_bytes[FIXED] <= 24 * MIB
    assert {write.configuration for write in run.of(OFF)} == {"off"}
    own = {write.configuration for write in run.of(AUTO)}
    assert own <= {normal_chunking(name) for name in STATIC}
    assert all(write.time_s > 0 and write.duration_s > 0 for write in run.writes)
