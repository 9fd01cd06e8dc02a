"""What a fraction of a full design that was run would have cost, and how far it would have agreed.

Its rows are among those of the full design, so that nothing is run again. That the largest effects are the
same is no proof of clear estimates: what is mixed into each is beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.fraction import fraction_of, relation_of, rows_in
from penstock.analyse.treatments.rankings import TOP, Agreement, agree
from penstock.design.generators import term_of
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.text import counted, listed, term_text


@dataclass(frozen=True)
class FractionCost:
    """A fraction beside the full design, in one response.

    `relation`: its defining words; `runs` and `seconds` of (fraction, full), seconds NaN where runs have no
    times; `largest`: of the effects of all its contrasts, `main` of the main effects alone; `overlapping`:
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

    def document(self) -> dict[str, Any]:
        """Plain values."""
        known = self.seconds[0] > 0 and self.seconds[1] > 0
        return {
            "response": self.response,
            "relation": self.relation,
            "runs": list(self.runs),
            "cost_ratio": self.runs[0] / self.runs[1],
            "time_ratio": self.seconds[0] / self.seconds[1] if known else None,
            "top": self.largest.top if self.largest else None,
            "same_top": self.largest.overlap == self.largest.top if self.largest else None,
            "largest": dict(zip(("full", "fraction"), self.largest.best, strict=True))
            if self.largest
            else None,
            "tau_main_effects": self.main.tau if self.main else None,
            "intervals_overlap": self.overlapping,
            "terms": self.terms.astype(object).where(self.terms.notna(), None).to_dict("records"),
        }


def fraction_costs(outcome: Outcome, said: Sequence[str], top: int = TOP) -> list[FractionCost]:
    """Of each response. `said`: generators (`D = A*B`), or one number P of a fraction 2^(K−P).

    BadInput where the study is no full design of two-level factors, or has no such fraction.
    """
    plan = plan_from_json(outcome.plan)
    names = [f.name for f in plan.factors]
    number = said[0] if len(said) == 1 and said[0].strip().isdecimal() else None
    added, generators = (int(number), ()) if number else (len(said), tuple(said))
    found = []
    try:
        relation = relation_of(plan, added, generators)
        for response in outcome.responses:
            if response.name not in outcome.measured:
                continue
            table = fraction_of(outcome.measured, plan, response.name, added, generators)
            full, part = (
                {str(t): abs(float(v)) for t, v in zip(table["term"], table[c], strict=True)}
                for c in ("full", "fraction")
            )
            alone = [{t: v for t, v in side.items() if t in names} for side in (full, part)]
            ends = table[["full_ci_low", "full_ci_high", "fraction_ci_low", "fraction_ci_high"]]
            meet = (ends["full_ci_low"] <= ends["fraction_ci_high"]) & (
                ends["fraction_ci_low"] <= ends["full_ci_high"]
            )
            made = outcome.measured[rows_in(outcome.measured, plan, relation)]
            found.append(
                FractionCost(
                    response.name,
                    [
                        term_of(w, names, "*") if s > 0 else f"-{term_of(w, names, '*')}"
                        for w, s in relation.items()
                        if w
                    ],
                    (len(made), len(outcome.measured)),
                    (_seconds(outcome, made), _seconds(outcome, outcome.measured)),
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
        raise BadInput(f"{outcome.path}: --fraction {' '.join(said)}: {error}") from error
    return found


def _seconds(outcome: Outcome, runs: pd.DataFrame) -> float:
    """What these runs took, with all around them."""
    times = [outcome.manifest(str(r)).get("times") or {} for r in runs["run_id"]]
    return float(sum(float(t.get("wall_s") or 0) + float(t.get("own_s") or 0) for t in times))


def fraction_lines(found: Sequence[FractionCost]) -> Iterator[str]:
    """`fraction_costs` for a terminal."""
    for one in found:
        told = one.document()
        cost = f"{one.runs[0]} of {counted(one.runs[1], 'run')} ({100 * told['cost_ratio']:.0f} %"
        if told["time_ratio"] is not None:
            cost += f", {100 * told['time_ratio']:.0f} % of the time"
        yield f"{one.response}: the fraction I = {' = '.join(one.relation)} takes {cost})"
        if one.largest is not None:
            full, part = ([term_text(t) for t in best] for best in one.largest.best)
            same = "are the same" if told["same_top"] else f"would have been {listed(part)}"
            yield f"  the {one.largest.top} largest effects, {listed(full)}, {same}"
        if one.main is not None:
            yield f"  Kendall's tau of the main effects {one.main.tau:.2f}"
        yield f"  intervals of {one.overlapping} of {counted(len(one.terms), 'term')} overlap"
        yield from (f"  {row['statement']}" for row in one.terms.to_dict("records") if row["fault"])
