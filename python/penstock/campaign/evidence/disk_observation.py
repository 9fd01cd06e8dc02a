"""Counters and logs of a run's disks as tables, and their fidelity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.emulate.disks.recorded import Recorded
from penstock.emulate.schedule.events_table import events_table, failed


@dataclass
class DiskObservation:
    """Counters and logs of a run's disks, and their fidelity."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def observation_of(
    disks: Iterable[Recorded],
    changes: Sequence[Mapping[str, Any]],
    *,
    utilisation: pa.Table | None,
    run_cpu_ns: int | None,
    by_node: bool,
) -> DiskObservation:
    """Tables and certificates of a run's disks.

    `changes`: changes of disks and other resources during the run, with `resource` and `name`; `by_node`:
    they have a `node`, and the tables get a column `node_id`. Other arguments as of `Recorded.certificate`.
    """
    parts: dict[str, list[pa.Table]] = {}
    faults: list[str] = []
    for disk in disks:
        tables = {**disk.tables, "disk_stats": _counters_table(disk.disk_id, disk.stats)}
        judged = disk.certificate(utilisation, run_cpu_ns)
        if judged is not None:
            tables |= {"fidelity": judged.overall, "fidelity_windows": judged.windows}
            faults += faults_of(judged.overall)
        node = disk.disk_id.partition(".")[0]
        for name, table in tables.items():
            parts.setdefault(name, []).append(_of_node(table, node) if by_node else table)
    seen = DiskObservation()
    for name, some in parts.items():
        seen.tables[name] = pa.concat_tables(some, promote_options="permissive")
    if changes:
        seen.tables["events"] = _events(changes, by_node=by_node)
        faults += failed(seen.tables["events"])
    seen.faults = tuple(faults)
    return seen


def faults_of(certificate: pa.Table) -> list[str]:
    """One message per disk with an invalid certificate, with the first reason."""
    first: dict[str, str] = {}
    for row in certificate.to_pylist():
        if not row["valid"]:
            first.setdefault(str(row["disk_id"]), str(row["reason"] or row["verdict"]))
    return [f"{disk_id}: {reason}" for disk_id, reason in first.items()]


def _counters_table(disk_id: str, stats: Mapping[str, Any]) -> pa.Table:
    """Numeric counters of a disk as rows of `disk_stats`, nested ones as `a.b`."""
    numbers = dict(_numbers(stats))
    return pa.table(
        {
            "disk_id": pa.array([disk_id] * len(numbers), pa.string()),
            "metric": pa.array(list(numbers), pa.string()),
            "value": pa.array(list(numbers.values()), pa.float64()),
        }
    )


def _numbers(stats: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    for name, value in stats.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{within}{name}.")
        elif isinstance(value, int | float):
            yield f"{within}{name}", float(value)


def _of_node(table: pa.Table, node: str) -> pa.Table:
    """A table with the node of its rows."""
    return table.append_column("node_id", pa.array([node] * table.num_rows, pa.string()))


def _events(changes: Sequence[Mapping[str, Any]], *, by_node: bool) -> pa.Table:
    """The table `events`, node by node."""
    rows = [(str(c["resource"]), str(c.get("name") or ""), c) for c in changes]
    if not by_node:
        return events_table(rows)
    parts = []
    for node in dict.fromkeys(c["node"] for c in changes):
        own_rows = [row for row in rows if row[2]["node"] == node]
        parts.append(_of_node(events_table(own_rows), node))
    return pa.concat_tables(parts)
