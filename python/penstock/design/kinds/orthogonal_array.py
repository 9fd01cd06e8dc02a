"""Orthogonal arrays of mixed levels (L9, L18, L27, L36, …), from pydoe's catalogue.

Rao (Journal of the Royal Statistical Society, Supplement 9, 1947); Taguchi's names of arrays.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from penstock.design.kinds.base import Asked, Claim, Numbers, no_forbidden, no_pydoe

WHAT = "Main effects of factors of two to six levels, mixed, in the runs of the smallest array."
OPTIONS = {"array": "L9, L18, L27, L36, …; the smallest that has a column for every factor"}
CANNOT = (
    "Orthogonal array: main effects are not free of two-factor interactions, and none is estimated.",
)


def fault(request: Asked) -> str:
    """Fault unless an array has a column for every factor and distinct rows."""
    if missing := no_pydoe():
        return missing
    named = request.options.get("array")
    if "array" in request.options and named not in {_short(n) for n in _names()}:
        return f"array: one of {', '.join(sorted({_short(n) for n in _names()}, key=_runs))}"
    if _fitting(request) is None:
        which = f"{named}" if named else "an array of the catalogue"
        return f"factors that {which} has columns for, with distinct rows; or kind: d-optimal"
    return no_forbidden(request)


def treatments(request: Asked) -> Numbers:
    """The columns of the smallest array that fits, by the number of levels."""
    array = _fitting(request)
    assert array is not None
    return array


def claim(request: Asked) -> Claim:
    """Claim strength 2."""
    return Claim(strength=2)


def _fitting(request: Asked) -> Numbers | None:
    named = request.options.get("array")
    for name in sorted(_names(), key=lambda n: _runs(_short(n))):
        if named is None or _short(name) == named:
            for array in _arrays(name):
                columns = _chosen(array, request.levels)
                if columns is not None:
                    return columns
    return None


def _chosen(array: Numbers, levels: list[int]) -> Numbers | None:
    """Columns with these numbers of levels; None if there are too few or rows are repeated."""
    free: dict[int, list[int]] = {}
    for j, column in enumerate(array.T):
        free.setdefault(int(column.max()) + 1, []).append(j)
    taken = []
    for count in levels:
        if not free.get(count):
            return None
        taken.append(free[count].pop(0))
    columns: Numbers = array[:, taken]
    return columns if len(np.unique(columns, axis=0)) == len(columns) else None


@cache
def _names() -> tuple[str, ...]:
    from pydoe import list_orthogonal_arrays

    return tuple(list_orthogonal_arrays())


@cache
def _arrays(name: str) -> tuple[Numbers, ...]:
    """Level numbers from 0: the array, and a variant with the six-level column split into two."""
    from pydoe import get_orthogonal_array

    array: Numbers = np.asarray(get_orthogonal_array(name)).astype(np.int64)
    array = np.column_stack([np.unique(column, return_inverse=True)[1] for column in array.T])
    if re.search(r"6\^1", name):
        six = array[:, 0]
        return array, np.column_stack([six // 3, six % 3, array[:, 1:]])
    return (array,)


def _short(name: str) -> str:
    return name.partition("(")[0]


def _runs(name: str) -> int:
    return int(name[1:])
