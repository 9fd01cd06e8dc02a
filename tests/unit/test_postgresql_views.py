"""Statistics views of PostgreSQL are recognised by several columns, in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.workload import metrics

TIMES = ("2026-11-25 04:26:02.032329+00", "2026-11-25 04:26:03.032329+00")
VIEWS = {
    "pg_stat_bgwriter": [
        # up to 16, and from 17 on
        "checkpoints_timed,checkpoints_req,checkpoint_write_time,buffers_checkpoint,buffers_clean,"
        "maxwritten_clean,buffers_backend,buffers_alloc,stats_reset",
        "buffers_clean,maxwritten_clean,buffers_alloc,stats_reset",
    ],
    "pg_stat_checkpointer": [
        "num_timed,num_requested,restartpoints_timed,restartpoints_req,restartpoints_done,write_time,"
        "sync_time,buffers_written,stats_reset",
        "num_timed,num_requested,num_done,restartpoints_timed,restartpoints_req,write_time,sync_time,"
        "buffers_written,slru_written,stats_reset",
    ],
    "pg_stat_wal": [
        "wal_records,wal_fpi,wal_bytes,wal_buffers_full,wal_write,wal_sync,wal_write_time,stats_reset",
        "wal_records,wal_fpi,wal_bytes,wal_buffers_full,stats_reset",
    ],
    # has wal_records, wal_fpi and wal_bytes as well
    "pg_stat_statements": [
        "userid,dbid,toplevel,queryid,query,plans,calls,total_exec_time,min_exec_time,rows,wal_records,"
        "wal_fpi,wal_bytes,wal_buffers_full"
    ],
    "pg_stat_io": [
        "backend_type,object,context,reads,read_time,writes,op_bytes,hits,evictions,stats_reset",
        "backend_type,object,context,reads,read_bytes,read_time,writes,write_bytes,hits,stats_reset",
    ],
    "pg_stat_slru": [
        "name,blks_zeroed,blks_hit,blks_read,blks_written,flushes,truncates,stats_reset"
    ],
    "pg_statio_indexes": [
        "relid,indexrelid,schemaname,relname,indexrelname,idx_blks_read,idx_blks_hit"
    ],
    "pg_statio_sequences": ["relid,schemaname,relname,blks_read,blks_hit"],
}
TEXTS = {
    "stats_reset": "",
    "query": '"select 1, 2"',
    "toplevel": "t",
    "backend_type": "client backend",
}


def write(path: Path, header: str, separator: str = ",") -> Path:
    columns = header.split(",")
    names = ("name", "object", "context", "schemaname", "relname", "indexrelname")
    cells = [TEXTS.get(c, c if c in names else "7") for c in columns]
    rows = [separator.join(["time", *columns]), *(separator.join([t, *cells]) for t in TIMES)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("view", "header"), [(view, header) for view, headers in VIEWS.items() for header in headers]
)
def test_views_of_every_version(view: str, header: str, tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", header)
    assert metrics.reader_of(path) == "postgresql"
    readings = metrics.read(path)
    assert readings.facts == {"view": view, "readings": 2}
    levels = readings.samples[~readings.samples["cumulative"]]["metric"]
    assert set(levels) <= {"min_exec_time", "op_bytes"}
    assert not set(readings.samples["metric"]) & {
        "userid",
        "queryid",
        "dbid",
        "relid",
        "indexrelid",
    }
    times = readings.samples[readings.samples["metric"].str.endswith("_time")]["unit"]
    assert set(times) <= {"ms"}


@pytest.mark.parametrize("separator", ["\t", ";"])
def test_views_with_another_separator(separator: str, tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", VIEWS["pg_stat_bgwriter"][1], separator)
    assert metrics.reader_of(path) == "postgresql"
    assert metrics.read(path).samples["cumulative"].all()


def test_one_column_is_not_enough_for_a_view(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", "buffers_checkpoint,latency_ms")
    assert metrics.reader_of(path) == "csv"
    with pytest.raises(BadInput, match="found 'time,buffers_checkpoint,latency_ms'"):
        metrics.read(path, "postgresql")


def test_views_without_statistics_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", "pid,usename,application_name,state,sent_lsn")
    with pytest.raises(BadInput, match="found pg_stat_replication, which has no statistics"):
        metrics.read(path)


def test_a_time_without_a_zone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", VIEWS["pg_stat_bgwriter"][1])
    path.write_text(path.read_text().replace("+00", ""))
    with pytest.raises(BadInput, match="a time without a zone"):
        metrics.read(path)
