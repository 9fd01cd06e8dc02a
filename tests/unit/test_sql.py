"""SQL over the tables of a trace stays within these tables, with any names of files and paths."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.traces.trace_compare import Run
from penstock.analyse.traces.traced_run import TracedRun
from tests.examples.trace_page import events, write_bundle


def calls(run: TracedRun) -> int:
    return int(run.query("SELECT count(*) AS n FROM io_events")[0]["n"])


@pytest.mark.parametrize("name", ["T[1]", "T?", "T*", "it's"])
def test_a_bundle_whose_name_is_also_a_pattern(tmp_path: Path, name: str) -> None:
    write_bundle(tmp_path / "T1", events(600))
    odd = write_bundle(tmp_path / name, events(50))
    assert calls(TracedRun(odd)) == 50
    assert sum(side["requests"] for side in Run(odd).sums.values()) == 50


def test_a_folder_named_like_a_column_adds_no_column(tmp_path: Path) -> None:
    run = TracedRun(write_bundle(tmp_path / "size=4096" / "T", events(50)))
    assert not run.has("io_events", "size")


def test_a_table_named_like_a_statement(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "T", events(50))
    name = 'x" AS SELECT 1; DROP VIEW io_events; --'
    pq.write_table(pa.table({"a": [3]}), bundle / f"{name}.parquet")
    run = TracedRun(bundle)
    assert run.has(name, "a")
    assert run.rows(name, 0, 5) == [{"a": 3}]
    assert calls(run) == 50


def test_rows_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "T", events(50))
    table = pa.table({"n": range(500_000)})
    pq.write_table(table, bundle / "numbers.parquet", row_group_size=10_000)
    rows = TracedRun(bundle).rows("numbers", 300_000, 1000)
    assert [row["n"] for row in rows] == list(range(300_000, 301_000))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_parquet('{other}')",
        "SELECT * FROM glob('/etc/*')",
        "COPY (SELECT 1) TO '{free}'",
        "ATTACH '{free}'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT * FROM beside",
    ],
)
def test_nothing_else_can_be_reached(tmp_path: Path, query: str) -> None:
    bundle = write_bundle(tmp_path / "T", events(50))
    other, free = tmp_path / "other.parquet", tmp_path / "free"
    beside = pa.table({"a": [1]})
    pq.write_table(beside, other)
    with pytest.raises(duckdb.Error):
        TracedRun(bundle).query(query.format(other=other, free=free))
    assert not free.exists()


def test_temporary_data_goes_to_a_private_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TracedRun(write_bundle(tmp_path / "T", events(50)))
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path / "shared")
    place = Path(run.query("SELECT current_setting('temp_directory') AS place")[0]["place"])
    assert place.is_absolute()
    assert place.parent.stat().st_mode & 0o777 == 0o700
    del run
    assert not place.parent.exists()
