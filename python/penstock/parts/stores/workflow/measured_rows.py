"""Runs of a workflow as rows of the table `measured`, which `penstock check` compares with a prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.parts.stores.workflow.running.executed import Executed

if TYPE_CHECKING:
    from penstock.parts.prediction.prediction import Prediction

_MIB = 2**20
#: below this size, bandwidth does not determine the duration
_LEAST_BYTES = 256 * 1024
#: stages and operations in the sentence on differences
_MOST_DIFFERING = 6


def measured_rows(runs: Sequence[Executed]) -> pa.Table:
    """Rows for the run, its stages, each operation by client, and seconds per MiB by storage node."""
    rows = [
        {"trial": f"{trial}", "unit": "s", "window": -1, **row}
        for trial, run in enumerate(runs)
        for row in _rows(run)
    ]
    return pa.Table.from_pylist(rows, TABLES["measured"].arrow)


def _rows(run: Executed) -> Iterator[dict[str, Any]]:
    def row(module: str, operation: str, metric: str, value: float, node: str = "") -> Any:
        return {
            "module": module,
            "operation": operation,
            "metric": metric,
            "value": value,
            "node": node,
        }

    yield row("workflow", "run", "makespan", run.makespan_s)
    for name, (first, last) in run.spans().items():
        yield row("stage", name, "makespan", last - first)
    hosts = {t["task"]: t["host"] for t in run.tasks.to_pylist()}
    for one in run.operations.to_pylist():
        if one["op"] not in ("open", "read", "write"):
            continue
        client, took = hosts[one["task"]], one["end_s"] - one["start_s"]
        yield row("client", one["op"], "client_time", took, client)
        server = _only_holder(run, one)
        if server is not None and one["size_bytes"] >= _LEAST_BYTES:
            place = "remote" if server != client else "local"
            each = took * _MIB / one["size_bytes"]
            yield row("storage", f"{place} {one['op']}", "transfer_time", each, server)


def _only_holder(run: Executed, operation: Mapping[str, Any]) -> str | None:
    """The node with the only copy of every byte of an operation, if any."""
    begin = operation["offset_bytes"]
    end = begin + operation["size_bytes"]
    nodes = {
        extent.nodes
        for extent in run.extents.get(operation["file"], ())
        if extent.offset_bytes < end and extent.offset_bytes + extent.length_bytes > begin
    }
    (holders,) = nodes if len(nodes) == 1 else ((),)
    return holders[0] if len(holders) == 1 else None


def differences(prediction: Prediction, runs: Sequence[Executed]) -> list[str]:
    """Sentences on runs that differ from the prediction by more than a tenth, and the responsible nodes.

    None without differences. Needs at least two runs.
    """
    from penstock.parts.conformity.comparison import SLOW, TOO_FAST, amount, evaluate_all
    from penstock.parts.conformity.diagnosis import causes, diagnose
    from penstock.parts.conformity.expectation import MAKESPAN, expectation_of
    from penstock.parts.conformity.measured_rows import measured_of

    raw = json.dumps(prediction.to_dict()).encode()
    expected = expectation_of(raw, Path("the prediction"), None, 2)
    measured = measured_of(measured_rows(runs), "the runs")
    results = evaluate_all(expected, measured.trials(expected), measured.keys)
    off = [result for result in results if result.verdict in (SLOW, TOO_FAST)]
    differing = [
        f"{result.expected.module} {result.expected.operation}: "
        f"{amount(result.mean, result.expected.unit)}, predicted "
        f"{amount(result.expected.predicted, result.expected.unit)}"
        for result in off
        if result.expected.metric != MAKESPAN or result.expected.module == "stage"
    ]
    more = len(differing) - _MOST_DIFFERING
    named = "; ".join(differing[:_MOST_DIFFERING]) + (f"; and {more} more" if more > 0 else "")
    sentences = (
        [f"It differs by more than 10 %, beyond the spread of the runs, at {named}."]
        if differing
        else []
    )
    return sentences + [
        f"{one.statement}." for one in causes(diagnose(expected, measured, results))
    ]
