"""Findings that report the analysis of a trace or of a study by this plugin."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.traces.traced_run import TracedRun


def toy(run: TracedRun) -> Iterator[Finding]:
    """Guard: runs without verdicts."""
    if run.judged:
        files = len({row.file_id for row in run.judged})
        yield Finding("toy-files", "info", f"A toy counts {files} files.", {"patterns": {}})


def of_study(outcome: Outcome) -> Iterator[Finding]:
    """Guard: studies without runs."""
    if outcome.run_ids:
        statement = f"A toy counts {len(outcome.run_ids)} runs."
        yield Finding("toy-runs", "info", statement, {"table": "runs"})
