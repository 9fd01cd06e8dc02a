"""Purpose, cost and result of each run of a study with several stages; the confirmation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.rerun import rerun
from penstock.analyse.outcome import Outcome
from penstock.analyse.treatments.means import AS_GOOD
from penstock.text import counted, percent, quantities, quantity

COLUMNS = (
    "run_id",
    "stage",
    "purpose",
    "why",
    "seconds",
    "value",
    "best_so_far",
    "spent_alpha",
    "screening_ended",
)


def ledger(outcome: Outcome) -> pd.DataFrame | None:
    """One row per valid run in the order of the plan, by the first response; None without stages."""
    stages = outcome.plan.get("stages") or []
    if not stages or not outcome.responses:
        return None
    response = outcome.responses[0]
    values = dict(zip(outcome.measured["run_id"], outcome.measured[response.name], strict=True))
    seconds = dict(zip(outcome.measured["run_id"], outcome.measured["wall_s"], strict=True))
    reasons = [_reasons(stage) for stage in stages]
    rows: list[dict[str, Any]] = []
    best = np.nan
    for planned in outcome.plan["rows"]:
        run_id = planned["run_id"]
        value = values.get(run_id)
        if value is None or pd.isna(value):
            continue
        number = int(planned.get("stage", 1))
        stage = stages[number - 2] if number > 1 else {}
        better = np.nanmax if response.better == "higher" else np.nanmin
        best = float(better([best, float(value)]))
        key = tuple(sorted(planned["levels"].items()))
        rows.append(
            {
                "run_id": run_id,
                "stage": number,
                "purpose": stage.get("purpose", "screen"),
                "why": reasons[number - 2].get(key, "")
                if number > 1
                else "the design of the study",
                "seconds": float(seconds.get(run_id) or 0),
                "value": float(value),
                "best_so_far": best,
                "spent_alpha": float(stage.get("spent", 0.0)),
                "screening_ended": str(stage.get("ended", "")),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _reasons(stage: Mapping[str, Any]) -> dict[tuple[tuple[str, str], ...], str]:
    own = stage.get("reasons") or []
    return {
        tuple(sorted(levels.items())): own[i] if i < len(own) else str(stage.get("why", ""))
        for i, levels in enumerate(stage["treatments"])
    }


def confirmed(outcome: Outcome) -> Iterator[Finding]:
    """Result of new interleaved runs of a setting chosen by earlier ones.

    Guard: no confirmation stage.
    """
    for number, stage in enumerate(outcome.plan.get("stages") or [], start=2):
        if stage["purpose"] != "confirm" or not outcome.responses or len(stage["treatments"]) < 2:
            continue
        response = outcome.responses[0]
        rows = [r for r in outcome.plan["rows"] if r.get("stage") == number]
        values = dict(zip(outcome.measured["run_id"], outcome.measured[response.name], strict=True))
        pairs: dict[int, dict[bool, float]] = {}
        chosen, other = stage["treatments"][:2]
        for row in rows:
            value = values.get(row["run_id"])
            if value is not None and not pd.isna(value):
                pairs.setdefault(row["block"], {})[row["levels"] == chosen] = float(value)
        complete = np.array([[p[True], p[False]] for p in pairs.values() if len(p) == 2])
        if len(complete) < 2:
            yield _unjudged(outcome, number, len(complete), rows)
            continue
        differences = complete[:, 0] - complete[:, 1]
        mean = float(differences.mean())
        half = float(
            stats.t.ppf(0.975, len(complete) - 1) * differences.std(ddof=1) / np.sqrt(len(complete))
        )
        good = mean > 0 if response.better == "higher" else mean < 0
        sure = abs(mean) > half
        ends = [mean - half, mean + half]
        limit = max(map(abs, ends)) / abs(float(complete[:, 1].mean()))
        small = not sure and limit <= (AS_GOOD if outcome.detect is None else outcome.detect)
        verdict = (
            f"they differ by less than {percent(limit)}"
            if small
            else f"that the choice is better may be chance; up to {percent(limit)} is possible"
            if not sure
            else f"that the choice is better {'is confirmed' if good else 'is refuted: it is worse'}"
        )
        differing = [{n: v[n] for n in v if chosen[n] != other[n]} for v in (chosen, other)]
        texts = [
            f"{quantity(float(v), response.unit)} with {outcome.phrase(levels, ' + ')}"
            for v, levels in zip(complete.mean(axis=0), differing, strict=True)
        ]
        same = outcome.phrase({n: v for n, v in chosen.items() if other[n] == v}, " + ")
        yield Finding(
            "confirmation",
            "info" if small or (sure and good) else "warning",
            f"{counted(len(complete), 'fresh interleaved pair')}: {texts[0]}, {texts[1]}; {verdict}.",
            {"table": "runs", "stage": number, "run_id": [r["run_id"] for r in rows]},
            "" if sure or small else _more_pairs(outcome, len(complete)),
            f"Difference {quantity(mean, response.unit)}, 95 % interval "
            f"{quantities(ends, response.unit)}{f', with {same}' if same else ''}.",
        )


def _more_pairs(outcome: Outcome, pairs: int) -> str:
    """The study again with four times the pairs; a stage is not longer once it has ended."""
    again = rerun(outcome, "again", [f"design.sequential.confirm={4 * pairs}"])
    if again is None:
        return "Repeat both settings in interleaved runs before you rely on the choice."
    return f"`{again[0]}` repeats the study with {4 * pairs} pairs, whose interval is about half as wide."


def _unjudged(
    outcome: Outcome, number: int, complete: int, rows: Sequence[Mapping[str, Any]]
) -> Finding:
    """A confirmation without a test, and the reason."""
    planned = int(outcome.plan["stages"][number - 2]["replicates"])
    lost = "the other runs are missing or not valid"
    if len({row["block"] for row in rows}) < planned:
        lost = "all pairs are in one block, so which run belongs to which is not known"
    return Finding(
        "confirmation",
        "warning",
        f"It is not known if the choice is better: {complete} of {counted(planned, 'fresh pair')} "
        f"{'is' if complete == 1 else 'are'} complete; at least two are needed; {lost}.",
        {"table": "runs", "stage": number, "run_id": [r["run_id"] for r in rows]},
        "Repeat both settings in interleaved runs before you rely on the choice.",
    )
