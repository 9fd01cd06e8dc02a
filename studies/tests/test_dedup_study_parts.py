"""The studies of deduplication: crossover rates, objectives of the controller, and real data."""

from __future__ import annotations

import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.parts.dedup.controller.energy import TESTBEDS
from penstock.parts.dedup.controller.settings_file import parse_settings
from penstock.parts.dedup.measure import CHUNKERS
from studies.claims import Result
from studies.dedup_study import crossover_part, objectives_part, real_part
from studies.dedup_study.cells import (
    FIXED,
    MIB,
    OFF,
    SEQCDC,
    Cell,
    static,
)
from studies.dedup_study.crossover_part import CrossoverResult, RateRun
from studies.dedup_study.ground import Calibration
from studies.dedup_study.objectives_part import MachineRun, ObjectivesResult
from studies.dedup_study.real_data import archive_of, directory_files, wheel_files
from studies.dedup_study.real_part import DataRun, RealResult
from studies.tests.dedup_model import FLOOR_S, HASH_S, SIZE, modelled, named


def limited(chunking: str, factors: tuple[float, ...]) -> tuple[RateRun, ...]:
    """Writes without a limit, and at factors of the crossover."""
    n = 12
    z = crossover_part.SIMILARITY
    cell = Cell(z, (static(OFF), static(chunking)), n, SIZE, MIB, n)
    first = RateRun(None, modelled(cell, FLOOR_S / 10, {}))
    at = crossover_part.predicted_crossover(first.run, chunking)
    runs = [
        RateRun(factor * at, modelled(cell, FLOOR_S / 10 + 1 / (factor * at), {}))
        for factor in factors
    ]
    return (first, *runs)


def crossover_result(factors: tuple[float, ...] = crossover_part.FACTORS) -> CrossoverResult:
    throughput = {
        "blake3": (1e9, 1.1e9, 0.9e9),
        "sha256": (0.5e9, 0.5e9, 0.5e9),
        CHUNKERS[0]: (1e9, 1e9, 1e9),
        CHUNKERS[1]: (4e9, 4e9, 4e9),
    }
    writes = {FIXED: limited(FIXED, factors), SEQCDC: ()}
    return CrossoverResult("emulated disk", throughput, crossover_part.similarities({}), writes, {})


def test_the_crossover_of_a_processor_is_its_throughput_times_the_similarity() -> None:
    result = crossover_result()
    fixed = crossover_part.processor_crossover(result.throughput, FIXED, "sha256", (0.6, 0.6))
    assert fixed.value == pytest.approx(0.3e9)
    assert (fixed.low, fixed.high) == pytest.approx((0.3e9, 0.3e9))
    cdc = crossover_part.processor_crossover(result.throughput, SEQCDC, "sha256", (0.6, 0.6))
    # 1 / (1 / 0.5 + 1 / 4) = 0.444 GB/s
    assert cdc.value == pytest.approx(0.6e9 / 2.25)
    varied = crossover_part.processor_crossover(result.throughput, FIXED, "blake3", (0.2, 0.8))
    assert varied.low < varied.value < varied.high
    by = {crossover_part.SMALL: (0.5,), SEQCDC: (0.6,)}
    compared = replace(result, similarity={"x": by})
    assert crossover_part.cdc_over_fixed(compared, "x") == pytest.approx(0.1 * 4e9)


def test_writes_at_three_rates_verify_the_predicted_crossover() -> None:
    result = crossover_result()
    runs = result.writes[FIXED]
    at = crossover_part.measured_crossover(runs, FIXED)
    assert at is not None
    assert at.value == pytest.approx(
        crossover_part.predicted_crossover(runs[0].run, FIXED), rel=0.05
    )
    claims = {
        claim.wording: claim for claim in crossover_part.claims_of(result) if FIXED in claim.of
    }
    assert {claim.result for claim in claims.values()} == {Result.MET}, claims
    assert crossover_part.planted(result) is True
    assert all("value" in row for row in crossover_part.rows_of(result))
    missing = [claim for claim in crossover_part.claims_of(result) if SEQCDC in claim.of]
    assert {claim.result for claim in missing} == {Result.NOT_MEASURED}


def test_writes_at_other_rates_contradict_the_prediction() -> None:
    result = crossover_result((0.1, 0.2, 0.4))
    (signs, _) = [claim for claim in crossover_part.claims_of(result) if FIXED in claim.of]
    assert signs.result is Result.NOT_MET


def test_data_without_a_similarity_are_not_measured() -> None:
    claims = crossover_part.claims_of(crossover_result(), ["base backups"])
    (crossover,) = [claim for claim in claims if claim.of == "crossover, base backups"]
    assert crossover.result is Result.NOT_MEASURED
    presets = [claim for claim in claims if claim.of.startswith("crossover, archive")]
    assert [claim.result for claim in presets] == [Result.MET]


def test_a_slow_processor_does_not_pay_off_on_the_link() -> None:
    result = crossover_result()
    slow = replace(result, throughput=dict.fromkeys(result.throughput, (50000000.0, 50000000.0)))
    claims = [
        claim for claim in crossover_part.claims_of(slow) if claim.of.startswith("crossover, ")
    ]
    assert {claim.result for claim in claims} == {Result.NOT_MET}


