"""Coverage of a mapping: traced pages as a share of present pages, on a hand-made run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.observe.trace.layers.coverage import mapped_table

PAGE = 4096


def test_coverage_is_the_share_of_present_pages_that_were_traced(tmp_path: Path) -> None:
    bits = bytearray(64)
    for page in range(10):
        bits[page >> 3] |= 1 << (page & 7)
    line = {"before": False, "first_page": 512, "mapped": 3, "pid": 7, "present": bits.hex()}
    names = tmp_path / "names"
    names.write_text(json.dumps(line, sort_keys=True) + "\n" + '{"before": torn')
    events = pa.table(
        {
            "op": ["fault_read", "fault_around", "fault_write", "read", "fault_read"],
            "file_id": [3, 3, 3, 3, 3],
            "pid": [7, 7, 7, 7, 8],
            # page 512; 513 to 516; 600, which is not present; a call; another process
            "offset_bytes": [512 * PAGE, 513 * PAGE, 600 * PAGE, 517 * PAGE, 518 * PAGE],
            "size_bytes": [PAGE, 4 * PAGE, PAGE, PAGE, PAGE],
        }
    )
    pq.write_table(events, tmp_path / "events")
    (row,) = mapped_table(names, tmp_path / "events", lost=2).to_pylist()
    assert row["coverage"] is None
    (row,) = mapped_table(names, tmp_path / "events").to_pylist()
    assert row == {
        "file_id": 3,
        "pid": 7,
        "pages_before": 0,
        "pages_present": 10,
        "pages_seen": 5,
        "coverage": 0.5,
    }
