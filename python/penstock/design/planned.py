"""The plan of a study: runs in order, and properties of the design before any run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.design.kinds.base import Model
from penstock.errors import BadInput
from penstock.spec.study import Factor


@dataclass(frozen=True)
class PlannedRun:
    """One run; `coded` is −1 or +1 for two-level factors, else the level number from 0.

    Runs of one `whole_plot` (of one `strip`) share a setting of the factors that are hard to change; 0:
    not shared.
    """

    run_id: str
    run_order: int
    replicate: int
    block: int
    treatment_id: str
    standard_order: int
    levels: dict[str, str]
    coded: dict[str, int]
    whole_plot: int = 0
    strip: int = 0
    #: stage of the study; stages from 2 on are additions (`design/additions/stages.py`)
    stage: int = 1


@dataclass(frozen=True)
class Alias:
    """Terms of one contrast column: `term` plus `with_terms`, signs as `+a:b` or `-a:b`.

    A partial alias has its share as a prefix: `+0.33 a:b`; unsigned for factors of more levels.
    """

    term: str
    with_terms: list[str]
    words: str
    longer: int = 0


@dataclass(frozen=True)
class Plan:
    """Runs in order, with the properties of the design that are computed before any run."""

    study_id: str
    rows: list[PlannedRun]
    factors: list[Factor]
    treatments: int
    replicates: int
    fraction: int
    generators: list[str]
    defining_relation: list[str]
    resolution: int | None
    word_lengths: dict[int, int]
    aliases: list[Alias]
    order: str
    order_why: str
    seed: int
    estimated_s: float
    estimate_why: str
    power: dict[str, Any]
    cautions: list[str]
    kind: str = "full"
    #: terms that the runs estimate (`penstock.design.kinds.base.Model`); None: all terms of the treatments
    model: Model | None = None
    #: the design chosen for a purpose, the reason, and the alternatives; None if the study names its kind
    choice: dict[str, Any] | None = None
    #: duration and precision of each possible order, if changes of factors have a cost
    orders: list[dict[str, Any]] = field(default_factory=list)
    #: factors with shared settings: in whole plots, in the strips that cross them
    whole_plot_factors: list[str] = field(default_factory=list)
    strip_factors: list[str] = field(default_factory=list)
    #: for each pass that is cut into blocks, the terms confounded with its blocks
    between_blocks: list[list[str]] = field(default_factory=list)
    #: additions to the plan of the study, stage 2 first (`design.additions.stages.Stage`)
    stages: list[dict[str, Any]] = field(default_factory=list)
    #: `alpha` and `spending` of a sequential study, whose looks share alpha
    sequential: dict[str, Any] | None = None

    @property
    def two_level(self) -> bool:
        """True if every factor has two levels."""
        return all(len(f.levels) == 2 for f in self.factors)

    @property
    def tested_terms(self) -> int:
        """Number of terms that the analysis tests together."""
        from penstock.design.model import terms

        if self.model is not None:
            none = np.zeros((1, len(self.factors)), dtype=np.int64)
            return len(terms(self.factors, self.model, none))
        if not self.two_level:
            return int((1 << len(self.factors)) - 1)
        never = set.intersection(*map(set, self.between_blocks)) if self.between_blocks else set()
        return self.treatments - 1 - len(never)

    @property
    def power_together(self) -> dict[str, Any]:
        """Power if all terms are tested together, as in the report."""
        from penstock.design.power import power_together

        return power_together(self.power, self.tested_terms)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        value: dict[str, Any] = {**vars(self)}
        value["rows"] = [vars(row) for row in self.rows]
        value["aliases"] = [vars(alias) for alias in self.aliases]
        value["factors"] = [factor.model_dump(mode="json") for factor in self.factors]
        value["word_lengths"] = {str(k): v for k, v in self.word_lengths.items()}
        value["two_level"] = self.two_level
        value["power_together"] = self.power_together
        return value

    def with_runs(self, rows: Sequence[PlannedRun]) -> Plan:
        """A copy of the plan with other rows."""
        return Plan(**{**self.__dict__, "rows": list(rows)})


def treatments_of(plan: Plan) -> list[dict[str, str]]:
    """The levels of each treatment of a plan, without repetition."""
    return list({row.treatment_id: row.levels for row in plan.rows}.values())


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """Inverse of `to_json`; BadInput for an invalid value."""
    try:
        values = {k: v for k, v in value.items() if k in Plan.__dataclass_fields__}
        values["rows"] = [PlannedRun(**row) for row in value["rows"]]
        values["factors"] = [Factor.model_validate(f, strict=False) for f in value["factors"]]
        values["aliases"] = [Alias(**a) for a in value["aliases"]]
        values["word_lengths"] = {int(k): v for k, v in value["word_lengths"].items()}
        return Plan(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"this is no plan: {error}") from None


def coded_type(factors: Sequence[Factor]) -> Any:
    """Type of coded levels: numbers of more than 128 levels need more than 8 bits."""
    return np.int8 if all(len(f.levels) == 2 for f in factors) else np.int64


def coded_matrix(plan: Plan) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Treatments × factors of the plan's coded levels, in standard order."""
    first: dict[int, PlannedRun] = {}
    for row in plan.rows:
        first.setdefault(row.standard_order, row)
    names = [f.name for f in plan.factors]
    return np.array(
        [[first[i].coded[n] for n in names] for i in sorted(first)], dtype=coded_type(plan.factors)
    ).reshape(len(first), len(names))
