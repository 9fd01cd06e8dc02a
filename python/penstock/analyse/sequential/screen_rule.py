"""Rule that ends a screening: each effect is large enough to matter or too small, at the level of a look.

The intervals of a look hold simultaneously at 1 − α of that look (Bonferroni over the contrasts), and the
looks share alpha (`alpha_spending.py`). The probability that an effect of `detect` or more is ever
dropped as too small is thus at most alpha, over all looks; Holm's procedure bounds that of a false effect.
A contrast of a fraction is a sum of aliased effects: effects that cancel in it remain undetected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.statistics.scale import LINEAR, LOG
from penstock.text import counted, quantity


@dataclass(frozen=True)
class Decided:
    """Terms by their intervals relative to ±`bound`, a difference of level means on the scale of the
    effects."""

    bound: float
    beyond: tuple[str, ...]
    within: tuple[str, ...]
    undecided: tuple[str, ...]

    def sentence(self, alpha: float, unit: str, scale: str = LINEAR) -> str:
        """The ending as a sentence without its full stop."""
        bound = f"± {quantity(self.bound, unit)}"
        if scale == LOG:
            bound = f"a ratio of {math.exp(self.bound):.4g} in either direction"
        return (
            f"rule `decided`: at the level of this look ({alpha:.3g}) {counted(len(self.beyond), 'effect')} "
            f"clear of {bound} (design.detect), {len(self.within)} within it"
        )


def decide(table: pd.DataFrame, names: list[str], alpha: float, bound: float) -> Decided | None:
    """Decisions from the effects table of a look at the level `alpha`; None without pure error.

    `bound` is the difference of level means that matters, on the scale of the effects. Decisions hold for any
    correction of degraded runs within their bounds.
    """
    of_factors = (
        table["term"].map(lambda term: set(str(term).split(":")) <= set(names)).astype(bool)
    )
    tested = table[of_factors & table["standard_error"].notna() & table["df_error"].gt(0)]
    if tested.empty:
        return None
    error = 2 * pd.to_numeric(tested["standard_error"]).to_numpy(dtype=float)
    half = error * stats.t.ppf(1 - alpha / (2 * len(tested)), tested["df_error"])
    if "bias" in tested:
        half = half + pd.to_numeric(tested["bias"]).fillna(0.0).to_numpy(dtype=float)
    size = np.abs(pd.to_numeric(tested["effect"]).to_numpy(dtype=float))
    beyond, within = size - half > bound, size + half < bound
    terms = tested["term"].astype(str).to_numpy()
    return Decided(
        bound, tuple(terms[beyond]), tuple(terms[within]), tuple(terms[~beyond & ~within])
    )
