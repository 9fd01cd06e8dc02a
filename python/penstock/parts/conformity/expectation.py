"""Read the expected rows of a run: a file of expected values, or the output of `penstock predict --json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.parts.conformity.expected import (
    LEAST,
    MOST,
    TOLERANCE,
    TRIALS,
    Expectation,
    Expected,
    higher_is_better_of,
    read_expected,
)
from penstock.spec.source import read_input

_WHAT = "expected values (docs/check.md), or the output of `penstock predict --json`"
#: schema of `penstock predict WORKFLOW`; defined by a layer that this one cannot import
_PREDICTION = "penstock/prediction/1"
_MOST_BYTES = 256 << 20

#: modules and metrics of predictions
CLIENT, STORAGE, MANAGER, WORKFLOW, STAGE = "client", "storage", "manager", "workflow", "stage"
CLIENT_TIME, SERVER_TIME, MAKESPAN = "client_time", "server_time", "makespan"
#: operation name for all requests of a module
ANY = "request"
#: operation name of the responses of a study
RUN = "run"


def load_expectation(
    path: Path, tolerance: float | None = None, at_least: int | None = None
) -> Expectation:
    """Read the expected rows of `path`; `tolerance` and `at_least` apply to a prediction, which has neither.

    Raises BadInput for another kind of file, and if `tolerance` or `at_least` are set for a file of expected
    values.
    """
    raw = read_input(path, _WHAT)
    if len(raw) > _MOST_BYTES:
        raise BadInput(f"{path}: found {len(raw):,} bytes; expected at most {_MOST_BYTES:,}")
    return expectation_of(raw, path, tolerance, at_least)


def expectation_of(
    raw: bytes, path: Path, tolerance: float | None = None, at_least: int | None = None
) -> Expectation:
    """Parse the content of a file; see `load_expectation`."""
    prediction = _predicted(raw, path)
    if prediction is None:
        if tolerance is not None or at_least is not None:
            option = "--tolerance" if tolerance is not None else "--trials"
            raise BadInput(
                f"{option} is for the output of `penstock predict --json`; {path} has its own value"
            )
        return read_expected(raw, path)
    rows = tuple(replace(row, tolerance=tolerance or TOLERANCE) for row in prediction.rows)
    return replace(prediction, rows=rows, at_least=at_least or TRIALS)


def _predicted(raw: bytes, path: Path) -> Expectation | None:
    """Expected rows of a prediction of a workflow or of a study; None for other content."""
    if raw.lstrip()[:1] != b"{":
        return None
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None  # YAML may begin like this too; its reader reports errors with their positions
    if not isinstance(document, dict):
        return None
    if document.get("schema") == _PREDICTION:
        rows = list(_of_workflow(document, path))
        name = f"the prediction of {document.get('workload')}"
    elif isinstance(document.get("predictions"), list):
        rows = list(_of_study(document["predictions"], path))
        name = "the prediction of the study"
    else:
        return None
    if not rows:
        raise BadInput(f"{path}: found a prediction without a time above 0; expected {_WHAT}")
    return Expectation(name, tuple(rows), every_row=False)


def _of_study(rows: list[Any], path: Path) -> Iterable[Expected]:
    for i, row in enumerate(rows, 1):
        where = f"{path}, prediction {i}"
        if not isinstance(row, dict):
            raise BadInput(f"{where}: found {type(row).__name__}; expected an object")
        response, unit = str(row.get("response") or ""), str(row.get("unit") or "1")
        try:
            higher = higher_is_better_of(unit)
        except ValueError as error:
            raise BadInput(f"{where}: found {error}; expected a unit such as s") from None
        value = _number(row.get("predicted"), where)
        if value >= LEAST:
            treatment = str(row.get("treatment_id") or "")
            yield Expected(treatment, RUN, response, value, unit, higher_is_better=higher)


def _of_workflow(document: Mapping[str, Any], path: Path) -> Iterable[Expected]:
    """Yield rows for the makespan, each stage, each operation at the client, and each kind of server."""
    quantities: list[tuple[str, str, str, Any]] = [
        (WORKFLOW, RUN, MAKESPAN, document.get("makespan_s", 0)),
        *(
            (STAGE, str(stage["name"]), MAKESPAN, stage["end_s"] - stage["start_s"])
            for stage in _objects(document, "stages", ("name", "start_s", "end_s"), path)
        ),
    ]
    operations = document.get("operations") or {}
    if not isinstance(operations, dict):
        raise BadInput(f"{path}: found operations that are not an object; expected {_PREDICTION}")
    for operation, row in operations.items():
        if isinstance(row, dict):
            quantities.append((CLIENT, str(operation), CLIENT_TIME, row.get("mean_s", 0)))
    needed = ("kind", "requests", "busy_s", "wait_mean_s")
    stations = _objects(document, "stations", needed, path)
    for kind in (STORAGE, MANAGER):
        rows = [row for row in stations if row["kind"] == kind]
        requests = sum(row["requests"] for row in rows)
        if requests > 0:
            spent_s = sum(row["busy_s"] + row["requests"] * row["wait_mean_s"] for row in rows)
            quantities.append((kind, ANY, SERVER_TIME, spent_s / requests))
    for module, operation, metric, value in quantities:
        seconds = _number(value, f"{path}, {module}/{operation}")
        if seconds >= LEAST:
            yield Expected(module, operation, metric, seconds)


def _objects(
    document: Mapping[str, Any], name: str, keys: tuple[str, ...], path: Path
) -> list[dict[str, Any]]:
    rows = document.get(name) or []
    for row in rows if isinstance(rows, list) else [None]:
        numbers = [k for k in keys if k not in ("name", "kind")]
        if not isinstance(row, dict) or not all(_is_number(row.get(k)) for k in numbers):
            raise BadInput(
                f"{path}: found {name} without {', '.join(keys)}; expected {_PREDICTION}"
            )
    return [row for row in rows if all(k in row for k in keys)]


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= MOST  # false for NaN
    )


def _number(value: Any, where: str) -> float:
    if not _is_number(value):
        raise BadInput(f"{where}: found {str(value)[:60]}; expected a number")
    return float(value)
