"""Size models: exact sums, the requested spread, reproducible sizes; a note about generated files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.formats.upgrade import instance_of
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.sizes import SizeModel, suffix_of


def instance(tmp_path: Path, tasks: int = 400, same: bool = True) -> Path:
    """Tasks that each read a `.raw` and write a `.fits` file, with equal or with distinct sizes."""
    rows, files = [], []
    for i in range(tasks):
        rows.append(
            {
                "name": "project",
                "id": f"t{i}",
                "parents": [],
                "children": [],
                "inputFiles": [f"in{i}.raw"],
                "outputFiles": [f"out{i}.fits"],
            }
        )
        files.append({"id": f"in{i}.raw", "sizeInBytes": 2000 + (0 if same else i)})
        files.append({"id": f"out{i}.fits", "sizeInBytes": 100_000 + (0 if same else 7 * i)})
    values = {
        "name": "alike",
        "schemaVersion": "1.5",
        "workflow": {"specification": {"tasks": rows, "files": files}},
    }
    path = tmp_path / "alike.json"
    path.write_text(json.dumps(values))
    return path


def by_suffix(sizes: dict[str, int], suffix: str) -> list[int]:
    return [size for name, size in sizes.items() if name.endswith(suffix)]


def test_files_of_equal_size_are_noted(tmp_path: Path) -> None:
    notes = read_workload(instance(tmp_path)).notes
    assert any(
        "800 of 800 files are exactly as large as all others of their kind" in n for n in notes
    )
    assert not any("as large" in n for n in read_workload(instance(tmp_path, same=False)).notes)
    # too few files for a note
    assert not any("as large" in n for n in read_workload(instance(tmp_path, 4)).notes)


def test_lognormal_keeps_every_kinds_sum_exactly_and_has_the_spread(tmp_path: Path) -> None:
    path = instance(tmp_path)
    before = read_workload(path).file_sizes
    workload = read_workload(path, size_model=SizeModel(0.5, seed=3))
    after = workload.file_sizes
    for suffix in (".raw", ".fits"):
        assert sum(by_suffix(after, suffix)) == sum(by_suffix(before, suffix))
    log_sizes = np.log(by_suffix(after, ".fits"))
    # the standard error of a standard deviation is s/sqrt(2n); the limit is five of them
    assert abs(log_sizes.std() - 0.5) < 5 * 0.5 / np.sqrt(800)
    operations = [o for task in workload.tasks for o in task.operations if o.op == "write"]
    assert [o.size_bytes for o in operations] == by_suffix(after, ".fits")
    assert not any("as large" in note for note in workload.notes)


def test_sizes_depend_only_on_the_seed(tmp_path: Path) -> None:
    path = instance(tmp_path)
    first, same, different = (
        read_workload(path, size_model=SizeModel(0.5, seed=seed)).file_sizes for seed in (3, 3, 4)
    )
    assert first == same != different


def test_no_spread_changes_nothing(tmp_path: Path) -> None:
    path = instance(tmp_path)
    assert read_workload(path, size_model=SizeModel(0.0)).to_dict() == read_workload(path).to_dict()


def test_a_table_gives_means_by_stage_and_suffix(tmp_path: Path) -> None:
    table = tmp_path / "means.json"
    table.write_text(json.dumps({"project.fits": 50_000, ".nothing": 3}))
    path = instance(tmp_path)
    sizes = read_workload(path, size_model=SizeModel.parse(f"table:{table}")).file_sizes
    assert set(by_suffix(sizes, ".fits")) == {50_000}
    assert set(by_suffix(sizes, ".raw")) == {2000}
    spread = read_workload(path, size_model=SizeModel.parse(f"table:{table}:1.0", 2)).file_sizes
    assert sum(by_suffix(spread, ".fits")) == 400 * 50_000
    assert len(set(by_suffix(spread, ".fits"))) > 300


def test_new_sizes_reach_the_instance_that_is_written(tmp_path: Path) -> None:
    workload = read_workload(instance(tmp_path), size_model=SizeModel(0.5))
    specification = instance_of(workload)["workflow"]["specification"]
    written = {f["id"]: f["sizeInBytes"] for f in specification["files"]}
    assert written == workload.file_sizes
    assert specification["metrics"]["sumOfFileSizesInBytes"] == sum(written.values())


def test_sizes_beyond_exact_floats_keep_their_sum(tmp_path: Path) -> None:
    path = instance(tmp_path, 6)
    values = json.loads(path.read_text())
    for file in values["workflow"]["specification"]["files"]:
        file["sizeInBytes"] = 2**57 + 1
    path.write_text(json.dumps(values))
    sizes = read_workload(path, size_model=SizeModel(0.1)).file_sizes
    assert sum(sizes.values()) == 12 * (2**57 + 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lognormal",
        "lognormal:",
        "lognormal:wide",
        "lognormal:-1",
        "lognormal:nan",
        "lognormal:inf",
        "table",
        "table:",
        "normal:1",
        "table:/nowhere/means.json",
    ],
)
def test_bad_models_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        SizeModel.parse(text)


@pytest.mark.parametrize(
    "table", [{"a": -1}, {"a": "5"}, {"a": None}, {"a": True}, {"a": float("nan")}, [1]]
)
def test_bad_tables_are_refused(tmp_path: Path, table: Any) -> None:
    path = tmp_path / "means.json"
    path.write_text(json.dumps(table))
    with pytest.raises(BadInput, match=r"means\.json:1:"):
        SizeModel.parse(f"table:{path}")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("a.fits", ".fits"),
        ("d/a.tar.gz", ".gz"),
        ("small.fasta.0", ".fasta"),
        ("nt", ""),
        ("x.1", ""),
    ],
)
def test_the_suffix_of_a_name(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix
