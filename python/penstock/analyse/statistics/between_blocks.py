"""Effects confounded with blocks, reported as such and not as lost."""

from __future__ import annotations

from math import prod

import numpy as np
import pandas as pd

from penstock.analyse.statistics.effect_table import share_variation
from penstock.analyse.statistics.fit import NOT_ESTIMABLE
from penstock.analyse.statistics.terms import Numbers, Values
from penstock.design.planned import Plan

#: method of a term confounded with the blocks of every pass
CONFOUNDED_WITH_BLOCKS = "confounded with blocks"


def named_between_blocks(table: pd.DataFrame, plan: Plan, y: Values) -> pd.DataFrame:
    """The effects table of a plan with blocks within passes: marks terms confounded with blocks; if no
    other term lacks an estimate, the rest have shares of the variation of `y`."""
    missing = table["method"].eq(NOT_ESTIMABLE)
    block = np.array([row.block for row in plan.rows])
    lost = table.loc[missing, "term"]
    between = table["term"].isin([t for t in lost if _is_between(plan, str(t), block)])
    table.loc[between, "method"] = CONFOUNDED_WITH_BLOCKS
    table.loc[between, "aliases"] = table.loc[between, "aliases"].str.replace(
        r"not estimable.*", "the difference between blocks", regex=True
    )
    return share_among(table, missing == between, y)


def share_among(table: pd.DataFrame, by_design: pd.Series[bool], y: Values) -> pd.DataFrame:
    """The table with shares of the variation of `y`, if the design explains all missing terms."""
    if bool(by_design.all()):
        rows = [{"sum_of_squares": s} for s in table["sum_of_squares"]]
        share_variation(rows, y)
        table["variation_share"] = [row["variation_share"] for row in rows]
    return table


def _is_between(plan: Plan, term: str, block: Numbers) -> bool:
    """True if a term is constant in each block."""
    signs = np.array([prod(row.coded[name] for name in term.split(":")) for row in plan.rows])
    return all(len(set(signs[block == b])) == 1 for b in set(block))
