"""What the half fraction of a full two-level design's runs would have concluded, beside the full design."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.outcome import Outcome

#: a size that differs by less than this share of the effect is not called wrong
MATERIAL = 0.10


def half_against_full(outcome: Outcome, response: str) -> dict[str, Any] | None:
    """Compares conclusions term by term; `None` unless the design is a complete two-level factorial.

    The half is I = +(product of all factors), the one of highest resolution. Its estimates are contrasts
    of its treatment means, with Student-t intervals from its own replicates. A conclusion is wrong where
    the half calls a term significant that is not in the full design (or the reverse), gives it the other
    sign, or where its interval excludes the full design's estimate and they differ by `MATERIAL`.
    """
    factors = outcome.factors
    names = [f.name for f in factors]
    runs, effects = outcome.measured, outcome.effects
    if len(factors) < 3 or any(len(f.levels) != 2 for f in factors) or effects is None:
        return None
    if response not in runs or any(n not in runs for n in names):
        return None
    coded = pd.DataFrame(
        {f.name: np.where(runs[f.name].astype(str) == f.levels[1], 1, -1) for f in factors},
        index=runs.index,
    )
    coded["_y"] = runs[response].astype(float)
    coded = coded.dropna()
    if len(coded.groupby(names)) != 2 ** len(names):
        return None
    half = coded[coded[names].prod(axis=1) == 1]
    groups = half.groupby(names)["_y"].agg(["mean", "count", "var"]).reset_index()
    n = len(groups)
    df = int((groups["count"] - 1).sum())
    sse = float((groups["var"].fillna(0) * (groups["count"] - 1)).sum())
    margin = math.nan
    if df > 0:
        spread = math.sqrt(sse / df * float((1 / groups["count"]).sum())) / n
        margin = float(stats.t.ppf(0.975, df)) * spread
    full = effects[effects["response"] == response].set_index("term")
    rows = []
    terms = [t for k in range(1, len(names)) for t in itertools.combinations(names, k)]
    for term in terms:
        rival = tuple(x for x in names if x not in term)
        if len(term) > len(rival) or ":".join(term) not in full.index:
            continue
        q = float((groups[list(term)].prod(axis=1) * groups["mean"]).sum()) / n
        rows.append(_judge(":".join(term), ":".join(rival), q, margin, full))
    return {
        "relation": f"I = {' × '.join(names)}",
        "runs": len(half),
        "of": len(coded),
        "rows": rows,
    }


def _judge(term: str, rival: str, q: float, margin: float, full: pd.DataFrame) -> dict[str, Any]:
    true = full.loc[term]
    low, high = float(true["ci_low"]), float(true["ci_high"])
    full_sure = low > 0 or high < 0
    half_sure = abs(q) > margin
    coefficient = float(true["coefficient"])
    partner = float(full.loc[rival, "coefficient"]) if rival in full.index else math.nan
    shared = f"({rival.replace(':', ' × ')} is mixed into it)"
    why = ""
    if half_sure and full_sure and q * coefficient < 0:
        why = f"would have had the wrong sign {shared}"
    elif half_sure and not full_sure:
        why = f"would have been called significant and is not {shared}"
    elif full_sure and not half_sure:
        why = f"would have been missed {shared}"
    elif full_sure and abs(q - coefficient) > max(margin, MATERIAL * abs(coefficient)):
        percent = 100 * abs(q / coefficient - 1)
        size = "large" if q / coefficient > 1 else "small"
        why = f"would have come out {percent:.0f} % too {size} {shared}"
    return {
        "term": term,
        "rival": rival,
        "half": 2 * q,
        "half_low": 2 * (q - margin),
        "half_high": 2 * (q + margin),
        "full": 2 * coefficient,
        "full_low": 2 * low,
        "full_high": 2 * high,
        "rival_full": 2 * partner,
        "wrong": bool(why),
        "why": why,
    }
