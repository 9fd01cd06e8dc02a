"""Read measured rows (module, operation, metric, trial, value) from a table or from the results of a study.

A table has the columns `module`, `operation`, `trial` and `value`, and optionally `metric`, `unit`, `node`
and `window`. Several rows of one trial (its requests) count by their mean. In a study each valid run is a
trial and the module is the treatment. Responses have the operation `run`. Traced runs have `requests`,
`bytes`, `time` and `mean_time` for each file and direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.archive.completeness import check_manifest, reading
from penstock.archive.schemas import TABLES
from penstock.archive.selection import is_study, select
from penstock.errors import BadInput
from penstock.parts.conformity.expectation import CLIENT_TIME, RUN
from penstock.parts.conformity.expected import (
    LEAST,
    MOST,
    Expectation,
    Expected,
    Key,
    higher_is_better_of,
)
from penstock.spec.units import convert

_TABLE = "measured"
_NEEDED = ("module", "operation", "trial", "value")
_TEXTS = ("module", "operation", "metric", "trial", "unit", "node")
EXPECTED = (
    "a table (.parquet, .csv) with the columns module, operation, trial and value, "
    "or a study's results"
)


@dataclass(frozen=True)
class Measured:
    """Rows of the table `measured` (docs/formats.md).

    Missing values of `metric`, `unit` and `node` are empty, those of `window` −1.
    """

    rows: pd.DataFrame
    origin: str

    @cached_property
    def _groups(self) -> dict[Key, pd.DataFrame]:
        groups = self.rows.groupby(["module", "operation", "metric"], sort=True, observed=True)
        return {(str(a), str(b), str(c)): rows for (a, b, c), rows in groups}

    def of(self, module: str, operation: str, metric: str, unit: str = "s") -> pd.DataFrame:
        """Rows of one quantity with `value` in `unit`; empty if it was not measured."""
        rows = self._groups.get((module, operation, metric))
        if rows is None:
            return self.rows.iloc[:0]
        return rows.assign(value=self._values(rows, unit, f"{metric} of {module}/{operation}"))

    def unit(self, key: Key) -> str:
        """First unit of the rows of one quantity; seconds if none has one."""
        return next((str(u) for u in self._groups[key]["unit"].unique() if u), "s")

    @property
    def keys(self) -> list[Key]:
        return list(self._groups)

    def modules(self, metric: str) -> list[tuple[str, str]]:
        """Modules and operations with measurements of `metric`."""
        return [(a, b) for a, b, c in self._groups if c == metric]

    def trials(self, expected: Expectation) -> dict[Key, list[float]]:
        """Values of the trials of each expected row that was measured, in its unit, by its key.

        In a table without metrics, rows belong to the one expected metric of their module and operation.
        Raises BadInput if several are expected.
        """
        values: dict[Key, list[float]] = {}
        by_operation: dict[tuple[str, str], list[str]] = {}
        for row in expected.rows:
            by_operation.setdefault((row.module, row.operation), []).append(row.metric)
        for row in expected.rows:
            rows = self.of(row.module, row.operation, row.metric, row.unit)
            if rows.empty:
                rows = self.of(row.module, row.operation, "", row.unit)
                metrics = by_operation[row.module, row.operation]
                if len(rows) and len(metrics) > 1:
                    raise BadInput(
                        f"{self.origin}: found rows of {row.module}/{row.operation} without a metric; "
                        f"expected the column metric: {', '.join(metrics)}"
                    )
            if len(rows):
                values[row.key] = trial_means(rows)
        return values

    def _values(self, rows: pd.DataFrame, unit: str, what: str) -> Any:
        values = rows["value"].to_numpy(float)
        factors = np.ones(len(values))
        for declared in rows["unit"].unique():
            if declared in ("", unit):
                continue
            try:
                factor = convert(1.0, str(declared), unit)
            except ValueError as error:
                raise BadInput(f"{self.origin}, {what}: found {error}; expected {unit}") from None
            factors[(rows["unit"] == declared).to_numpy()] = factor
        return values * factors


def trial_means(rows: pd.DataFrame) -> list[float]:
    """Mean of the rows of each trial, in the order of trials."""
    return [float(v) for v in rows.groupby("trial", sort=True, observed=True)["value"].mean()]


def measured_expectation(
    measured: Measured, tolerance: float, at_least: int, *, every_row: bool = True
) -> Expectation:
    """Use measurements as expected values: the mean of each row, with its trials as `base`.

    This is the first phase of the published method, which compares all components on one machine with the
    local file system. A row is unusable with fewer than two trials or a mean of 0 or less, such as files of
    one run and flushes, which have no bytes. Raises BadInput for an unusable row; without `every_row` it
    omits these rows and raises only if no other is there.
    """

    def unusable(key: Key, values: list[float]) -> str:
        return (
            f"{measured.origin}: found {len(values)} trials of {key[0]}/{key[1]} with mean "
            f"{np.mean(values):g}; expected two or more, and a mean above 0"
        )

    rows: list[Expected] = []
    for key in measured.keys:
        module, operation, metric = key
        unit = measured.unit(key)
        values = trial_means(measured.of(*key, unit))
        name = metric or CLIENT_TIME
        mean = float(np.mean(values))
        if len(values) < 2 or mean < LEAST:
            if every_row:
                raise BadInput(unusable(key, values))
            continue
        rows.append(
            Expected(
                module,
                operation,
                name,
                mean,
                unit,
                tolerance=tolerance,
                higher_is_better=higher_is_better_of(unit),
                base=tuple(values),
            )
        )
    if not rows:
        raise BadInput(unusable(key, values))
    return Expectation(measured.origin, tuple(rows), at_least=at_least, every_row=False)


def read_measured(named: Path, *, files: bool = True) -> Measured:
    """Read a table or the results of a study (OUT, OUT:t01). Raises BadInput for anything else.

    Without `files` the traces of a study are not read.
    """
    if named.is_file():
        return measured_of(_table(named), str(named))
    if is_study(named) or ":" in named.name:
        return Measured(_of_study(named, files), str(named))
    actual = "a directory" if named.is_dir() else "nothing"
    raise BadInput(f"{named}: found {actual}; expected {EXPECTED}")


def measured_of(table: pa.Table, origin: str) -> Measured:
    """Check a table in memory. Raises BadInput for missing or duplicate columns and invalid values."""
    return Measured(_checked(table, origin), origin)


def _table(path: Path) -> pa.Table:
    try:
        if path.suffix == ".csv":
            types = {name: pa.string() for name in _TEXTS}
            options = pyarrow.csv.ConvertOptions(
                column_types={**types, "value": pa.float64(), "window": pa.int64()},
                strings_can_be_null=True,
            )
            return pyarrow.csv.read_csv(path, convert_options=options)
        return pq.read_table(path, partitioning=None)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:160]
        raise BadInput(f"{path}: found no readable table ({reason}); expected {EXPECTED}") from None


def _checked(table: pa.Table, origin: str) -> pd.DataFrame:
    try:
        names = table.column_names
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{origin}: found column names that are not UTF-8 ({error.reason})"
        ) from None
    columns = [c.name for c in TABLES[_TABLE].columns]
    for name in _NEEDED:
        if name not in names:
            listed = ", ".join(names[:12]) or "none"
            raise BadInput(f"{origin}: found columns {listed}; expected {name} among them")
    if twice := next((n for n in columns if names.count(n) > 1), None):
        raise BadInput(f"{origin}: found the column {twice} twice; expected it once")
    selected = table.select([n for n in columns if n in names])
    try:
        frame = pd.DataFrame(
            {
                name: selected[name]
                .cast(pa.string() if name in _TEXTS else TABLES[_TABLE].arrow.field(name).type)
                .to_pandas()
                for name in selected.column_names
            }
        )
    except (pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise BadInput(f"{origin}: found {reason}; expected {EXPECTED}") from None
    for name in _TEXTS:
        frame[name] = frame[name].fillna("").astype(str) if name in frame else ""
    frame["window"] = frame["window"].fillna(-1) if "window" in frame else -1
    if frame.empty:
        raise BadInput(f"{origin}: found no row; expected trials")
    for name in ("module", "operation", "trial"):
        if (frame[name] == "").any():
            place = int(np.flatnonzero((frame[name] == "").to_numpy())[0]) + 1
            raise BadInput(f"{origin}, row {place}: found no {name}; expected one")
    values = frame["value"].to_numpy(float)
    valid = np.abs(values) <= MOST  # false for NaN
    if not valid.all():
        place = int(np.flatnonzero(~valid)[0])
        raise BadInput(
            f"{origin}, row {place + 1}: found {values[place]}; expected a number up to {MOST:g}"
        )
    return frame


def _of_study(named: Path, files: bool) -> pd.DataFrame:
    rows = list(_rows_of_study(named, files))
    if not rows:
        raise BadInput(f"{named}: found no valid run; expected {EXPECTED}")
    frame = pd.DataFrame(rows, columns=["module", "operation", "metric", "trial", "value", "unit"])
    return frame.assign(node="", window=-1)


def _rows_of_study(named: Path, files: bool) -> Iterator[tuple[str, str, str, str, float, str]]:
    from penstock.analyse.traces.trace_compare import Run

    for path in select(named).runs:
        manifest = check_manifest(path / "manifest.json")
        treatment, run = str(manifest.get("treatment_id") or RUN), str(manifest.get("run_id") or "")
        for name, response in (manifest.get("responses") or {}).items():
            value = response.get("value") if isinstance(response, dict) else None
            if isinstance(value, int | float) and abs(value) <= MOST:
                yield treatment, RUN, str(name), run, float(value), str(response.get("unit") or "")
        if not files or not (path / "files.parquet").is_file():
            continue
        with reading(path):
            traced = Run(path)
            for (file_id, direction), side in traced.sums.items():
                operation = f"{direction} {traced.path_of(file_id)}"
                requests, time_s = float(side["requests"]), side["time_ns"] / 1e9
                yield treatment, operation, "requests", run, requests, "1"
                yield treatment, operation, "bytes", run, float(side["bytes"]), "B"
                yield treatment, operation, "time", run, time_s, "s"
                if requests:
                    yield treatment, operation, "mean_time", run, time_s / requests, "s"
