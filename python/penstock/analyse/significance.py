"""What may be said to differ: one judgement, which every sentence, table and figure uses.

Of a response all terms of the effects are judged together (Holm, Scandinavian Journal of Statistics 6, 1979;
of effects without pure error Lenth's simultaneous margin, Technometrics 31, 1989): with 95 % probability none
of them that is nothing is called something. Where no term shows, no treatment and no level is said to be
worse than another either. Where one shows, pairs of treatments are told apart by Tukey's studentised range
(Kramer's for unequal numbers), the combinations of a cost by Šidák's bound on the largest of several t
(Journal of the American Statistical Association 62, 1967).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.adjusted import holm

if TYPE_CHECKING:
    from penstock.analyse.outcome import Outcome

#: chance that anything at all is said to differ where nothing does
LEVEL = 0.05
#: level of treatments that may differ although no term shows, where the terms leave some of them out
BEYOND_TERMS = 0.01
#: method of effects that are judged against each other
LENTH = "lenth"


def adjusted(terms: pd.DataFrame) -> pd.Series[float]:
    """The p-value of each term, all of its response together; NaN of what was not tested."""
    if "p_holm" in terms:
        return pd.to_numeric(terms["p_holm"], errors="coerce")
    raw = pd.to_numeric(terms["p_value"], errors="coerce")
    tested = raw.dropna()
    return pd.Series(holm(tested.tolist()), index=tested.index, dtype=float).reindex(terms.index)


def is_sure(terms: pd.DataFrame) -> pd.Series[bool]:
    """Which terms of an effects table, of one response, are significant: all of them judged together."""
    return adjusted(terms) < LEVEL


def limits(terms: pd.DataFrame) -> pd.Series[float]:
    """The size of each effect from which on it is significant, given how many others are: exactly those of
    `is_sure` are beyond theirs. NaN where a term has no single size."""
    tested = pd.to_numeric(terms["p_value"], errors="coerce").notna()
    left = int(tested.sum()) - int(is_sure(terms).sum())
    if _by_lenth(terms, tested):
        return _margins(terms, tested)
    return _sizes(terms, tested, _level(terms) / max(left, 1))


def margins(terms: pd.DataFrame) -> pd.Series[float]:
    """Half the width of the interval of each effect, so wide that all of them hold together (Bonferroni, or
    Lenth's simultaneous margin)."""
    tested = pd.to_numeric(terms["p_value"], errors="coerce").notna()
    if _by_lenth(terms, tested):
        return _margins(terms, tested)
    return _sizes(terms, tested, _level(terms) / max(int(tested.sum()), 1))


def together(p: float, tests: int) -> float:
    """The p-value of Lenth's effect among so many: below 0.05 where the effect is beyond his SME."""
    return -math.expm1(tests * math.log1p(-p)) if p < 1 else 1.0


def _by_lenth(terms: pd.DataFrame, tested: pd.Series[bool]) -> bool:
    return (
        "method" in terms and bool(tested.any()) and bool((terms["method"][tested] == LENTH).all())
    )


def _margins(terms: pd.DataFrame, tested: pd.Series[bool]) -> pd.Series[float]:
    return _sizes(terms, tested, -math.expm1(math.log1p(-_level(terms)) / int(tested.sum())))


def _level(terms: pd.DataFrame) -> float:
    """The level of the analysis: less than `LEVEL` where a sequential study looked before."""
    if "level" not in terms:
        return LEVEL
    levels = pd.to_numeric(terms["level"], errors="coerce").dropna()
    return max(float(levels.min()), 1e-12) if len(levels) else LEVEL


def _sizes(terms: pd.DataFrame, tested: pd.Series[bool], p: float) -> pd.Series[float]:
    """The effects that have just that p-value by themselves."""
    if not {"standard_error", "df_error"} <= set(terms.columns):
        return pd.Series(math.nan, index=terms.index)
    error = pd.to_numeric(terms["standard_error"], errors="coerce").where(tested)
    df = pd.to_numeric(terms["df_error"], errors="coerce").astype(float)
    if "method" in terms:
        mine = (terms["method"] == LENTH) & tested
        # a third of the contrasts that were judged against each other, those of one stratum
        judged = pd.to_numeric(terms["df"], errors="coerce").where(mine, 0.0)
        if "stratum" in terms:
            judged = judged.groupby(terms["stratum"].fillna("")).transform("sum")
        else:
            judged = pd.Series(float(judged.sum()), index=terms.index)
        df = df.mask(mine, judged / 3)
    quantile = np.asarray(stats.t.ppf(1 - p / 2, df.where(df > 0)))
    return pd.Series(2 * error.to_numpy() * quantile, index=terms.index)


def shows(outcome: Outcome, response: str) -> bool | None:
    """Whether any term of a response is significant; None where none was tested."""
    terms = _terms(outcome, response)
    if terms is None or not adjusted(terms).notna().any():
        return None
    return bool(is_sure(terms).any())


def sure_terms(outcome: Outcome, response: str) -> list[str]:
    """The significant terms, those that explain most first."""
    terms = _terms(outcome, response)
    if terms is None:
        return []
    if "variation_share" in terms:
        terms = terms.sort_values("variation_share", ascending=False, kind="stable")
    return [str(t) for t in terms.loc[is_sure(terms), "term"]]


def spans(outcome: Outcome, response: str, treatments: int) -> bool:
    """Whether the terms that were tested leave no difference of so many treatments out."""
    terms = _terms(outcome, response)
    if terms is None or "df" not in terms:
        return False
    return int(terms["df"][adjusted(terms).notna()].sum()) >= treatments - 1


def term_is_sure(outcome: Outcome, response: str, term: str) -> bool | None:
    """Whether one term is significant; None where it was not tested."""
    terms = _terms(outcome, response)
    if terms is None:
        return None
    mine = adjusted(terms)[terms["term"].astype(str) == term].dropna()
    return bool(mine.iloc[0] < LEVEL) if len(mine) else None


def _terms(outcome: Outcome, response: str) -> pd.DataFrame | None:
    """The rows of a response's factors and interactions; read them only."""
    table = outcome.effects
    if table is None or not {"term", "response", "p_value"} <= set(table.columns):
        return None
    cached: dict[str, pd.DataFrame] = outcome.memory.setdefault("terms", {})
    if response not in cached:
        rows = table[table["response"].astype(str) == response]
        cached[response] = rows[outcome.is_effect(rows["term"])]
    return cached[response]


@lru_cache(maxsize=512)
def of_pairs(means: int, df: float, level: float = LEVEL) -> float:
    """The quantile of all pairs of so many means, in standard errors of a difference (Tukey; Kramer)."""
    if df <= 0 or means < 2:
        return math.nan
    if means == 2:
        return float(stats.t.ppf(1 - level / 2, df))
    return float(stats.studentized_range.ppf(1 - level, means, df)) / math.sqrt(2)


@lru_cache(maxsize=512)
def of_several(tests: int, df: float, level: float = LEVEL) -> float:
    """The quantile of the largest of so many t, whatever their correlations (Šidák)."""
    if df <= 0:
        return math.nan
    return float(stats.t.ppf(1 - each_of(tests, level) / 2, df))


def each_of(tests: int, level: float = LEVEL) -> float:
    """The level of each of so many tests that have `level` together (Šidák)."""
    return -math.expm1(math.log1p(-level) / tests)
