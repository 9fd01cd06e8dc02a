"""Significance of differences: one decision for every sentence, table and figure.

All terms of the effects of a response are tested together (Holm, Scandinavian Journal of Statistics 6,
1979; effects without pure error by Lenth's simultaneous margin, Technometrics 31, 1989): with 95 %
probability no zero effect among them is called significant. If no term is, no treatment and no level is
called worse than another either. If one is, pairs of treatments are compared by Tukey's studentised range
(Kramer's for unequal numbers), the combinations of a cost by Šidák's bound on the largest of several t
(Journal of the American Statistical Association 62, 1967).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from penstock.analyse.statistics.contradicted import without_excluded
from penstock.analyse.statistics.multiple_tests import holm, quantile

if TYPE_CHECKING:
    from penstock.analyse.outcome import Outcome

#: probability of any reported difference if there is none
LEVEL = 0.05
#: level for differences of treatments without a significant term, if the terms do not cover all treatments
BEYOND_TERMS = 0.01
#: method of effects that are tested against each other
LENTH = "lenth"

Values = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Terms:
    """The factors and interactions of one response: read-only rows of the effects table."""

    table: pd.DataFrame

    @cached_property
    def names(self) -> list[str]:
        """The terms in the order of the table."""
        return [str(term) for term in self.table["term"].tolist()]

    @cached_property
    def p(self) -> list[float]:
        """Adjusted p-value of each term; NaN if not tested."""
        return [float(p) for p in adjusted(self.table).tolist()]

    def column(self, name: str, default: Any = math.nan) -> list[Any]:
        """The values of a column, or the default if the table lacks it."""
        return self.table[name].tolist() if name in self.table else [default] * len(self.table)


def adjusted(terms: pd.DataFrame) -> pd.Series[float]:
    """p-value of each term adjusted for all terms of its response; NaN if not tested."""
    if "p_holm" in terms:
        return pd.to_numeric(terms["p_holm"], errors="coerce")
    raw = pd.to_numeric(terms["p_value"], errors="coerce")
    tested = raw.dropna()
    return pd.Series(holm(tested.tolist()), index=tested.index, dtype=float).reindex(terms.index)


def is_sure(terms: pd.DataFrame) -> pd.Series[bool]:
    """Flags of the significant terms of an effects table of one response: all tested together."""
    return adjusted(terms) < LEVEL


def limits(terms: pd.DataFrame) -> pd.Series[float]:
    """The smallest significant size of each effect, given the number of significant ones: exactly the terms
    of `is_sure` exceed theirs. NaN if a term has no single size."""
    tested = np.isfinite(_numbers(terms, "p_value"))
    remaining = int(tested.sum()) - int(is_sure(terms).sum())
    if _by_lenth(terms, tested):
        return _margins(terms, tested)
    return _sizes(terms, tested, _level(terms) / max(remaining, 1))


def margins(terms: pd.DataFrame) -> pd.Series[float]:
    """Half-width of the simultaneous interval of each effect (Bonferroni, or Lenth's simultaneous margin)."""
    tested = np.isfinite(_numbers(terms, "p_value"))
    if _by_lenth(terms, tested):
        return _margins(terms, tested)
    return _sizes(terms, tested, _level(terms) / max(int(tested.sum()), 1))


def together(p: float, tests: int) -> float:
    """Adjusted p-value of one of `tests` effects by Lenth: below 0.05 if the effect exceeds his SME."""
    return -math.expm1(tests * math.log1p(-p)) if p < 1 else 1.0


def _numbers(terms: pd.DataFrame, column: str) -> Values:
    return np.asarray(pd.to_numeric(terms[column], errors="coerce"), dtype=np.float64)


def _of_lenth(terms: pd.DataFrame) -> Flags:
    """Mask of the terms that are tested against each other."""
    if "method" not in terms:
        return np.zeros(len(terms), dtype=bool)
    return np.array([method == LENTH for method in terms["method"].tolist()], dtype=bool)


def _by_lenth(terms: pd.DataFrame, tested: Flags) -> bool:
    return bool(tested.any()) and bool(_of_lenth(terms)[tested].all())


def _margins(terms: pd.DataFrame, tested: Flags) -> pd.Series[float]:
    return _sizes(terms, tested, -math.expm1(math.log1p(-_level(terms)) / int(tested.sum())))


def _level(terms: pd.DataFrame) -> float:
    """Error level of the analysis: less than `LEVEL` after earlier looks of a sequential study."""
    if "level" not in terms:
        return LEVEL
    levels = _numbers(terms, "level")
    levels = levels[~np.isnan(levels)]
    return max(float(levels.min()), 1e-12) if len(levels) else LEVEL


def _sizes(terms: pd.DataFrame, tested: Flags, p: float) -> pd.Series[float]:
    """Effect sizes with this unadjusted p-value."""
    if not {"standard_error", "df_error"} <= set(terms.columns):
        return pd.Series(math.nan, index=terms.index)
    error = np.where(tested, _numbers(terms, "standard_error"), math.nan)
    df = _numbers(terms, "df_error")
    by_lenth = _of_lenth(terms) & tested
    if by_lenth.any():
        # Lenth: a third of the number of contrasts tested against each other, per stratum
        judged = pd.Series(np.where(by_lenth, _numbers(terms, "df"), 0.0), index=terms.index)
        if "stratum" in terms:
            judged = judged.groupby(terms["stratum"].fillna("")).transform("sum")
        else:
            judged[:] = judged.sum()
        df = np.where(by_lenth, judged / 3, df)
    quantile = special.stdtrit(np.where(df > 0, df, math.nan), 1 - p / 2)
    bias = np.nan_to_num(_numbers(terms, "bias")) if "bias" in terms else 0.0
    return pd.Series(2 * error * quantile + bias, index=terms.index)


def shows(outcome: Outcome, response: str) -> bool | None:
    """True if any term of a response is significant; None if none was tested."""
    terms = terms_of(outcome, response)
    if terms is None or all(math.isnan(p) for p in terms.p):
        return None
    return any(p < LEVEL for p in terms.p)


def sure_terms(outcome: Outcome, response: str) -> list[str]:
    """The significant terms, in descending order of explained variation."""
    terms = terms_of(outcome, response)
    if terms is None:
        return []
    rows = zip(terms.names, terms.p, terms.column("variation_share"), strict=True)
    sure = [(name, share) for name, p, share in rows if p < LEVEL]
    return [name for name, _ in sorted(sure, key=lambda pair: largest_first(pair[1]))]


def spans(outcome: Outcome, response: str, treatments: int) -> bool:
    """True if the tested terms cover all differences between `treatments` treatments."""
    terms = terms_of(outcome, response)
    if terms is None or "df" not in terms.table:
        return False
    tested = (df for df, p in zip(terms.column("df"), terms.p, strict=True) if not math.isnan(p))
    return int(sum(tested)) >= treatments - 1


def term_is_sure(outcome: Outcome, response: str, term: str) -> bool | None:
    """True if one term is significant; None if it was not tested."""
    terms = terms_of(outcome, response)
    if terms is None or term not in terms.names:
        return None
    p = terms.p[terms.names.index(term)]
    return None if math.isnan(p) else p < LEVEL


def terms_of(outcome: Outcome, response: str) -> Terms | None:
    """The factors and interactions of a response, without aliases that later runs exclude; None without
    tests of effects."""
    table = outcome.effects
    if table is None or not {"term", "response", "p_value"} <= set(table.columns):
        return None
    cached: dict[str, Terms] = outcome.memory.setdefault("terms", {})
    if response not in cached:
        flags = np.array([str(r) == response for r in table["response"].tolist()], dtype=bool)
        flags &= outcome.is_effect(table["term"]).to_numpy()
        cached[response] = Terms(without_excluded(outcome, response, table[flags]))
    return cached[response]


def largest_first(value: float) -> tuple[bool, float]:
    """Sort key for descending numbers, NaN last."""
    return (True, 0.0) if math.isnan(value) else (False, -value)


@lru_cache(maxsize=512)
def of_pairs(means: int, df: float, level: float = LEVEL) -> float:
    """The quantile for all pairs of `means` means, in standard errors of a difference (Tukey; Kramer)."""
    if df <= 0 or means < 2:
        return math.nan
    if means == 2:
        return float(stats.t.ppf(1 - level / 2, df))
    return quantile(level, means, df) / math.sqrt(2)


@lru_cache(maxsize=512)
def of_several(tests: int, df: float, level: float = LEVEL) -> float:
    """The quantile of the largest of `tests` t statistics, whatever their correlations (Šidák)."""
    if df <= 0:
        return math.nan
    return float(stats.t.ppf(1 - each_of(tests, level) / 2, df))


def each_of(tests: int, level: float = LEVEL) -> float:
    """The level of each of `tests` tests with familywise level `level` (Šidák)."""
    return -math.expm1(math.log1p(-level) / tests)
