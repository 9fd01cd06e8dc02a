"""Columns of a `PointReader` as a table of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.parts.monitoring.experiments.points import POINTS

Columns = Mapping[str, Any]


def unit_of(metric: str) -> str:
    """Unit of a metric by the suffix of its name, as in Prometheus (`_seconds`, `_bytes`, `_ratio`)."""
    suffixes = metric.rsplit("_", 2)[1:]
    if len(suffixes) == 2 and suffixes[1] in ("total", "sum", "max", "min"):
        suffixes = suffixes[:1]
    units = {
        "seconds": "s",
        "bytes": "B",
        "ratio": "1",
        "celsius": "°C",
        "joules": "J",
        "watts": "W",
        "volts": "V",
        "amperes": "A",
        "hertz": "Hz",
        "percent": "%",
        "meters": "m",
    }
    return units.get(suffixes[-1], "") if suffixes else ""


def no_unit(metric: str) -> str:
    """Unit of metrics of protocols without units: none."""
    return ""


def table_of(
    columns: Columns, unit: Callable[[str], str] = no_unit
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Columns of a `PointReader` as a table of points, without those of unprintable names, and a mask of the
    rows left out."""
    rows = len(columns["kind"])
    metric = np.frombuffer(columns["metric"], np.int32)
    labels = np.frombuffer(columns["labels"], np.int32)
    kind = np.frombuffer(columns["kind"], np.uint8)
    bits = np.frombuffer(columns["bits"], np.int64)
    names, sets = columns["metrics"], columns["label_sets"]
    units = [unit(name) for name in names]
    unit_names = sorted(set(units))
    of_unit = np.array([unit_names.index(u) for u in units], np.int32)
    texts = pa.nulls(rows, pa.string())
    if columns["texts"]:
        position = np.full(rows, -1)
        position[kind == 2] = np.arange(len(columns["texts"]))
        taken = pa.array(position, pa.int64(), mask=kind != 2)
        texts = pa.array(columns["texts"], pa.string()).take(taken)
    table = pa.table(
        [
            _dictionary(metric, names),
            _dictionary(labels, sets),
            pa.array(np.frombuffer(columns["utc_ns"], np.int64)),
            pa.nulls(rows, pa.int64()),
            _values(bits.view(np.float64), kind != 0, pa.float64()),
            _values(bits, kind != 1, pa.int64()),
            texts,
            _values(bits != 0, kind != 3, pa.bool_()),
            _dictionary(of_unit[metric] if rows else metric, unit_names),
        ],
        schema=POINTS,
    )
    unprintable_names = np.array([not name.isprintable() for name in names], bool)
    unprintable_sets = np.array([not text.isprintable() for text in sets], bool)
    unprintable = np.zeros(rows, bool)
    if unprintable_names.any() or unprintable_sets.any():
        unprintable = unprintable_names[metric] | unprintable_sets[labels]
        table = table.filter(pa.array(~unprintable))
    return table, unprintable


def _values(values: Any, missing: Any, kind: pa.DataType) -> pa.Array:
    if missing.all():
        return pa.nulls(len(missing), kind)
    return pa.array(values, kind, mask=missing if missing.any() else None)


def _dictionary(indices: Any, texts: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int32()), pa.array(texts, pa.string())
    )
