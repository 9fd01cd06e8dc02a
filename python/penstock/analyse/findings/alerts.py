"""Alert rules that fired in the runs of a study."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.text import listed, measured

#: maximum number of runs named in a sentence
_NAMED = 6


def alerts(outcome: Outcome) -> Iterator[Finding]:
    """One finding per rule that fired, in valid or invalid runs: place, value, and the runs that it ended."""
    rows_by_rule: dict[str, list[dict[Any, Any]]] = {}
    for run_id in outcome.run_ids:
        table = outcome.table(run_id, "alerts")
        if table is None:
            continue
        for row in table.to_dict("records"):
            rows_by_rule.setdefault(str(row["rule"]), []).append({**row, "run_id": run_id})
    for rule, rows in rows_by_rule.items():
        above = str(rows[0]["rule"]).partition(">")[1] != ""
        worst = (max if above else min)(rows, key=lambda row: float(row["worst"]))
        runs = list(dict.fromkeys(str(row["run_id"]) for row in rows))
        ended = [run for run in runs if any(r["aborted"] for r in rows if r["run_id"] == run)]
        named = listed(runs) if len(runs) <= _NAMED else f"{', '.join(runs[:_NAMED])}, …"
        value = measured(float(worst["worst"]), str(worst["unit"]))
        text = (
            f"The alert `{rule}` fired in {len(runs)} run{'s' * (len(runs) > 1)} ({named}): most in "
            f"{worst['run_id']}, where {worst['metric']} of {worst['entity']} was {value}"
            f"{f'; it ended {len(ended)} of them' if ended else ''}."
        )
        yield Finding(
            "alert-fired",
            "error" if ended else "warning",
            text,
            {"table": "alerts", "rule": rule, "run_id": runs, "ended": ended},
            "Look at what the run did from then on (`samples`, `utilisation`), or correct the rule."
            if ended
            else "",
        )
