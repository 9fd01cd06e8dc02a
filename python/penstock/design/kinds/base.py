"""Request for a design of some kind, and the kind's claims about its treatments.

A kind is a module or object with

- `WHAT`: a one-line description;
- `OPTIONS`: its keys in a study file, with descriptions;
- `CANNOT`: sentences on the limits of its conclusions, for the plan;
- `fault(request)`: the missing requirement, empty if the design exists;
- `treatments(request)`: the design, treatments × factors of level numbers 0, 1, …, distinct rows unless it
  claims `repeated`;
- `claim(request)`: properties of the rows, which `penstock.design.claims` verifies from the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.spec.study import Factor

Numbers = NDArray[np.int64]
#: terms of the model: main effects; linear and quadratic contrasts of quantitative factors as separate terms;
#: main effects and products of two; all of these
Model = Literal["main", "squares", "pairs", "quadratic"]
#: models that a study may request; rows without one get the largest that they estimate
MODELS: tuple[Model, ...] = ("main", "pairs", "quadratic")


class Kind(Protocol):
    """The protocol of this module."""

    WHAT: str
    OPTIONS: Mapping[str, str]
    CANNOT: Sequence[str]

    def fault(self, request: Asked) -> str: ...
    def treatments(self, request: Asked) -> Any: ...
    def claim(self, request: Asked) -> Claim: ...


@dataclass(frozen=True)
class Asked:
    """A request for a design: factors, options of the kind, random seed and forbidden combinations.

    `forbidden`: combinations, each factor → level names; a treatment that matches every factor of a
    combination is not run.
    """

    factors: tuple[Factor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    forbidden: tuple[Mapping[str, tuple[str, ...]], ...] = ()

    @property
    def levels(self) -> list[int]:
        """Number of levels of each factor."""
        return [len(f.levels) for f in self.factors]

    @property
    def names(self) -> list[str]:
        """The factors' names."""
        return [f.name for f in self.factors]

    @property
    def combinations(self) -> int:
        """Number of treatments of the full design, including forbidden ones."""
        return math.prod(self.levels)

    def values(self, place: int) -> list[float] | None:
        """Numeric values of a quantitative factor's levels, None for a qualitative one."""
        return numeric(self.factors[place])

    def allowed(self, rows: Any) -> NDArray[np.bool_]:
        """Mask of the treatments (… × factors of level numbers) that may be run."""
        rows = np.asarray(rows)
        good: NDArray[np.bool_] = np.ones(rows.shape[:-1], dtype=bool)
        for combination in self._forbidden_levels:
            hit: NDArray[np.bool_] = np.ones(rows.shape[:-1], dtype=bool)
            for place, levels in combination:
                hit &= levels[rows[..., place]]
            good &= ~hit
        return good

    @cached_property
    def _forbidden_levels(self) -> list[list[tuple[int, NDArray[np.bool_]]]]:
        """Forbidden combinations, each as pairs of a factor's index and a mask of its levels."""
        return [
            [
                (place, np.array([v.name in levels[factor.name] for v in factor.levels]))
                for place, factor in enumerate(self.factors)
                if factor.name in levels
            ]
            for levels in self.forbidden
        ]

    def whole(self, key: str, default: int) -> int:
        """Value of an integer option."""
        return int(self.options.get(key, default))


@dataclass(frozen=True)
class Claim:
    """Claims about the rows: `strength` 1, levels of each factor equally often; 2, pairs of levels as well.

    `model`: the largest model of which every coefficient has an estimate, None for no claim; `clear`:
    linear main effects are orthogonal to all products of two and to squares, those of three levels to each
    other as well; `runs`: number of rows, if fixed; `near`: counts of a factor's levels differ by at most
    one; `repeated`: rows may occur several times.
    """

    model: Model | None = "main"
    strength: int = 0
    near: bool = False
    clear: bool = False
    runs: int | None = None
    repeated: bool = False


def numeric(factor: Factor) -> list[float] | None:
    """Numeric values of a quantitative factor's levels; None if any level is a string (even of digits), or
    if they are not finite and distinct."""
    numbers = [float(v.value) for v in factor.levels if isinstance(v.value, int | float)]
    good = len(numbers) == len(factor.levels) and all(map(math.isfinite, numbers))
    return numbers if good and len(set(numbers)) == len(numbers) else None


def no_pydoe() -> str:
    """Fault of kinds whose matrices come from pydoe, if it is not installed."""
    return "" if find_spec("pydoe") else "pydoe, which `pip install 'penstock[design]'` brings"


def no_forbidden(request: Asked) -> str:
    """Fault of kinds that lose orthogonality if a combination is left out."""
    if request.forbidden:
        return "no forbidden combinations, or kind: d-optimal, which excludes them"
    return ""


def whole_number(request: Asked, key: str, least: int, most: int) -> str:
    """Fault of an option that is not an integer in the range."""
    value = request.options.get(key)
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if key in request.options and not good:
        return f"{key}: an integer from {least} to {most}"
    return ""
