"""How a study that looks at its runs several times shares the error level over the looks.

`spent(t)` is how much of alpha has been spent when the share t of all designed rows has been run (Lan &
DeMets, Biometrika 70, 1983). The look at hand may spend what was not spent before. Holm's procedure over
the terms of a look, at the level of that look, keeps the chance of any false term at this look at most
there; by Bonferroni's inequality that of any at any look is at most alpha, whatever looks have in common.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

#: rows to which nested fractions grow, at most
MOST_ROWS = 64


def spent(alpha: float, share: float, rule: str = "pocock") -> float:
    """Alpha spent when `share` (0 to 1) of the rows are run: `pocock` spends much early, `obrien-fleming`
    next to nothing before the end. ValueError for another rule."""
    share = min(1.0, max(0.0, share))
    if share == 0:
        return 0.0
    if rule == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    if rule == "obrien-fleming":
        return float(2 * ndtr(float(ndtri(alpha / 2)) / math.sqrt(share)))
    raise ValueError(f"no spending rule {rule}")


def looks(factors: int, rows: int) -> list[int]:
    """Rows at each look: those of the first fraction, doubled up to the full design or `MOST_ROWS`."""
    most = max(rows, min(1 << factors, MOST_ROWS))
    found = [rows]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def level(alpha: float, at: list[int], look: int, rule: str = "pocock") -> float:
    """What the look number `look` (from 0) of the looks `at` (rows) may spend."""
    before = spent(alpha, at[look - 1] / at[-1], rule) if look else 0.0
    return spent(alpha, at[look] / at[-1], rule) - before
