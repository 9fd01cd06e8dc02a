"""Import of other programs' recordings as experiments that have ended: tables of MonEx, JSON of kube-burner
and sar, and more.

A reader of `plugins.METRIC_READERS` reads the file; a table over a sequence (`sample,duration,…` of MonEx)
becomes series by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from penstock.archive.catalogue import local_user, open_index
from penstock.archive.series import delimited, series_tables
from penstock.archive.series.series import Series
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels, points
from penstock.workload.metrics import UNITS_UNKNOWN, Readings, read

_ROWS = 1_000_000
_NS = 10**9


def take_in(
    store: Experiments,
    owner: str,
    name: str,
    path: Path,
    *,
    form: str | None = None,
    description: Mapping[str, Any] | None = None,
    metric: str = "",
    unit: str = "",
) -> tuple[Experiment, int, list[str]]:
    """Start the experiment `name` (its next repeat) at the file's first point and end it at its last.

    `metric`: metric of all columns of a table, each named by the label `entity`. `description`: options of
    the reader. Returns the experiment, the number of its points, and notes on them. BadInput for a file that
    no reader accepts.
    """
    numbered = _sequence_column(path) if form in (None, "csv") else None
    if numbered is not None:
        batches, span, notes = _of_sequence(path, numbered, metric, unit)
    else:
        readings = read(path, form, description)
        batches, span, notes = _of_readings(readings, path, metric, unit)
    facts = {"imported": [{"file": path.name, "reader": form or ""}], "notes": notes}
    begun = store.start(name, owner, at_ns=span[0], facts=facts)
    try:
        sink = store.sink(begun)
        number = sum(sink.write(batch).points for batch in batches)
    except BaseException:
        store.remove(store.stop(begun, at_ns=span[1], state="aborted"))
        raise
    return store.stop(begun, at_ns=span[1]), number, notes


def _sequence_column(path: Path) -> str | None:
    """Name of the first column of a CSV, if it is an index of a sequence."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; expected a file that can be read") from None
    name = delimited.first_name(head)
    return name if name and series_tables.names_an_index(name) else None


def _of_readings(
    readings: Readings, path: Path, metric: str, unit: str
) -> tuple[Iterator[Batch], tuple[int, int], list[str]]:
    rows = readings.samples
    if rows.empty:
        raise BadInput(f"{path}: found no value with a time; expected some")
    if metric:
        plain = rows["entity"].eq("all")
        rows = rows.assign(entity=rows["metric"].where(plain, rows["entity"]), metric=metric)
    notes = readings.notes
    if unit:
        rows = rows.assign(unit=unit)
        notes = [note for note in notes if not note.startswith(UNITS_UNKNOWN)]
    span = int(rows["utc_ns"].min()), int(rows["utc_ns"].max())

    def batches() -> Iterator[Batch]:
        for source, group in rows.groupby("source", sort=True):
            for number, low in enumerate(range(0, len(group), _ROWS)):
                part = group.iloc[low : low + _ROWS]
                table = points(
                    metric=_coded(part["metric"]),
                    labels=_coded(part["entity"], _label),
                    utc_ns=part["utc_ns"].to_numpy(),
                    float=part["value"].to_numpy(float),
                    unit=_coded(part["unit"], lambda unit: "" if unit == "1" else unit),
                )
                yield Batch(str(source), number, table)

    return batches(), span, notes


def _coded(texts: pd.Series[Any], of: Callable[[str], str] = str) -> pa.Array:
    """A column of texts, dictionary-encoded; `of` is applied once to each distinct text."""
    mapped = {t: of(str(t)) for t in texts.unique()}
    codes, different = pd.factorize(texts.map(mapped))
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, pa.int32()), pa.array(list(different), pa.string())
    )


def _label(entity: str) -> str:
    return "{}" if entity in ("", "all") else canonical_labels({"entity": entity})


def _times_ns(series: Series, path: Path) -> tuple[npt.NDArray[np.int64], bool]:
    """Times of a column in nanoseconds, and True if they are of UTC, not of the begin of the series."""
    unit = f" ({series.unit})" if series.unit else ""
    integers = np.isfinite(series.y).all() and (series.y == np.trunc(series.y)).all()
    values = pd.Series(series.y.astype(np.int64) if integers else series.y)
    seconds, start_ns = series_tables.seconds_of(values, series.alias + unit, str(path))
    return np.round(seconds * _NS).astype(np.int64) + (start_ns or 0), start_ns is not None


def _of_sequence(
    path: Path, column: str, metric: str, unit: str
) -> tuple[Iterator[Batch], tuple[int, int], list[str]]:
    recorded = series_tables.of_file(path, column)
    #: first column of times by node, of several entities in one table
    timed: dict[str, Series] = {}
    for s in recorded.series:
        if series_tables.names_a_time(s.alias):
            timed.setdefault(s.node, s)
    values = [s for s in recorded.series if s is not timed.get(s.node)]
    if not values:
        raise BadInput(f"{path}: found no column of values next to {column}; expected one at least")
    times = {node: _times_ns(s, path) for node, s in timed.items()}
    at_ns = {node: utc_ns for node, (utc_ns, _) in times.items()}
    absolute = bool(times) and all(clock for _, clock in times.values())
    ends = [end for utc_ns in at_ns.values() for end in (int(utc_ns.min()), int(utc_ns.max()))]
    span = (min(ends if absolute else [0, *ends]), max(ends)) if ends else (0, 0)

    def batches() -> Iterator[Batch]:
        for number, s in enumerate(values):
            if len(s.x) > _ROWS * 2:
                raise BadInput(f"{path}: found {len(s.x)} rows; expected {2 * _ROWS} at most")
            at, node = None, s.node if s.node in timed else ""
            if node in timed:
                place = np.searchsorted(timed[node].x, s.x)
                at = at_ns[node][np.clip(place, 0, len(at_ns[node]) - 1)]
            label = canonical_labels({"entity": s.node or s.quantity}) if metric else "{}"
            yield Batch(
                "csv",
                number,
                points(
                    metric=metric or s.name,
                    labels=label,
                    utc_ns=at,
                    index=s.x.astype(np.int64),
                    float=s.y,
                    unit=unit or s.unit,
                ),
            )

    notes = [] if absolute else ["times are those since the begin: no clock is known"]
    notes += [*delimited.strange_header(path), *recorded.notes]
    return batches(), span, notes


def import_experiment(name: str, path: Path, **options: Any) -> tuple[Experiment, int, list[str]]:
    """Import a file as an experiment of this user; `options`: those of `take_in`."""
    with open_index() as index:
        return take_in(Experiments(index, experiments_home()), local_user(), name, path, **options)
