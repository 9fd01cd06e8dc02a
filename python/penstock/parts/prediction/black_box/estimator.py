"""Learners with scikit-learn's interface: a readable CART, and gradient boosting for comparison.

CART: Breiman, Friedman, Olshen, Stone 1984, as in Mytilinis 2015. Fitted models are plain arrays, so that a
model saved as JSON gives identical predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.validation import check_is_fitted, validate_data

Floats = NDArray[np.float64]
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Nodes:
    """A binary tree as arrays; node 0 is the root, `left` < 0 marks a leaf; left is where x ≤ threshold."""

    feature: NDArray[np.int64]
    threshold: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Floats
    count: NDArray[np.int64]

    @classmethod
    def of(cls, tree: Any) -> Nodes:
        """From scikit-learn's compiled tree."""
        return cls(
            np.asarray(tree.feature, dtype=np.int64),
            np.asarray(tree.threshold, dtype=float),
            np.asarray(tree.children_left, dtype=np.int64),
            np.asarray(tree.children_right, dtype=np.int64),
            np.asarray(tree.value, dtype=float).reshape(-1),
            np.asarray(tree.n_node_samples, dtype=np.int64),
        )

    def __call__(self, x: ArrayLike) -> Floats:
        """Values of the leaves for the rows of x (n × features)."""
        rows = np.asarray(x, dtype=np.float32)  # as in scikit-learn's comparisons
        at = np.zeros(len(rows), dtype=np.int64)
        while True:
            inner = np.flatnonzero(self.left[at] >= 0)
            if not len(inner):
                return self.value[at]
            node = at[inner]
            below = rows[inner, self.feature[node]] <= self.threshold[node]
            at[inner] = np.where(below, self.left[node], self.right[node])

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return int((self.left < 0).sum())

    def to_dict(self) -> dict[str, list[Any]]:
        return {k: np.asarray(v).tolist() for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, list[Any]]) -> Nodes:
        """The nodes of `to_dict`. KeyError or ValueError for invalid values."""
        integers = {
            k: np.asarray(values[k], dtype=np.int64) for k in ("feature", "left", "right", "count")
        }
        real = {k: np.asarray(values[k], dtype=float) for k in ("threshold", "value")}
        nodes = cls(**integers, **real)  # type: ignore[arg-type]
        if len({len(v) for v in vars(nodes).values()}) != 1 or len(nodes.left) == 0:
            raise ValueError("arrays of one length, not empty")
        inner = nodes.left >= 0
        number = np.arange(len(nodes.left))
        later = (nodes.left > number) & (nodes.right > number) & (nodes.right < len(number))
        if not np.all(later[inner]) or not np.all(nodes.left < len(number)):
            raise ValueError("children after their parents")
        if not np.all(np.isfinite(nodes.value)) or not np.all(np.isfinite(nodes.threshold)):
            raise ValueError("finite thresholds and values")
        return nodes


class _Learner(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Base of both learners: a sum of trees over the response, or over its logarithm."""

    scale: Scale
    trees_: list[Nodes]

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Fit to X (points × features) and y (points); ValueError for unsuitable data."""
        if self.scale not in ("linear", "log"):
            raise ValueError(f"scale is {self.scale!r}; 'linear' or 'log' is expected")
        x, targets = validate_data(self, X, y, y_numeric=True)
        targets = np.asarray(targets, dtype=float)
        if self.scale == "log":
            if not np.all(targets > 0):
                raise ValueError(
                    "y holds values that are not above 0; scale 'log' needs them to be"
                )
            targets = np.log(targets)
        self._learn(x, targets)
        return self

    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Predicted values (points) for X (points × features), in the unit of y."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False)
        values = self._raw(x)
        return np.exp(values) if self.scale == "log" else values

    def _raw(self, x: Any) -> Floats:
        values = np.full(len(x), self.base_)
        for tree in self.trees_:
            values = values + self.weight_ * tree(x)
        return values

    def _learn(self, x: Any, y: Floats) -> None:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Fitted state as plain values."""
        check_is_fitted(self)
        return {
            "kind": type(self).__name__,
            "parameters": self.get_params(),
            "features": int(self.n_features_in_),
            "base": float(self.base_),
            "weight": float(self.weight_),
            "trees": [tree.to_dict() for tree in self.trees_],
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.scale == "log"
        return tags


class StorageRegressor(_Learner):
    """CART of at most `max_leaves` leaves and `max_depth` levels: fits on a page.

    `scale`: 'linear' as published; 'log' splits and averages by ratio, for values over orders of magnitude.
    """

    def __init__(
        self,
        max_depth: int | None = None,
        max_leaves: int | None = 24,
        min_leaf: int = 1,
        scale: Scale = "linear",
        random_state: int = 0,
    ) -> None:
        self.max_depth = max_depth
        self.max_leaves = max_leaves
        self.min_leaf = min_leaf
        self.scale = scale
        self.random_state = random_state

    def _learn(self, x: Any, y: Floats) -> None:
        tree = DecisionTreeRegressor(
            max_depth=self.max_depth,
            max_leaf_nodes=self.max_leaves,
            min_samples_leaf=self.min_leaf,
            random_state=self.random_state,
        ).fit(x, y)
        self.base_, self.weight_ = 0.0, 1.0
        self.trees_ = [Nodes.of(tree.tree_)]

    @property
    def tree_(self) -> Nodes:
        """The tree; its values are logarithms where `scale` is 'log'."""
        return self.trees_[0]


class BoostedStorageRegressor(_Learner):
    """Gradient boosting (Friedman 2001): more accurate as a rule, not readable."""

    def __init__(
        self,
        trees: int = 150,
        learning_rate: float = 0.1,
        max_depth: int = 4,
        scale: Scale = "linear",
        random_state: int = 0,
    ) -> None:
        self.trees = trees
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.scale = scale
        self.random_state = random_state

    def _learn(self, x: Any, y: Floats) -> None:
        boosted = GradientBoostingRegressor(
            n_estimators=self.trees,
            learning_rate=self.learning_rate,
            max_depth=self.max_depth,
            random_state=self.random_state,
        ).fit(x, y)
        self.base_ = float(np.ravel(boosted.init_.constant_)[0])
        self.weight_ = float(self.learning_rate)
        self.trees_ = [Nodes.of(tree.tree_) for tree in boosted.estimators_[:, 0]]


LEARNERS: dict[str, type[_Learner]] = {
    "cart": StorageRegressor,
    "boosting": BoostedStorageRegressor,
}


def restored(values: dict[str, Any]) -> _Learner:
    """Learner from the values of `to_dict`. KeyError, TypeError or ValueError for invalid values."""
    kinds = {c.__name__: c for c in LEARNERS.values()}
    learner = kinds[values["kind"]](**values["parameters"])
    learner.n_features_in_ = int(values["features"])
    learner.base_, learner.weight_ = float(values["base"]), float(values["weight"])
    learner.trees_ = [Nodes.from_dict(tree) for tree in values["trees"]]
    if any(int(t.feature.max()) >= learner.n_features_in_ for t in learner.trees_):
        raise ValueError("features that exist")
    return learner
