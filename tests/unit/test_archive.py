"""Bundles, tables over all runs, the catalogue, removal, and docs/formats.md."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.archive import schemas
from penstock.archive.bundle import Bundle, partial_path
from penstock.archive.catalogue import Catalogue, studies_below
from penstock.archive.formats import formats
from penstock.archive.removal import remove, runs_removal, study_removal
from penstock.archive.runs import attempts, attempts_table, bundles, joined, runs_table, set_aside
from penstock.archive.schemas import TABLES, described
from penstock.archive.schemas.table import BUNDLE_KEYS
from penstock.errors import BadInput, PenstockError

ROOT = Path(__file__).parents[2]


def manifest(run_id: str, **more: Any) -> dict[str, Any]:
    number = int(run_id[1:])
    return {
        "study_id": "tiny-00000000",
        "treatment_id": f"t{number:02d}",
        "run_id": run_id,
        "levels": {"disk": "fast" if number % 2 else "slow"},
        "host": {"host_id": "host-a"},
        "node_id": "node1",
        "run_order": number,
        "standard_order": number,
        "replicate": 1,
        "block_id": 1,
        "responses": {"bandwidth": {"value": 10.0 * number, "unit": "MiB/s"}},
        "times": {"start_realtime_ns": number, "wall_s": 1.5},
        **more,
    }


def make_bundle(out: Path, run_id: str, **more: Any) -> Bundle:
    with Bundle.create(out / "runs" / run_id, manifest(run_id, **more)) as bundle:
        bundle.write_table("clocks", pa.table({"point": ["start", "end"], "monotonic_ns": [1, 2]}))
        bundle.write_table("fidelity", pa.table({"disk_id": ["d"], "ratio": [1.0]}))
    return bundle


def make_study(out: Path, planned: int = 3) -> None:
    out.mkdir(parents=True, exist_ok=True)
    campaign = {
        "schema": "penstock/campaign/1",
        "study_id": "tiny-00000000",
        "planned_runs": planned,
    }
    (out / "campaign.json").write_text(json.dumps(campaign))
    (out / "study.yaml").write_text("name: tiny\n")


def test_a_bundle_appears_when_it_is_finished(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "r001"
    bundle = Bundle.create(place, manifest("r001"))
    bundle.write_table("clocks", pa.table({"point": ["start"]}))
    assert not place.exists()
    bundle.finish()
    assert Bundle.open(place).manifest["run_id"] == "r001"
    assert not partial_path(place).exists()
    with pytest.raises(PenstockError, match="exists already"):
        Bundle.create(place)


def test_a_bundle_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> None:
        with Bundle.create(tmp_path / "runs" / "r001", manifest("r001")) as bundle:
            bundle.write_table("clocks", pa.table({"point": ["start"]}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_directory_without_a_manifest_of_penstock_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="not a bundle"):
        Bundle.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": "other/1"}')
    with pytest.raises(PenstockError, match="not of schema"):
        Bundle.open(tmp_path)


def test_tables_carry_keys_units_and_meanings(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, "r007", attempt=2)
    table = bundle.table("clocks")
    assert table.column_names[:6] == [k.name for k in BUNDLE_KEYS]
    row = table.to_pylist()[1]
    assert (row["run_id"], row["attempt"], row["host_id"], row["node_id"]) == (
        "r007",
        2,
        "host-a",
        "node1",
    )
    field = table.schema.field("monotonic_ns")
    assert field.metadata[b"unit"] == b"ns"
    assert b"CLOCK_MONOTONIC" in field.metadata[b"meaning"]
    assert table.schema.metadata[b"penstock.table"] == b"clocks"
    path = str(bundle.path / "clocks.parquet")
    read = duckdb.sql(f"select run_id, point from read_parquet('{path}')").fetchall()
    assert read == [("r007", "start"), ("r007", "end")]


def test_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    bundle = Bundle.create(tmp_path / "r001", manifest("r001"))
    bundle.write_table("io_events", pa.table({"t_ns": pa.array([], pa.int64())}))
    read = bundle.table("io_events")
    assert read.num_rows == 0
    assert "run_id" in read.column_names


def test_runs_have_a_column_per_factor_and_response(tmp_path: Path) -> None:
    make_bundle(tmp_path, "r002")
    make_bundle(tmp_path, "r001", valid=False, reason="not cold", responses={})
    runs = runs_table(bundles(tmp_path), ["disk"], ["bandwidth"])
    frame = runs.to_pandas()
    assert list(frame["run_id"]) == ["r001", "r002"]
    assert list(frame["disk"]) == ["fast", "slow"]
    assert frame["bandwidth"].isna().tolist() == [True, False]
    assert frame["bandwidth"][1] == 20.0
    assert frame["valid"].tolist() == [False, True]
    assert frame["reason"].tolist() == ["not cold", ""]
    assert runs.schema.field("bandwidth").metadata[b"unit"] == b"MiB/s"


def test_earlier_attempts_are_stored_and_not_analysed(tmp_path: Path) -> None:
    make_bundle(tmp_path, "r001", valid=False, reason="host saturated")
    set_aside(tmp_path, "r001")
    make_bundle(tmp_path, "r001", attempt=2)
    assert [b.manifest["attempt"] for b in bundles(tmp_path)] == [2]
    assert [b.manifest["attempt"] for b in attempts(tmp_path)] == [1, 2]
    frame = attempts_table(attempts(tmp_path)).to_pandas()
    assert frame["reason"].tolist() == ["host saturated", ""]


def test_tables_of_all_runs_are_joined_with_their_keys(tmp_path: Path) -> None:
    for run_id in ("r001", "r002"):
        make_bundle(tmp_path, run_id)
    table = joined(bundles(tmp_path), "fidelity")
    assert table is not None
    assert table["run_id"].to_pylist() == ["r001", "r002"]
    assert joined(bundles(tmp_path), "samples") is None


def test_the_catalogue_is_rebuilt_from_the_bundles(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    make_study(out)
    make_bundle(out, "r001")
    make_bundle(out, "r002", valid=False, reason="lost")
    with Catalogue(tmp_path / "archive.sqlite") as catalogue:
        assert catalogue.rebuild(studies_below(tmp_path)) == 2
        (row,) = catalogue.studies()
        assert (row.runs, row.valid_runs, row.planned_runs, row.state) == (2, 1, 3, "stopped")
        assert row.size_bytes > 0
        before = catalogue.runs(out)
    (tmp_path / "archive.sqlite").unlink()
    with Catalogue(tmp_path / "archive.sqlite") as catalogue:
        assert catalogue.studies() == []
        catalogue.rebuild(studies_below(tmp_path))
        assert catalogue.runs(out) == before
        assert before[0]["levels"] == {"disk": "fast"}


def test_a_catalogue_of_a_later_penstock_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with Catalogue(path) as catalogue:
        catalogue.put_study(tmp_path, "tiny", "", "finished", 1)
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(PenstockError, match="later penstock"):
        Catalogue(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from studies").fetchone() == (1,)


def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    path.write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(PenstockError, match="--rebuild"):
        Catalogue(path)


def test_only_files_of_penstock_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_study(out)
    make_bundle(out, "r001")
    (out / "runs" / "mine").mkdir()
    (out / "runs" / "mine" / "thesis.txt").write_text("precious")
    (out / "notes.md").write_text("precious")
    (out / "figures").mkdir()
    (out / "figures" / "pareto.svg").write_text("<svg/>")
    remaining = remove(study_removal(out))
    assert (out / "runs" / "mine" / "thesis.txt").read_text() == "precious"
    assert [p.name for p in remaining] == ["notes.md", "runs"]
    assert not (out / "runs" / "r001").exists()
    assert not (out / "figures").exists()


def test_a_study_without_other_files_is_removed_completely(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_study(out)
    make_bundle(out, "r001")
    assert remove(study_removal(out)) == []
    assert not out.exists()


def test_single_runs_can_be_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_study(out)
    for run_id in ("r001", "r002"):
        make_bundle(out, run_id)
    remove(runs_removal(out, ["r001"]))
    assert [b.manifest["run_id"] for b in bundles(out)] == ["r002"]
    with pytest.raises(BadInput, match="no run r009"):
        runs_removal(out, ["r009"])


def test_no_link_is_followed_out_of_a_study(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    make_study(out)
    make_study(other)
    targets = [make_bundle(other, "r001"), other / "figures", other / "work"]
    for folder in targets[1:]:
        folder.mkdir()
        (folder / "a.svg").write_text("precious")
    for name in ("runs", "figures", "work"):
        (out / name).symlink_to(other / name)
    before = sorted(other.rglob("*"))
    remaining = remove(study_removal(out))
    assert [p.name for p in remaining] == ["figures", "runs", "work"]
    assert sorted(p for p in other.rglob("*") if p.name != ".lock") == before
    make_study(out)
    with pytest.raises(BadInput, match="no run r001"):
        runs_removal(out, ["r001"])


def test_a_link_created_during_a_removal_is_not_followed(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    make_study(out)
    make_bundle(out, "r001")
    removal = study_removal(out)
    (out / "runs").rename(other)
    (out / "runs").symlink_to(other)
    with pytest.raises(OSError, match="runs"):
        remove(removal)
    assert (other / "r001" / "manifest.json").exists()


def test_a_remote_work_directory_is_removed_with_its_study_only(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / ".penstock-work").write_text(f"{tmp_path / 'out'}\n")
    for name, removed in (("other", False), ("out", True)):
        make_study(tmp_path / name)
        (tmp_path / name / ".work").write_text(f"{place}\n")
        remove(study_removal(tmp_path / name))
        assert place.exists() is not removed


def test_a_directory_that_is_no_study_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(BadInput, match=r"campaign\.json"):
        study_removal(tmp_path)


def test_a_running_study_is_not_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_study(out)
    make_bundle(out, "r001")
    fd = os.open(out / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(PenstockError, match="running"):
            remove(study_removal(out))
    finally:
        os.close(fd)
    assert (out / "runs" / "r001").exists()


def test_columns_of_tables_are_unique() -> None:
    for table in TABLES.values():
        names = [c.name for c in table.columns]
        assert len(names) == len(set(names)), table.name
        keys = {k.name for k in BUNDLE_KEYS} | set(names)
        assert set(table.key) <= keys, table.name
        assert all(c.meaning for c in table.columns), table.name


def test_describing_changes_no_value() -> None:
    table = pa.table({"t_ns": [1, 2], "other": ["a", "b"]})
    assert described("samples", table).to_pylist() == table.to_pylist()
    assert described("unknown", table) is table


def test_each_table_is_described_once() -> None:
    names = [table.name for family in schemas._FAMILIES for table in family.TABLES]
    assert len(names) == len(set(names)) == len(TABLES)


def test_the_page_of_formats_matches_the_schemas() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    assert page == formats(), "run: python -m penstock.archive.formats > docs/formats.md"
