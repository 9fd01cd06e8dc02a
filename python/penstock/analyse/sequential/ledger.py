"""Purpose, cost and result of each run of a study with several stages; the confirmation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.rerun import rerun
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.bias import Values, ends, used
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
        chosen, other = stage["treatments"][:2]
        pairs = _pairs(outcome, response.name, rows, chosen)
        if len(pairs) < 2:
            yield _unjudged(outcome, number, len(pairs), rows)
            continue
        low, high, mean = _difference(pairs)
        good = mean > 0 if response.better == "higher" else mean < 0
        sure = mean != 0 and not low <= 0 <= high
        means = pairs[:, :, 0].mean(axis=0)
        most, limit = _limit(low, high, float(means[1]), response.unit)
        small = not sure and limit <= (AS_GOOD if outcome.detect is None else outcome.detect)
        verdict = (
            f"they differ by less than {most}"
            if small
            else f"that the choice is better may be chance; up to {most} is possible"
            if not sure
            else f"that the choice is better {'is confirmed' if good else 'is refuted: it is worse'}"
        )
        differing = [{n: v[n] for n in v if chosen[n] != other[n]} for v in (chosen, other)]
        texts = [
            f"{quantity(float(v), response.unit)} with {outcome.phrase(levels, ' + ')}"
            for v, levels in zip(means, differing, strict=True)
        ]
        same = outcome.phrase({n: v for n, v in chosen.items() if other[n] == v}, " + ")
        yield Finding(
            "confirmation",
            "info" if small or (sure and good) else "warning",
            f"{counted(len(pairs), 'fresh interleaved pair')}: {texts[0]}, {texts[1]}; {verdict}.",
            {"table": "runs", "stage": number, "run_id": [r["run_id"] for r in rows]},
            "" if sure or small else _more_pairs(outcome, len(pairs)),
            f"Difference {quantity(mean, response.unit)}, 95 % interval "
            f"{quantities([low, high], response.unit)}{f', with {same}' if same else ''}.",
        )


def _pairs(
    outcome: Outcome,
    response: str,
    rows: Sequence[Mapping[str, Any]],
    chosen: Mapping[str, str],
) -> Values:
    """The complete pairs × chosen and other setting × the value, and the ends of the undisturbed one."""
    runs = outcome.measured[used(outcome.measured, response)]
    values = pd.to_numeric(runs[response]).to_numpy(float)
    low, high = ends(runs, response) or (values, values)
    of_run = dict(zip(runs["run_id"], zip(values, low, high, strict=True), strict=True))
    pairs: dict[int, dict[bool, tuple[float, float, float]]] = {}
    for row in rows:
        if row["run_id"] in of_run:
            pairs.setdefault(row["block"], {})[row["levels"] == chosen] = of_run[row["run_id"]]
    complete = [[p[True], p[False]] for p in pairs.values() if len(p) == 2]
    return np.array(complete, dtype=float).reshape(len(complete), 2, 3)


def _difference(pairs: Values) -> tuple[float, float, float]:
    """95 % interval of the chosen minus the other setting, for any correction of degraded runs; the mean."""
    differences = pairs[:, 0, 0] - pairs[:, 1, 0]
    count = len(pairs)
    half = float(stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / np.sqrt(count))
    least, most = pairs[:, 0, 1] - pairs[:, 1, 2], pairs[:, 0, 2] - pairs[:, 1, 1]
    return float(least.mean()) - half, float(most.mean()) + half, float(differences.mean())


def _limit(low: float, high: float, mean: float, unit: str) -> tuple[str, float]:
    """The largest possible difference as text, and relative to the mean of the other setting."""
    largest = max(abs(low), abs(high))
    if not mean:
        return quantity(largest, unit), math.inf if largest else 0.0
    return percent(largest / abs(mean)), largest / abs(mean)


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
