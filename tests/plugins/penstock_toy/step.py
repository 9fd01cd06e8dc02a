"""A step of an analysis: the number of runs as a table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.campaign.analysis import Analysis


def toy(analysis: Analysis) -> None:
    """Write `toys.parquet` with one row."""
    pq.write_table(pa.table({"runs": [len(analysis.runs)]}), analysis.out / "toys.parquet")
