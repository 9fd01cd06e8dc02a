"""The report's section on the nodes of a study: declaration, changes, delivered service."""

from __future__ import annotations

from typing import Any

from penstock.analyse.findings.straggler import straggler_runs
from penstock.analyse.outcome import Outcome
from penstock.spec import describe
from penstock.text import duration, times

Table = dict[str, Any]


def nodes(outcome: Outcome) -> dict[str, Table | None] | None:
    """Tables `nodes`, `networks`, `schedule`, `services`, `disks`, `stragglers`, `hosts`; each None if it
    is empty; None for a study of one plain node, or without a stored study."""
    document = outcome.study
    if not document or (describe.is_plain(document) and not describe.hosts(document)):
        return None
    tables = {
        "nodes": _table(describe.nodes(document)),
        "networks": _table(describe.networks(document)),
        "schedule": _table(describe.schedule(document)),
        "services": _table(describe.services(document)),
        "disks": _table(_disks(outcome)),
        "stragglers": _table(_stragglers(outcome)),
        "hosts": _table(_hosts(outcome)),
    }
    return {name: table if table["rows"] else None for name, table in tables.items()}


def _disks(outcome: Outcome) -> list[dict[str, str]]:
    """One row for each disk: number of runs with a valid certificate, and reasons for the others."""
    table = outcome.fidelity
    if table is None or table.empty or "disk_id" not in table:
        return []
    rows = []
    for disk_id, of_disk in table.groupby("disk_id", sort=True, observed=True):
        of_run = of_disk.groupby("run_id", observed=True)["valid"].all()
        bad = of_disk[~of_disk["valid"].fillna(True).astype(bool)]
        why = bad["reason"].astype(str)
        rows.append(
            {
                "disk": str(disk_id),
                "true in": f"{int(of_run.sum())} of {len(of_run)} runs",
                "why not": why.value_counts().index[0] if len(why) else "",
            }
        )
    return rows


def _stragglers(outcome: Outcome) -> list[dict[str, str]]:
    """One row for each run: its busiest resource, and whether that makes a straggler."""
    rows = []
    for run in straggler_runs(outcome):
        top, second = run.loads[:2]
        rows.append(
            {
                "run": run.run_id,
                "treatment": outcome.phrase(outcome.levels(run.treatment_id)),
                "busiest": top.name if top.resource == "disk" else f"processors of {top.node}",
                "for": f"{duration(top.busy_ns)} of {duration(run.wall_ns)}",
                "next": f"{second.node}: {duration(second.busy_ns)}",
                "straggler": f"{run.node}, {times(run.ratio)}" if run.node else "no",
            }
        )
    return rows


def _hosts(outcome: Outcome) -> list[dict[str, str]]:
    runs = outcome.runs
    if runs is None or "host_id" not in runs or not describe.hosts(outcome.study):
        return []
    return [
        {
            "host": str(host),
            "runs": str(len(of_host)),
            "valid": str(int(of_host["valid"].sum())),
            "blocks": ", ".join(str(b) for b in sorted(of_host["block_id"].unique())),
        }
        for host, of_host in runs.groupby("host_id", sort=True, observed=True)
    ]


def _table(rows: list[dict[str, str]]) -> Table:
    names = list(rows[0]) if rows else []
    return {
        "columns": [{"name": n, "number": False} for n in names],
        "rows": [{"cells": [r[n] for n in names], "mark": ""} for r in rows],
    }
