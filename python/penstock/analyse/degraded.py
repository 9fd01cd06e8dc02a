"""The finding about degraded runs: how many are used, and what the host did meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from penstock.analyse.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.text import number


def degraded(outcome: Outcome) -> Iterator[Finding]:
    """One finding where degraded runs are used.

    Guard: none is.
    """
    runs = outcome.measured
    if "validity" not in runs or not (rows := runs[runs["validity"].eq("degraded")]).shape[0]:
        return
    names = [str(run) for run in rows["run_id"]]
    total = len(outcome.runs) if outcome.runs is not None else len(runs)
    verb = "is" if len(names) == 1 else "are"
    yield Finding(
        "run-degraded",
        "warning",
        f"{len(names)} of {total} runs {verb} degraded{_by_what(outcome, rows)}; their bounds widen the "
        "intervals.",
        {"table": "runs", "run_id": names},
        "repeat them when the host is idle: `penstock run STUDY -o OUT --resume --repeat degraded`.",
        f"The host or the request path may have delayed them by up to "
        f"{number(100 * float(rows['delay_share'].median()))} % of their time (median), "
        f"{number(100 * float(rows['delay_share'].max()))} % at most.",
    )


def _by_what(outcome: Outcome, rows: pd.DataFrame) -> str:
    """The processors that other programs used, if recorded: `: other programs used 0.9 of 2 processors`."""
    used = pd.to_numeric(rows["others_cpus"], errors="coerce").dropna()
    cpus = (outcome.manifest(str(rows["run_id"].iloc[0])).get("host") or {}).get("cpus")
    if used.empty or not cpus:
        return " by a busy host or a slow request path"
    return f": other programs used {float(used.mean()):.1f} of {cpus} processors"
