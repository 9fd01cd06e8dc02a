"""An exporter: a line with offset and size for each event of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.archive.traces.trace_tables import TraceTables


def export(rows: TraceTables, target: Path, part_bytes: int) -> dict[str, Any]:
    """Write `target`; return the number of events."""
    count = 0
    with target.open("w") as out:
        for batch in rows.event_batches():
            for offset, size in zip(batch["offset_bytes"], batch["size_bytes"], strict=True):
                out.write(f"{offset} {size}\n")
                count += 1
    return {"files": [str(target)], "events": count}
