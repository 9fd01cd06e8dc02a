"""Tails of response times that differ between fio and the disk's schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from penstock.analyse.fidelity.second_source import TAIL_LIMIT
from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.text import duration, percent

#: tail responses, by the suffix of a parser's key
_TAILS = ("p95_latency", "p99_latency", "p999_latency", "p9999_latency", "max_latency")


def tails(outcome: Outcome) -> Iterator[Finding]:
    """One finding if a response is such a tail, and fio's differs from the disk's in valid runs.

    A run with a correct mean is valid. A 99th percentile that differs from the disk's does not invalidate
    it, but is not a result either.
    """
    directions = {
        end.partition("_")[0]
        for response in (outcome.study.get("responses") or {}).values()
        if isinstance(response, dict)
        for end in (str(response.get("from") or ""),)
        if end.endswith(_TAILS)
    }
    if not directions or "run_id" not in outcome.measured:
        return
    deviations: list[tuple[float, str, dict[Any, Any]]] = []
    judged = 0
    for run_id in outcome.measured["run_id"].astype(str):
        table = outcome.table(run_id, "second_source")
        if table is None or table.empty:
            continue
        rows = table[
            (table["metric"].astype(str) == "p99") & table["direction"].astype(str).isin(directions)
        ]
        judged += bool(len(rows))
        apart = [row for row in rows.to_dict("records") if not row["agrees"] and row["ratio"] > 0]
        if apart:
            worst = max(apart, key=lambda row: abs(math.log(row["ratio"])))
            deviations.append((abs(math.log(worst["ratio"])), run_id, worst))
    if not deviations:
        return
    _, run_id, row = max(deviations, key=lambda each: each[0])
    seen, due = (duration(float(row[side])) for side in ("fio", "disk"))
    text = (
        f"In {len(deviations)} of {judged} runs the 99th percentile that fio saw is more than "
        f"{percent(TAIL_LIMIT)} from what was due from the disk (most in {run_id}: "
        f"{row['direction']}s, {seen} for {due}): the host contributes to it, and responses of the "
        "tail include more than the disk."
    )
    yield Finding(
        "tail-disputed",
        "warning",
        text,
        {"table": "second_source", "run_id": [run for _, run, _ in deviations]},
        "Compare medians or rates, raise time_scale, or leave the processors to the workload.",
    )
