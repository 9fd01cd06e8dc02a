"""Cost of a fraction of a completed full design, and its agreement with the full design.

The rows of the fraction are a subset of the full design, so nothing is run again. Equal largest effects do
not prove clear estimates: each is reported with its aliases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.fraction import fraction_of, relation_of, rows_in
from penstock.analyse.treatments.rankings import TOP, Agreement, agree
from penstock.design.generators import term_of
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.text import counted, listed, term_text


@dataclass(frozen=True)
class FractionCost:
    """A fraction compared with the full design, in one response.

    `relation`: its defining words; `runs` and `seconds` of (fraction, full), seconds NaN if runs have no
    times; `largest`: of the effects of all its contrasts, `main` of the main effects only; `overlapping`:
    terms whose 95 % intervals overlap; `terms`: as `fraction_of`.
    """

    response: str
    relation: list[str]
    runs: tuple[int, int]
    seconds: tuple[float, float]
    largest: Agreement | None
    main: Agreement | None
    overlapping: int
    terms: pd.DataFrame

    @property
    def tau(self) -> float | None:
        """Kendall's τ of the main effects; None if it is not defined, as for effects that are all alike."""
        return self.main.tau if self.main is not None and math.isfinite(self.main.tau) else None

    def document(self) -> dict[str, Any]:
        """Plain values."""
        timed = self.seconds[0] > 0 and self.seconds[1] > 0
        return {
            "response": self.response,
            "relation": self.relation,
            "runs": list(self.runs),
            "cost_ratio": self.runs[0] / self.runs[1],
            "time_ratio": self.seconds[0] / self.seconds[1] if timed else None,
            "top": self.largest.top if self.largest else None,
            "same_top": self.largest.overlap == self.largest.top if self.largest else None,
            "largest": dict(zip(("full", "fraction"), self.largest.best, strict=True))
            if self.largest
            else None,
            "tau_main_effects": self.tau,
            "intervals_overlap": self.overlapping,
            "terms": self.terms.astype(object).where(self.terms.notna(), None).to_dict("records"),
        }


def fraction_costs(
    outcome: Outcome, definition: Sequence[str], top: int = TOP
) -> list[FractionCost]:
    """The cost for each response. `definition`: generators (`D = A*B`), or one number P of a fraction
    2^(K−P).

    BadInput unless the study is a full design of two-level factors with such a fraction.
    """
    plan = plan_from_json(outcome.plan)
    names = [f.name for f in plan.factors]
    number = definition[0] if len(definition) == 1 and definition[0].strip().isdecimal() else None
    added, generators = (int(number), ()) if number else (len(definition), tuple(definition))
    costs = []
    try:
        relation = relation_of(plan, added, generators)
        for response in outcome.responses:
            if response.name not in outcome.measured:
                continue
            table = fraction_of(
                outcome.measured,
                plan,
                response.name,
                added,
                generators,
                scale_of_effects(outcome, response),
            )
            full, part = (
                {str(t): abs(float(v)) for t, v in zip(table["term"], table[c], strict=True)}
                for c in ("full", "fraction")
            )
            alone = [{t: v for t, v in side.items() if t in names} for side in (full, part)]
            ends = table[["full_ci_low", "full_ci_high", "fraction_ci_low", "fraction_ci_high"]]
            meet = (ends["full_ci_low"] <= ends["fraction_ci_high"]) & (
                ends["fraction_ci_low"] <= ends["full_ci_high"]
            )
            runs_in = outcome.measured[rows_in(outcome.measured, plan, relation)]
            costs.append(
                FractionCost(
                    response.name,
                    [
                        term_of(w, names, "*") if s > 0 else f"-{term_of(w, names, '*')}"
                        for w, s in relation.items()
                        if w
                    ],
                    (len(runs_in), len(outcome.measured)),
                    (_seconds(outcome, runs_in), _seconds(outcome, outcome.measured)),
                    next(agree(response, "effects", full, part, top, best_low=False), None),
                    next(
                        agree(response, "main effects", alone[0], alone[1], top, best_low=False),
                        None,
                    ),
                    int(meet.sum()),
                    table,
                )
            )
    except PenstockError as error:
        raise BadInput(f"{outcome.path}: --fraction {' '.join(definition)}: {error}") from error
    return costs


def _seconds(outcome: Outcome, runs: pd.DataFrame) -> float:
    """Total time of these runs, with preparation and overhead [s]."""
    times = [outcome.manifest(str(r)).get("times") or {} for r in runs["run_id"]]
    return float(sum(float(t.get("wall_s") or 0) + float(t.get("own_s") or 0) for t in times))


def fraction_lines(costs: Sequence[FractionCost]) -> Iterator[str]:
    """`fraction_costs` for a terminal."""
    for one in costs:
        document = one.document()
        cost = (
            f"{one.runs[0]} of {counted(one.runs[1], 'run')} ({100 * document['cost_ratio']:.0f} %"
        )
        if document["time_ratio"] is not None:
            cost += f", {100 * document['time_ratio']:.0f} % of the time"
        yield f"{one.response}: the fraction I = {' = '.join(one.relation)} takes {cost})"
        if one.largest is not None:
            full, part = ([term_text(t) for t in best] for best in one.largest.best)
            same = "are the same" if document["same_top"] else f"would have been {listed(part)}"
            yield f"  the {one.largest.top} largest effects, {listed(full)}, {same}"
        if one.tau is not None:
            yield f"  Kendall's tau of the main effects {one.tau:.2f}"
        yield f"  intervals of {one.overlapping} of {counted(len(one.terms), 'term')} overlap"
        yield from (f"  {row['statement']}" for row in one.terms.to_dict("records") if row["fault"])
