"""Findings on a busy host: degraded runs that are used, and runs without a log that could bound the delay."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.text import number

#: minimum share of a host's processors used by other programs for a finding
_CROWDED = 0.25


def degraded(outcome: Outcome) -> Iterator[Finding]:
    """One finding if degraded runs are used.

    Guard: there are none.
    """
    runs = outcome.measured
    if "validity" not in runs or not (rows := runs[runs["validity"].eq("degraded")]).shape[0]:
        return
    names = [str(run) for run in rows["run_id"]]
    total = len(outcome.runs) if outcome.runs is not None else len(runs)
    one = len(names) == 1
    verb, bounds, them = (
        ("is", "its bound widens", "it") if one else ("are", "their bounds widen", "them")
    )
    shares = 100 * rows["delay_share"].astype(float)
    delay = f"{number(float(shares.max()))} % of {'its' if one else 'their'} time"
    if not one:
        delay += f", {number(float(shares.median()))} % in the median"
    yield Finding(
        "run-degraded",
        "warning",
        f"{len(names)} of {total} runs {verb} degraded{_by_what(outcome, rows)}; {bounds} the "
        "intervals.",
        {"table": "runs", "run_id": names},
        f"repeat {them} when the host is idle: `penstock run STUDY -o OUT --resume --repeat degraded`.",
        f"The host or the request path may have delayed {them} by up to {delay}.",
    )


def crowded(outcome: Outcome) -> Iterator[Finding]:
    """One finding if other programs ran during runs without emulated disks.

    Guard: degraded runs, which have a bound; programs that used less than a quarter of the processors.
    """
    runs = outcome.measured
    if "others_cpus" not in runs or "validity" not in runs:
        return
    used = pd.to_numeric(runs["others_cpus"], errors="coerce")
    cpus = {str(r): _cpus(outcome, str(r)) for r in runs.loc[used.notna(), "run_id"]}
    limit = _CROWDED * runs["run_id"].astype(str).map(cpus).astype(float)
    rows = runs[runs["validity"].eq("valid") & (used > limit)]
    if rows.empty:
        return
    names = [str(run) for run in rows["run_id"]]
    most = cpus[names[0]]
    yield Finding(
        "host-busy",
        "warning",
        f"other programs used {used[rows.index].mean():.1f} of {most} processors in {len(names)} of "
        f"{len(runs)} runs; without an emulated disk their effect has no bound.",
        {"table": "runs", "run_id": names},
        "repeat the study when the host is idle, or let `platform` emulate the disk.",
    )


def _cpus(outcome: Outcome, run_id: str) -> int:
    return int((outcome.manifest(run_id).get("host") or {}).get("cpus") or 0)


def _by_what(outcome: Outcome, rows: pd.DataFrame) -> str:
    """The processors that other programs used, if recorded: `: other programs used 0.9 of 2 processors`."""
    used = pd.to_numeric(rows["others_cpus"], errors="coerce").dropna()
    cpus = _cpus(outcome, str(rows["run_id"].iloc[0]))
    if used.empty or not cpus:
        return " by a busy host or a slow request path"
    return f": other programs used {float(used.mean()):.1f} of {cpus} processors"
