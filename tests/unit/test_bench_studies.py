"""Studies in benchmarks are valid with typical values."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from bench import answers_under_load
from penstock.study.load import read_study

VALUES = {
    "arguments": "{sync} {batch}",
    "factors": '  sync: {levels: ["always", "never"]}\n  batch: {levels: [1, 10]}',
    "jobs": "1, 4",
    "loops": 100,
    "mutates": "true",
    "name": "study",
    "passes": 2,
    "profile": "sata-ssd",
    "program": "program.py",
    "python": "python3",
    "question": "Does it matter?",
    "reads": 10,
    "records": 10,
    "replicates": 2,
    "runtime": 2.0,
    "scale": 1.5,
    "seed": 1,
}


BENCH = Path(__file__).parents[2] / "bench"
NAMES = [path.stem for path in sorted(BENCH.glob("*.py")) if "\nSTUDY = " in path.read_text()]


def test_benchmarks_with_a_study_are_listed() -> None:
    assert {"answers_under_load", "degraded", "conductor", "time_scales"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_study_of_a_benchmark_is_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / "disk.json").write_text(json.dumps(answers_under_load.profile()))
    text = importlib.import_module(f"bench.{name}").STUDY.format(**VALUES)
    study = read_study(text.encode(), tmp_path / "s.study.yaml")
    assert study.design is not None
