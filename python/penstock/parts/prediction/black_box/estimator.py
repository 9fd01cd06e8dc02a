"""Learners with scikit-learn's interface: a readable CART; nearest neighbours and boosting for comparison.

CART: Breiman, Friedman, Olshen, Stone 1984, as in Mytilinis 2015. Fitted models are plain arrays, so that a
model saved as JSON gives identical predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
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
    """Base of the learners: of the response, or of its logarithm."""

    scale: Scale

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Fit to X (points × features) and y (points); ValueError for unsuitable data."""
        if self.scale not in ("linear", "log"):
            raise ValueError(f"scale is {self.scale!r}; 'linear' or 'log' is expected")
        x, targets = validate_data(self, X, y, y_numeric=True)
        targets = np.asarray(targets, dtype=float)
        if self.scale == "log":
            if not np.all(targets > 0):
                raise ValueError(
                    "y has values that are not above 0; scale 'log' needs positive values"
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
        raise NotImplementedError

    def _learn(self, x: Any, y: Floats) -> None:
        raise NotImplementedError

    def _state(self) -> Mapping[str, object]:
        raise NotImplementedError

    def _restore(self, values: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Fitted state as plain values."""
        check_is_fitted(self)
        return {
            "kind": type(self).__name__,
            "parameters": self.get_params(),
            "features": int(self.n_features_in_),
            **self._state(),
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.scale == "log"
        return tags


class _Trees(_Learner):
    """A weighted sum of trees."""

    trees_: list[Nodes]

    def _raw(self, x: Any) -> Floats:
        values = np.full(len(x), self.base_)
        for tree in self.trees_:
            values = values + self.weight_ * tree(x)
        return values

    def _state(self) -> Mapping[str, object]:
        return {
            "base": float(self.base_),
            "weight": float(self.weight_),
            "trees": [tree.to_dict() for tree in self.trees_],
        }

    def _restore(self, values: Mapping[str, Any]) -> None:
        self.base_, self.weight_ = float(values["base"]), float(values["weight"])
        self.trees_ = [Nodes.from_dict(tree) for tree in values["trees"]]
        if any(int(t.feature.max()) >= self.n_features_in_ for t in self.trees_):
            raise ValueError("features that exist")


class StorageRegressor(_Trees):
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


class BoostedStorageRegressor(_Trees):
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


class NeighbourStorageRegressor(_Learner):
    """Mean of the nearest points, weighted by 1/distance.

    Distances are Euclidean over standardised columns: signed log2(1 + |x|), so that ratios of sizes are
    distances and indicators stay 0 and 1.
    """

    def __init__(self, neighbours: int = 3, scale: Scale = "linear") -> None:
        self.neighbours = neighbours
        self.scale = scale

    def _learn(self, x: Any, y: Floats) -> None:
        self.x_, self.y_ = np.asarray(x, dtype=float), y
        logarithms = _signed_log2(self.x_)
        self.middle_, deviation = logarithms.mean(axis=0), logarithms.std(axis=0)
        self.width_ = np.where(deviation > 0, deviation, 1.0)
        count = min(self.neighbours, len(y))
        self.nearest_ = KNeighborsRegressor(count, weights="distance", algorithm="brute")
        self.nearest_.fit(self._scaled(self.x_), y)

    def _scaled(self, x: Any) -> Floats:
        scaled: Floats = (_signed_log2(x) - self.middle_) / self.width_
        return scaled

    def _raw(self, x: Any) -> Floats:
        values: Floats = self.nearest_.predict(self._scaled(x))
        return values

    def _state(self) -> Mapping[str, object]:
        return {"x": self.x_.tolist(), "y": self.y_.tolist()}

    def _restore(self, values: Mapping[str, Any]) -> None:
        x, y = np.asarray(values["x"], dtype=float), np.asarray(values["y"], dtype=float)
        if x.shape != (len(y), self.n_features_in_) or not np.all(np.isfinite(y)):
            raise ValueError("one finite value per point")
        self._learn(x, y)


def _signed_log2(x: Any) -> Floats:
    values = np.asarray(x, dtype=float)
    logarithms: Floats = np.sign(values) * np.log2(1 + np.abs(values))
    return logarithms


#: the user's name → learner; the first is the default
LEARNERS: dict[str, type[_Learner]] = {
    "tree": StorageRegressor,
    "neighbours": NeighbourStorageRegressor,
    "boosted": BoostedStorageRegressor,
}
#: learners of the measured points alone: the completed grid would repeat the surrogate
MEASURED_ONLY = ("neighbours",)


def restored(values: Mapping[str, Any]) -> _Learner:
    """Learner from the values of `to_dict`. KeyError, TypeError or ValueError for invalid values."""
    kinds = {c.__name__: c for c in LEARNERS.values()}
    learner = kinds[values["kind"]](**values["parameters"])
    learner.n_features_in_ = int(values["features"])
    learner._restore(values)
    return learner
