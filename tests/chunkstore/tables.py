"""Convert the records of a store to rows of the table `measured`, and write them to a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.chunkstore.store import Rows

#: length of a window in which outstanding requests are counted
WINDOW_S = 0.1

Row = dict[str, Any]


def measured_rows(rows: Rows, window_s: float = WINDOW_S) -> list[Row]:
    """Times of requests, waits, bytes, and outstanding requests of each server in each window."""
    result = [result for record in rows.records for result in _of_request(record)]
    result += [
        _row("workflow", "run", "makespan", trial, ended - begin_s)
        for trial, (begin_s, ended) in rows.trials.items()
    ]
    return result + list(_in_flight(rows, window_s))


def write(rows: Rows, path: Path, window_s: float = WINDOW_S) -> Path:
    """Write the rows as Parquet."""
    result_rows = measured_rows(rows, window_s)
    names = ["module", "operation", "metric", "trial", "value", "unit", "node", "window"]
    types = [
        pa.float64() if n == "value" else pa.int64() if n == "window" else pa.string()
        for n in names
    ]
    table = pa.Table.from_pylist(result_rows, pa.schema(list(zip(names, types, strict=True))))
    pq.write_table(table, path)
    return path


def _row(module: str, operation: str, metric: str, trial: str, value: float, **fields: Any) -> Row:
    return {
        "module": module,
        "operation": operation,
        "metric": metric,
        "trial": trial,
        "value": value,
        "unit": "s",
        **fields,
    }


def _of_request(record: Row) -> Iterator[Row]:
    name = record["module"], record["operation"]
    trial = record["trial"]
    if name[0] == "client":
        if "connect" in record:
            yield _row(*name, "connect_time", trial, record["connect"])
        else:
            yield _row(*name, "client_time", trial, record["ended"] - record["begun"])
    elif name[0] == "manager":
        yield _row(*name, "server_time", trial, record["ended"] - record["begun"])
        yield _row(*name, "lock_wait", trial, record["lock_wait"])
    else:
        node = {"node": record["node"]}
        yield _row(*name, "server_time", trial, record["ended"] - record["received"], **node)
        yield _row(*name, "bytes", trial, record["bytes"], **node, unit="B")


def _in_flight(rows: Rows, window_s: float) -> Iterator[Row]:
    """Mean number of requests at each storage server in each window of each trial."""
    outstanding_s: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    for record in rows.records:
        if record["module"] != "storage" or record["trial"] not in rows.trials:
            continue
        start = rows.trials[record["trial"]][0]
        begin_s, ended = record["begun"] - start, record["ended"] - start
        for window in range(int(max(begin_s, 0) / window_s), int(max(ended, 0) / window_s) + 1):
            low, high = window * window_s, (window + 1) * window_s
            outstanding_s[record["trial"], record["node"], window] += min(ended, high) - max(
                begin_s, low
            )
    for (trial, node, window), seconds in outstanding_s.items():
        value = seconds / window_s
        yield _row(
            "storage", "write", "in_flight", trial, value, node=node, window=window, unit="1"
        )
