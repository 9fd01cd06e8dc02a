"""Findings on incomplete collectors of a study's runs, with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.study_findings import observer_receipts
from penstock.analyse.outcome import Outcome
from penstock.archive.completeness import TAKEN
from penstock.errors import printable
from penstock.text import listed, outside_text

#: maximum number of runs named per collector
_MOST_NAMED = 5


def collected(outcome: Outcome) -> Iterator[Finding]:
    """Guard: every collector of every run is complete."""
    lacking: dict[str, dict[str, str]] = {}
    for run_id in outcome.run_ids:
        receipt = observer_receipts(outcome.manifest(run_id)).get("collect") or {}
        for name, one in (receipt.get("collectors") or {}).items():
            if one.get("verdict", "complete") not in TAKEN or one.get("empty"):
                lacking.setdefault(str(name), {})[run_id] = _why(one)
    for name, by_run in lacking.items():
        runs = list(by_run)
        more = f" and {len(runs) - _MOST_NAMED} more runs" if len(runs) > _MOST_NAMED else ""
        named = ", ".join(runs[:_MOST_NAMED]) if more else listed(runs)
        yield Finding(
            "collected-incomplete",
            "warning",
            f"The collector {printable(name)} did not bring all that was due in {named}{more}: "
            f"{by_run[runs[0]]}.",
            {"table": "series", "observer": "collect", "collector": name, "run_id": runs},
            "`receipts.collect` of a run's manifest has the outcome of each poll and message; `plot` and "
            "`compare` refuse incomplete series unless `--partial` is given.",
        )


def _why(one: Mapping[str, Any]) -> str:
    """Short form of the reason."""
    counted = one.get("counted") or {}
    due = counted.get("due")
    parts = [
        f"{counted[why]} of {due} polls {why}" for why in ("failed", "missed") if counted.get(why)
    ]
    parts += [f"{n} {why}" for why, n in (one.get("refused") or {}).items()]
    messages = one.get("refused_messages") or {}
    parts += [f"{n} messages refused ({why})" for why, n in messages.items()]
    if one.get("outside_by_ns"):
        parts.append(outside_text(int(one["outside"]), int(one["outside_by_ns"])))
    if one.get("lost"):
        parts.append(f"{one['lost']} points lost")
    if one.get("trouble"):
        parts.append(str(one["trouble"]))
    if not one.get("points"):
        parts.append("no point came")
    examples = one.get("told") or []
    reason = ", ".join(parts) or f"{one.get('verdict')}"
    return printable(reason + (f" ({examples[0]})" if examples else ""))
