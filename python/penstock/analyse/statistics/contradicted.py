"""Aliases that runs outside of the design exclude.

The effects of a staged study are those of its designed runs, in which a term and its exact aliases are one
column. The runs of a search and of a confirmation vary them separately. An alias is excluded if, in a fit
of all valid runs to both, the term is significant and the alias is not, and has at most half of its effect.
Blocks are in the fit, so that no difference in time decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.statistics.designed import designed_stages
from penstock.analyse.statistics.scale import LOG, effect_scale
from penstock.analyse.statistics.terms import Values
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.analyse.outcome import Outcome

#: level of the tests of a term and its alias
LEVEL = 0.05
_TINY = 1e-6


class Contradicted:
    """Aliases of the significant terms of a response that later runs exclude.

    `scale`: of the effects; logarithms if it is that, else values.
    """

    def __init__(
        self, plan: Plan, runs: pd.DataFrame, response: str, active: Sequence[str], scale: str
    ) -> None:
        rows = {r.run_id: r for r in plan.rows}
        included = designed_stages(plan)
        data = runs[pd.to_numeric(runs[response], errors="coerce").notna()]
        self._rows = [rows[r] for r in data["run_id"].tolist() if r in rows]
        values = pd.to_numeric(data[response]).to_numpy(float)
        self._y: Values = np.log(values) if scale == LOG else values
        self._designed = np.array([r.stage in included for r in self._rows], dtype=bool)
        self._active = active

    @classmethod
    def of(cls, outcome: Outcome, response: str) -> Contradicted | None:
        """None without factors of two levels, or without runs outside of the design."""
        key = f"contradicted {response}"
        if key not in outcome.memory:
            outcome.memory[key] = cls._of(outcome, response)
        result: Contradicted | None = outcome.memory[key]
        return result

    @classmethod
    def _of(cls, outcome: Outcome, response: str) -> Contradicted | None:
        stages = outcome.plan.get("stages") or []
        table, runs = outcome.effects, outcome.measured
        if not stages or table is None or response not in runs or "p_holm" not in table:
            return None
        try:
            plan = plan_from_json(outcome.plan)
        except PenstockError:
            return None
        rows = table[(table["response"].astype(str) == response) & outcome.is_effect(table["term"])]
        active = rows[pd.to_numeric(rows["p_holm"], errors="coerce") < LEVEL]["term"]
        if not plan.two_level or len(designed_stages(plan)) > len(stages) or not len(active):
            return None
        return cls(plan, runs, response, [str(t) for t in active], effect_scale(rows))

    def runs_against(self, term: str, rival: str) -> list[str]:
        """The runs that exclude a rival: those in which it differs from the term; empty if none do."""
        one, other = self._column(term), self._column(rival)
        if one @ (other * self._designed) < 0:
            other = -other
        against = np.flatnonzero(one != other)
        if not len(against) or self._designed[against].any():
            return []
        base = self._base([one, other])
        x = np.column_stack([base, one, other])
        if np.linalg.matrix_rank(x) < x.shape[1] or len(x) <= x.shape[1]:
            return []
        inverse = np.linalg.inv(x.T @ x)
        q = inverse @ x.T @ self._y
        rest = self._y - x @ q
        df = len(x) - x.shape[1]
        errors = np.sqrt(np.diag(inverse)[-2:] * float(rest @ rest) / df)
        if not (errors > 0).all():
            return []
        p_term, p_rival = 2 * stats.t.sf(np.abs(q[-2:]) / errors, df)
        if p_term < LEVEL <= p_rival and abs(q[-1]) <= abs(q[-2]) / 2:
            return [self._rows[i].run_id for i in against]
        return []

    @cached_property
    def _blocks(self) -> Values:
        blocks = pd.get_dummies(pd.Series([(r.stage, r.block) for r in self._rows]))
        return np.asarray(blocks, dtype=float)

    def _base(self, own: Sequence[Values]) -> Values:
        """Blocks and those significant terms that are independent of them and of the `own` columns."""
        base, columns = self._blocks, list(own)
        for term in self._active:
            with_it = np.column_stack([base, *columns, self._column(term)])
            rest = (
                with_it[:, -1]
                - with_it[:, :-1] @ np.linalg.lstsq(with_it[:, :-1], with_it[:, -1], rcond=None)[0]
            )
            if float(rest @ rest) > _TINY * len(rest):
                base = np.column_stack([base, self._column(term)])
        return base

    def _column(self, term: str) -> Values:
        names = term.split(":")
        return np.array([np.prod([r.coded[n] for n in names]) for r in self._rows], dtype=float)


def without_excluded(outcome: Outcome, response: str, table: pd.DataFrame) -> pd.DataFrame:
    """The effects of a response without the excluded ones among their aliases."""
    judge = Contradicted.of(outcome, response) if "aliases" in table else None
    if judge is None:
        return table
    names = {f.name for f in outcome.factors}

    def remaining(term: str, aliases: str) -> str:
        return ", ".join(
            alias
            for alias in aliases.split(", ")
            if not set(alias.lstrip("+-").split(":")) <= names
            or not judge.runs_against(term, alias.lstrip("+-"))
        )

    pairs = zip(table["term"].astype(str), table["aliases"].fillna("").astype(str), strict=True)
    return table.assign(aliases=[remaining(term, aliases) for term, aliases in pairs])
