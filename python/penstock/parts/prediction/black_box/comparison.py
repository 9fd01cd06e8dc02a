"""Cross-validated errors of the learners beside each other, on the same folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: the learner with which the others are compared
BASE = "tree"
#: the learners in sentences
WORDS = {"tree": "the tree", "neighbours": "nearest neighbours", "boosted": "boosted trees"}
#: differences of two learners with a smaller probability under chance count
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Comparison:
    """Errors |predicted / measured − 1| of a learner on held-out points.

    `p_tree`: probability under chance of a difference from the tree at least as large as observed (Wilcoxon's
    signed-rank test of |log errors|, one per point); None for the tree.
    """

    mean: float
    median: float
    p_tree: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Plain values."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The values of `to_dict`; KeyError or TypeError for invalid ones."""
        return cls(float(values["mean"]), float(values["median"]), values["p_tree"])


def compared(log_errors: Mapping[str, Floats], group: NDArray[np.int64]) -> dict[str, Comparison]:
    """Comparison of learners by log(predicted / measured) of each held-out row; rows of one point share a
    `group` and count once in the test."""
    base = _per_group(np.abs(log_errors[BASE]), group)
    rows = {}
    for kind, log_error in log_errors.items():
        off = np.abs(np.expm1(log_error))
        p_tree = None if kind == BASE else _p(_per_group(np.abs(log_error), group) - base)
        rows[kind] = Comparison(float(off.mean()), float(np.median(off)), p_tree)
    return rows


def _per_group(values: Floats, group: NDArray[np.int64]) -> Floats:
    sums: Floats = np.bincount(group, weights=values) / np.bincount(group)
    return sums


def _p(differences: Floats) -> float:
    from scipy.stats import wilcoxon

    if not np.any(differences):
        return 1.0
    return float(wilcoxon(differences).pvalue)


def best_of(errors: Mapping[str, Comparison]) -> str:
    """The learner with the smallest mean error."""
    return min(errors, key=lambda kind: errors[kind].mean)


def sentence(errors: Mapping[str, Comparison], chosen: str) -> str:
    """The best learner by cross-validation, and if its difference from the tree is more than chance."""
    best = best_of(errors)
    if best == BASE:
        return "the tree has the smallest cross-validated error"
    one = errors[best]
    assert one.p_tree is not None
    chance = one.p_tree >= SIGNIFICANCE
    text = f"the tree is not the best: {WORDS[best]} have a smaller error"
    text += ", not significantly" if chance else ""
    return text if chosen == best else f"{text} (--model {best})"
