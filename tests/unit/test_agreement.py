"""Agreement of three independent sources on the bytes of a run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.analyse.fidelity.agreement import ALL_FILES, Claim, agreement, read_claims
from penstock.errors import BadInput

MOUNT = "/run/penstock/x/data"


def tables(disk_bytes: int = 8192) -> tuple[pa.Table, pa.Table, pa.Table]:
    events = pa.table(
        {
            "file_id": [1, 1, 2, 3],
            "direction": ["read", "read", "write", "read"],
            "done_bytes": [4096, 4096, 100, 999],
        }
    )
    files = pa.table({"file_id": [1, 2, 3], "path": [f"{MOUNT}/a", f"{MOUNT}/b", "/etc/passwd"]})
    requests = pa.table({"file": ["a"], "op": ["read"], "size_bytes": [disk_bytes]})
    return events, files, requests


def test_three_sources_agree() -> None:
    row = agreement([Claim("a", "read", 8192, "fio")], *tables(), MOUNT).to_pylist()[0]
    assert (row["traced_bytes"], row["disk_bytes"], row["agrees"]) == (8192, 8192, True)


def test_files_outside_the_disk_do_not_count() -> None:
    row = agreement([Claim(ALL_FILES, "read", 8192, "fio")], *tables(), MOUNT).to_pylist()[0]
    assert row["traced_bytes"] == 8192


@pytest.mark.parametrize(
    ("disk_bytes", "agrees"), [(8192 * 102 // 100, True), (8192 * 103 // 100, False)]
)
def test_two_percent_is_the_limit(disk_bytes: int, agrees: bool) -> None:
    row = agreement([Claim("a", "read", 8192, "fio")], *tables(disk_bytes), MOUNT).to_pylist()[0]
    assert row["agrees"] is agrees


def test_a_missing_source_is_null_not_zero() -> None:
    events, files, _ = tables()
    row = agreement([Claim("a", "read", 8192, "fio")], events, files, None, MOUNT).to_pylist()[0]
    assert row["disk_bytes"] is None
    assert row["agrees"] is True
    row = agreement([Claim("a", "read", 8192, "fio")], None, None, None, MOUNT).to_pylist()[0]
    assert row["agrees"] is None


def test_claims_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    assert read_claims(path) == []
    path.write_text('[{"file": "a", "direction": "read", "bytes": 5, "by": "x"}]')
    assert read_claims(path) == [Claim("a", "read", 5, "x")]
    for broken in (
        "{",
        '[{"file": "a"}]',
        '[{"file": "a", "direction": "up", "bytes": 5, "by": "x"}]',
    ):
        path.write_text(broken)
        with pytest.raises(BadInput, match=r"claims\.json"):
            read_claims(path)
