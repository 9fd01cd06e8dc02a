"""Tails of response times that the disk does not vouch for: fio saw others than were due."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from penstock.analyse.fidelity.second_source import TAIL_LIMIT
from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.text import duration, percent

#: responses whose value lies in the tail, by the end of a parser's key
_TAILS = ("p95_latency", "p99_latency", "p999_latency", "p9999_latency", "max_latency")


def tails(outcome: Outcome) -> Iterator[Finding]:
    """One finding where a response is such a tail and valid runs have another than was due from their disks.

    A run whose mean is right is valid; that its 99th percentile is not the disk's voids no run, but is no
    result either.
    """
    asked = {
        end.partition("_")[0]
        for response in (outcome.study.get("responses") or {}).values()
        if isinstance(response, dict)
        for end in (str(response.get("from") or ""),)
        if end.endswith(_TAILS)
    }
    if not asked or "run_id" not in outcome.measured:
        return
    found: list[tuple[float, str, dict[Any, Any]]] = []
    judged = 0
    for run_id in outcome.measured["run_id"].astype(str):
        table = outcome.table(run_id, "second_source")
        if table is None or table.empty:
            continue
        mine = table[
            (table["metric"].astype(str) == "p99") & table["direction"].astype(str).isin(asked)
        ]
        judged += bool(len(mine))
        apart = [row for row in mine.to_dict("records") if not row["agrees"] and row["ratio"] > 0]
        if apart:
            worst = max(apart, key=lambda row: abs(math.log(row["ratio"])))
            found.append((abs(math.log(worst["ratio"])), run_id, worst))
    if not found:
        return
    _, run_id, row = max(found, key=lambda each: each[0])
    seen, due = (duration(float(row[side])) for side in ("fio", "disk"))
    text = (
        f"In {len(found)} of {judged} runs the 99th percentile that fio saw is more than "
        f"{percent(TAIL_LIMIT)} from what was due from the disk (most in {run_id}: "
        f"{row['direction']}s, {seen} for {due}): the host is in it, and responses of the tail are not "
        "the disk's alone."
    )
    yield Finding(
        "tail-doubted",
        "warning",
        text,
        {"table": "second_source", "run_id": [run for _, run, _ in found]},
        "Compare medians or rates, raise time_scale, or leave the processors to the workload.",
    )
