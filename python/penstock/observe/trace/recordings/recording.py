"""An imported recording before evaluation: a spool of tracer records, and names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadInput
from penstock.observe.trace.capture.events import EVENT, NUMBERS

Row = dict[str, Any]

#: fields of a call besides its time, file and operation
_FIELDS = ("offset_bytes", "size_bytes", "latency_ns", "tid")
#: most bytes of a record of the spool
_MOST_BYTES = (1 << 31) - 1


@dataclass
class Recording:
    """A spool with its names; `basis` is `calls` or `device`.

    `files` and `threads` are rows of those tables; `counts` has seen, kept, filtered, lost; `source` has
    `format`, and in `not_known` a line for each kind of information that the source lacks.
    """

    spool: Path
    files: list[Row]
    threads: list[Row]
    counts: dict[str, int]
    basis: str
    source: dict[str, Any]
    tables: dict[str, pa.Table] = field(default_factory=dict)

    @classmethod
    def of_calls(
        cls, folder: Path, calls: Iterable[Row], source: dict[str, Any], *, lost: int = 0
    ) -> Recording:
        """A recording of calls, in any order, with its spool in `folder`.

        Each has `t_ns`, `op` (as in `io_events`: `read`, `pwrite64`, `fsync`, …) and `file`, a path;
        `offset_bytes`, `size_bytes` (0 for a flush), `latency_ns` and `tid`, or 0. KeyError for another `op`,
        BadInput for a size that no call has.
        """
        numbers: dict[str, int] = {}
        names: dict[int, Row] = {}
        rows = sorted(calls, key=lambda call: call["t_ns"])
        records = np.zeros(len(rows), EVENT)
        for record, call in zip(records, rows, strict=True):
            tid, size = call.get("tid", 0), call.get("size_bytes", 0)
            if not 0 <= size <= _MOST_BYTES:
                expected = f"0 to {_MOST_BYTES:,}, the most that one call moves"
                raise BadInput(f"{call['file']}: found {size:,} bytes; expected {expected}")
            names.setdefault(tid, {"pid": tid, "tid": tid, "name": "", "first_ns": call["t_ns"]})
            record["t_ns"], record["op"] = call["t_ns"], NUMBERS[call["op"]]
            record["file_id"] = numbers.setdefault(call["file"], len(numbers) + 1)
            for name in _FIELDS:
                record[name] = call.get(name, 0)
            record["pid"], record["done_bytes"] = tid, record["size_bytes"]
        spool = folder / "spool"
        records.tofile(spool)
        files = [{"file_id": number, "path": path} for path, number in numbers.items()]
        counts = {"seen": len(rows) + lost, "kept": len(rows), "filtered": 0, "lost": lost}
        return cls(spool, files, list(names.values()), counts, "calls", source)
