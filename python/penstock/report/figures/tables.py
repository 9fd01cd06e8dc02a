"""Tables of runs for figures: a table without a column that figures need counts as absent.

Archives of older versions have tables without columns that were added later.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from penstock.analyse.outcome import Outcome

#: columns that figures need, by table
NEEDED: dict[str, tuple[str, ...]] = {
    "events": ("applied_ns",),
    "fidelity_windows": (
        "t_ns",
        "window_ns",
        "disk_id",
        "direction",
        "ops",
        "bytes",
        "asked_bps",
        "delivered_bps",
        "verdict",
    ),
    "io_events": ("t_ns", "direction", "file_id", "offset_bytes"),
    "patterns": ("direction", "class", "requests"),
    "phases": ("phase_id", "start_ns", "end_ns"),
    "utilisation": ("t_ns", "kind", "entity", "metric", "value"),
}


def run_table(
    outcome: Outcome, run_id: str, name: str, more: Sequence[str] | None = None
) -> pd.DataFrame | None:
    """A table of a run, or `None` if it or a needed column is absent.

    `more`: optional columns to read besides the needed ones; all columns if None.
    """
    columns = None if more is None else [*NEEDED[name], *more]
    table = outcome.table(run_id, name, columns)
    return table if table is not None and set(NEEDED[name]) <= set(table.columns) else None


def has_run_table(outcome: Outcome, run_id: str, name: str) -> bool:
    """True if the run has the table with all needed columns."""
    return outcome.has_table(run_id, name, NEEDED[name])
