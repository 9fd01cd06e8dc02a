"""Derived series stored in a bundle with their expressions: the table `derived`."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.archive.series.expression import derived
from penstock.archive.series.series import Recorded, Series
from penstock.errors import BadInput, printable

TABLE = "derived"
_SCHEMA = TABLES[TABLE].arrow
MOST_STORED = 10_000_000


def keep(
    bundle: Bundle, recorded: Recorded, name: str, expression: str, unit: str | None = None
) -> Recorded:
    """Compute a series from those of a bundle and store it there; one of that name is replaced.

    `recorded` are the bundle's series. BadInput as for `derived`, for a sequence, or for the name of a
    recorded series, or several results for one node.
    """
    if recorded.axis != "time" or recorded.start_utc_ns is None:
        raise BadInput(
            f"{bundle.path}: found no series over time; expected some (plot --derive draws others)"
        )
    stored = read(bundle)
    before = set() if stored is None else set(stored["metric"].to_pylist())
    if name not in before and any(name in (s.name, s.quantity) for s in recorded.series):
        raise BadInput(f"found name {name}, that of a recorded series; expected another")
    # a replaced series is not an input of its replacement
    others = [s for s in recorded.series if s.quantity != name or name not in before]
    computed = derived(Recorded(others, start_utc_ns=recorded.start_utc_ns), name, expression, unit)
    nodes = Counter(s.node for s in computed.series)
    for node, count in nodes.items():
        if count > 1:  # they would be stored as one
            raise BadInput(
                f"{name}: found {count} series of {printable(node) or 'no node'}; expected one, such as "
                "their sum, or a name or label that selects it"
            )
    tables = [] if stored is None else [stored.filter(pc.not_equal(stored["metric"], name))]
    tables += [_table(s, name, expression, recorded.start_utc_ns) for s in computed.series]
    table = pa.concat_tables(tables)
    if table.num_rows > MOST_STORED:
        raise BadInput(f"{name}: found {table.num_rows} points; expected {MOST_STORED} at most")
    bundle.write_table(TABLE, table)
    return computed


def read(bundle: Bundle) -> pa.Table | None:
    """The table with plain texts; None without derived series."""
    if TABLE not in bundle.tables:
        return None
    return bundle.table(TABLE, _SCHEMA.names).cast(_SCHEMA)


def series_of(bundle: Bundle, start_utc_ns: int, run: str = "", group: str = "") -> list[Series]:
    """Derived series of a bundle, in the form of recorded ones."""
    table = read(bundle)
    if table is None or not table.num_rows:
        return []
    rows = table.to_pandas()
    series = []
    for (metric, labels), group_rows in rows.groupby(["metric", "labels"], sort=False):
        node = " ".join(json.loads(labels).values())
        x = (group_rows["utc_ns"].to_numpy(np.int64) - start_utc_ns) / 1e9
        unit = str(group_rows["unit"].iloc[0])
        name = f"{metric} {node}".strip()
        y = group_rows["value"].to_numpy(float)
        series.append(Series(name, x, y, unit, node, str(metric), run, group))
    return series


def _table(series: Series, name: str, expression: str, start_utc_ns: int) -> pa.Table:
    use = np.isfinite(series.y)
    rows = int(use.sum())
    labels = json.dumps({"node": series.node}) if series.node else "{}"
    at = start_utc_ns + np.round(series.x[use] * 1e9).astype(np.int64)
    texts = {"metric": name, "labels": labels, "unit": series.unit, "expression": expression}
    columns = {
        **{k: pa.repeat(pa.scalar(v, pa.string()), rows) for k, v in texts.items()},
        "utc_ns": pa.array(at),
        "value": pa.array(series.y[use], pa.float64()),
    }
    return pa.table([columns[n] for n in _SCHEMA.names], schema=_SCHEMA)