def test_settings_of_an_objective_configure_the_controller() -> None:
    power = TESTBEDS["new"].power
    for weights in objectives_part.OBJECTIVES.values():
        text = objectives_part.settings_of(weights, power)
        settings = parse_settings(text.encode(), Path("controller.yaml"))
        assert settings.utility.weights == pytest.approx(weights, abs=1e-6)
        assert settings.power == power


@pytest.mark.parametrize(
    ("name", "machine", "at"),
    [
        ("time", "new", 0.4),
        ("energy", "new", 0.2139),
        ("mixed", "new", 0.1926),
        ("space", "new", 0.0),
        ("time", "old", 0.16),
        ("energy", "old", 0.1809),
    ],
)
def test_break_evens_of_the_objectives(name: str, machine: str, at: float) -> None:
    bed = TESTBEDS[machine]
    weights = objectives_part.OBJECTIVES[name]
    assert objectives_part.break_even(weights, bed.power, bed.r) == pytest.approx(at, abs=3e-4)


def objectives_result(flip: str = "") -> ObjectivesResult:
    """Choices on the right side of each objective's break-even, or all on the wrong side of `flip`'s."""
    size = replace(objectives_part.QUICK, versions=20)
    bed = TESTBEDS["new"]
    cells = []
    for z in size.similarities:
        choices = {}
        for name, weights in objectives_part.OBJECTIVES.items():
            on = (z > objectives_part.break_even(weights, bed.power, bed.r)) != (name == flip)
            choices[name] = FIXED if on else OFF
        cell = objectives_part._cell(z, bed.power, size)
        cells.append(modelled(cell, HASH_S / bed.r, choices))
    calibration = Calibration(bed.r, 1e8, HASH_S, HASH_S / bed.r)
    return ObjectivesResult("emulated disk", size, (MachineRun("new", calibration, tuple(cells)),))


def test_right_choices_of_the_objectives_are_met_and_wrong_ones_are_not() -> None:
    result = objectives_result()
    claims = objectives_part.claims_of(result)
    assert {claim.result for claim in claims} == {Result.MET}, [claim.evidence for claim in claims]
    assert objectives_part.planted(result) is True
    assert all("value" in row for row in objectives_part.rows_of(result))
    for name in objectives_part.OBJECTIVES:
        wrong = objectives_part.claims_of(objectives_result(name))
        results = {claim.of: claim.result for claim in wrong}
        assert results[f"machine new, objective {name}"] is Result.NOT_MET


def data_run(name: str = "checkpoints") -> DataRun:
    sizes = (100, 100, 100)
    return DataRun(
        name,
        sizes,
        dict.fromkeys(real_part.CONFIGURATIONS, (0.8, 0.6)),
        {OFF: 300, **dict.fromkeys(real_part.CONFIGURATIONS, 160)},
        dict.fromkeys((OFF, *real_part.CONFIGURATIONS), True),
        0.0,
    )


def test_claims_on_real_data() -> None:
    result = RealResult(("checkpoints", "backups"), (data_run(),), {"backups": "not installed"})
    results = {(claim.of, claim.result) for claim in real_part.claims_of(result)}
    assert results == {("checkpoints", Result.MET), ("backups", Result.NOT_MEASURED)}
    assert set(real_part.planted(result).values()) == {True}
    assert "backups: not measured: not installed" in real_part.lines(result)
    assert real_part.similarities(result)["checkpoints"][SEQCDC] == (0.8, 0.6)


@pytest.mark.parametrize(
    ("change", "beginning"),
    [
        ({"identical": {SEQCDC: False}}, "every version"),
        ({"stored_bytes": {**data_run().stored_bytes, SEQCDC: 170}}, "content-defined"),
        ({"stored_bytes": {**data_run().stored_bytes, SEQCDC: 170}}, "seqcdc stores"),
        ({"similarity": dict.fromkeys(real_part.CONFIGURATIONS, (0.9, 0.9))}, "a mount stores"),
    ],
)
def test_each_defect_of_real_data_is_not_met(change: dict[str, object], beginning: str) -> None:
    run = replace(data_run(), **change)  # type: ignore[arg-type]
    result = RealResult(("checkpoints",), (run,), {})
    assert named(real_part.claims_of(result), beginning).result is Result.NOT_MET


def test_random_bytes_that_are_similar_are_a_defect() -> None:
    result = RealResult(("checkpoints",), (replace(data_run(), random=0.5),), {})
    assert real_part.planted(result)["random bytes"] is False


def test_an_archive_depends_on_names_and_content_alone(tmp_path: Path) -> None:
    for name in ("first", "second"):
        place = tmp_path / name / "sub"
        place.mkdir(parents=True)
        (place / "b").write_bytes(b"2" * 1000)
        (tmp_path / name / "a").write_bytes(b"1")
        archive_of(directory_files(tmp_path / name), tmp_path / f"{name}.tar")
    os.utime(tmp_path / "second" / "a", (1, 1))
    archive_of(directory_files(tmp_path / "second"), tmp_path / "second.tar")
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    with tarfile.open(tmp_path / "first.tar") as archive:
        assert archive.getnames() == ["a", "sub/b"]


def test_files_of_a_wheel_are_decompressed_by_name(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/b.py", b"b" * 5000)
        archive.writestr("x/a.py", b"a")
    assert list(wheel_files(wheel)) == [("x/a.py", b"a"), ("x/b.py", b"b" * 5000)]
