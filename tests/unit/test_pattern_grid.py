"""The classifier's three implementations on generated sequences with known classes."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import trace_analysis
from bench.pattern import cases
from bench.trace_classifier import PATHS, QUICK, fault, judged, run
from penstock.archive.traces.trace_tables import TraceTables
from penstock.errors import BadInput
from penstock.observe.trace.verdicts.rejudge import judge_run


@pytest.fixture(scope="module")
def grid() -> list[cases.Case]:
    return list(cases.grid(*QUICK))


@pytest.mark.parametrize("path", PATHS)
def test_classes_streams_strides_and_borders(grid: list[cases.Case], path: str) -> None:
    _, wrong, errors = run(grid, path)
    assert len(wrong) <= 0.01 * len(grid), wrong
    assert all(abs(error) < 0.5 for error in errors)


@pytest.mark.parametrize("path", PATHS)
def test_guards_raise_no_false_alarm(path: str) -> None:
    for seed in range(3):
        for guard in cases.guards(seed, 10_007, 4096):
            assert not fault(guard, judged(guard, path), path), guard.name


@pytest.mark.parametrize("path", ["exact", "streaming"])
def test_mixed_streams_of_one_thread_have_shares(path: str) -> None:
    for n in (5003, 40_009):
        for case in cases.unequal(1, n, 4096, threads=False):
            assert not fault(case, judged(case, path), path), case.name
            wrong = [(kind, share + 0.2) for kind, share in case.streams]
            mislabelled = dataclasses.replace(case, streams=tuple(wrong))
            assert fault(mislabelled, judged(case, path), path)


def test_mislabelled_cases_are_detected(grid: list[cases.Case]) -> None:
    streams = next(case for case in grid if case.k == 8)
    phases = next(case for case in grid if case.borders and len(case.offsets) > 10_000)
    strided = next(case for case in grid if len(case.strides) == 2)
    mislabelled = [
        dataclasses.replace(streams, k=7),
        dataclasses.replace(streams, kind="random"),
        dataclasses.replace(phases, borders=(phases.borders[0] + len(phases.offsets) // 5,)),
        dataclasses.replace(strided, strides=(strided.strides[0], strided.strides[0])),
    ]
    for path in PATHS:
        _, wrong, _ = run(mislabelled, path)
        assert len(wrong) == len(mislabelled), wrong


@pytest.mark.parametrize("path", PATHS)
def test_hot_set_that_becomes_cold_has_two_phases(path: str) -> None:
    draws = np.random.default_rng(9)
    n = 30_011
    both = [cases.zipf(draws, n, 4096, 4096, 1.3), cases.uniform(draws, n, 4096, 1 << 20, 1 << 40)]
    for parts, kinds in ((both, ["hot-set", "random"]), (both[::-1], ["random", "hot-set"])):
        case = cases.case("hot and cold", "mixed", np.concatenate(parts), 4096, borders=(n,))
        verdict = judged(case, path)
        assert [phase["class"] for phase in verdict["evidence"]["phases"]] == kinds
        assert not fault(case, verdict, path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "T"
    trace_analysis.make(folder, 1_500_000)
    return folder


def test_bundle_is_classified_again_from_its_events(bundle: Path) -> None:
    """1.5 million events in two row groups; bench/trace_analysis.py has 100 million."""
    assert pq.ParquetFile(bundle / "io_events.parquet").metadata.num_row_groups == 2
    size = (bundle / "io_events.parquet").stat().st_size
    assert size / 1_500_000 <= 12
    two_threads = judge_run(TraceTables(bundle, {}), threads=2)
    assert trace_analysis.faults(two_threads, 1_500_000) == []
    single_thread = judge_run(TraceTables(bundle, {}), threads=1)
    assert [(r["calls"], r["together"]["class"]) for r in single_thread] == [
        (r["calls"], r["together"]["class"]) for r in two_threads
    ]
    assert trace_analysis.faults(
        single_thread[1:] + single_thread[:1], 1_500_001
    )  # one call is missing


def test_truncated_and_foreign_event_files_are_refused(bundle: Path, tmp_path: Path) -> None:
    complete = (bundle / "io_events.parquet").read_bytes()
    contents: dict[str, Any] = {
        "torn": complete[: len(complete) // 2],
        "foreign": b"events",
        "empty": b"",
    }
    for name, bytes_ in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "io_events.parquet").write_bytes(bytes_)
        with pytest.raises(BadInput, match=r"io_events\.parquet: .*expected Parquet"):
            judge_run(TraceTables(tmp_path / name, {}))
    with pytest.raises(BadInput, match="io_events"):
        judge_run(TraceTables(tmp_path / "nothing", {}))
    assert importlib.import_module("penstock._native").Judge().verdicts() == "[]"
