"""Planned runs without a valid result: their number, their reasons, and what to do about them.

Runs may fail because of what a level does (a timeout, a full disk): the others are a selection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import EXCLUDED, Outcome
from penstock.text import counted, first_of, listed

#: minimum share of lost runs with which no conclusion is clear
_MANY = 0.25
#: maximum number of treatments named in a sentence
_MOST_NAMED = 3
#: maximum number of letters of a reason in a sentence
_LONGEST = 100
_RESUME = "`penstock run STUDY -o OUT --resume`"
_REPEATS = f"{_RESUME} repeats the runs that are not valid."


def lost(outcome: Outcome) -> Iterator[Finding]:
    """The lost runs, if they are a quarter or more, or leave a treatment with one run."""
    runs, planned = outcome.runs, len(outcome.plan.get("rows") or [])
    valid = len(outcome.measured)
    if runs is None or not 0 < valid < planned:
        return
    few = _of_one_run(outcome)
    if planned - valid < _MANY * planned and not few:
        return
    bad = _not_valid(runs)
    failed = bad[failed_runs(outcome, bad)]
    missing = planned - valid - len(bad)
    parts = [
        f"{count} {what}{most_frequent(rows)}"
        for count, what, rows in (
            (len(failed), "failed", failed),
            (len(bad) - len(failed), "are not valid", bad.drop(failed.index)),
            (missing, "were not made", bad.head(0)),
        )
        if count
    ]
    names = [outcome.phrase(outcome.levels(t), " + ") for t in few]
    one = f"; one run is left of {listed(first_of(names, _MOST_NAMED))}" if names else ""
    first, _, rest = parts[0].partition(" ")
    yield Finding(
        "runs-lost",
        "warning",
        f"{first} of {counted(planned, 'planned run')} {listed([rest, *parts[1:]])}{one}; the others may be "
        "a biased selection.",
        {"table": "runs", "run_id": list(bad["run_id"].astype(str))},
        repeat(outcome),
    )


def _of_one_run(outcome: Outcome) -> list[str]:
    """The treatments with one valid run of three or more planned ones, if others have several."""
    planned = Counter(str(row["treatment_id"]) for row in outcome.plan.get("rows") or [])
    valid = Counter(map(str, outcome.measured["treatment_id"].tolist()))
    if not any(count > 1 for count in valid.values()):
        return []
    return [t for t, count in planned.items() if count > 2 and valid[t] == 1]


def _not_valid(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[~runs["valid"].fillna(False).astype(bool)] if "valid" in runs else runs.head(0)


def failed_runs(outcome: Outcome, rows: pd.DataFrame) -> pd.Series[bool]:
    """Mask of the runs whose workload failed or timed out."""
    states = [
        row.get("state") or outcome.manifest(str(row["run_id"])).get("state")
        for row in rows.to_dict("records")
    ]
    return pd.Series([s not in (None, "finished") for s in states], index=rows.index, dtype=bool)


def most_frequent(rows: pd.DataFrame) -> str:
    """The most frequent reason of runs in brackets, the first of equal ones; empty without any."""
    reasons = [str(r) for r in rows["reason"].dropna() if r] if "reason" in rows else []
    if not reasons:
        return ""
    causes = Counter(reason.removeprefix(EXCLUDED).split(";")[0] for reason in reasons)
    ((cause, _),) = causes.most_common(1)
    more = len(causes) - 1
    others = f", and {counted(more, 'other reason')}" if more else ""
    return f" ({cause if len(cause) <= _LONGEST else f'{cause[: _LONGEST - 1]}…'}{others})"


def repeat(outcome: Outcome, treatments: Sequence[str] | None = None) -> str:
    """The next step for lost runs, of some treatments only: to read what a failed one printed, first."""
    runs = outcome.runs
    if runs is None:
        return _REPEATS
    bad = _not_valid(runs)
    if treatments is not None:
        bad = bad[bad["treatment_id"].astype(str).isin(treatments)]
    if bad.empty:
        return f"{_RESUME} makes the runs that are missing."
    failed = bad[failed_runs(outcome, bad)]
    if failed.empty:
        return _REPEATS
    count = len(failed)
    alike = f" (all {count} runs failed alike)" * (count > 1 and failed["reason"].nunique() == 1)
    return f"read `OUT/runs/{failed['run_id'].iloc[0]}/stderr.txt` first{alike}; {_REPEATS}"
