"""Effects without an estimate, because combinations of the design have no valid run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.fit import ASSUMED, NOT_ESTIMABLE
from penstock.analyse.statistics.significance import Terms, terms_of
from penstock.design.show import MODEL_TEXTS
from penstock.text import first_of, listed, term_text

#: maximum number of treatments named in a sentence
_MOST_NAMED = 4
_FRACTIONS = {1: "half", 2: "quarter", 3: "eighth"}


def fraction_word(added: int) -> str:
    """`half fraction` of 2^(K-1), `1/16 fraction` of 2^(K-4)."""
    return f"{_FRACTIONS.get(added) or f'1/{2**added}'} fraction"


_ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX", 10: "X"}


def size_sentence(outcome: Outcome) -> str:
    """Sentence on the fraction of a study and its aliases, or on its quick size; empty for a full design."""
    count = len({r["treatment_id"] for r in outcome.plan.get("rows") or []})
    added = int(outcome.plan.get("fraction") or 0)
    if model := outcome.plan.get("model"):
        every = math.prod(len(f.levels) for f in outcome.factors)
        return (
            f" {count} of {every} combinations were run ({outcome.plan.get('kind')}): "
            f"{MODEL_TEXTS[model]} are estimated; other effects become part of them."
        )
    if not added:
        return " This was the quick size of the study." if outcome.quick else ""
    grade = int(outcome.plan.get("resolution") or 0)
    quick = "the quick size: " if outcome.quick else ""
    full_size = _full_size(outcome)
    if count << added != full_size:
        return f" {count} of {full_size} combinations were run: effects may be aliased with others."
    return (
        f" {count} of {count << added} combinations were run ({quick}{fraction_word(added)}, resolution "
        f"{_ROMAN.get(grade, grade)}): each effect is aliased with others{_example(outcome)}."
    )


def _example(outcome: Outcome) -> str:
    """`, e.g. disk with journal × sync × batch`: the first factor that is aliased with a short term."""
    names = [f.name for f in outcome.factors]
    aliases = [a for a in outcome.plan.get("aliases") or [] if a.get("with_terms")]
    mains = [a for a in aliases if a.get("term") in names]
    for alias in [*mains[-1:], *aliases[-1:]]:
        rival = str(alias["with_terms"][0]).lstrip("+-")
        return f", e.g. {term_text(alias['term'])} with {term_text(rival)}"
    return ""


def untested_combinations(outcome: Outcome) -> Iterator[str]:
    """The combinations that a fraction did not run, as an open point."""
    added = int(outcome.plan.get("fraction") or 0)
    if added:
        count = len({r["treatment_id"] for r in outcome.plan.get("rows") or []})
        full_size = _full_size(outcome)
        regular = count << added == full_size
        which = f"the {fraction_word(added)}" if regular else "the design"
        yield f"the {full_size - count} combinations that {which} left out"


def _full_size(outcome: Outcome) -> int:
    """Number of treatments of the full design."""
    return math.prod(len(f.levels) for f in outcome.factors)


def not_estimable(outcome: Outcome) -> Iterator[Finding]:
    """Effects without an estimate because of missing runs; one finding for responses in common."""
    if outcome.effects is None or "method" not in outcome.effects:
        return
    alike: dict[str, list[str]] = {}
    for response in outcome.responses:
        terms = terms_of(outcome, response.name)
        if terms is not None and (sentence := _sentence(outcome, terms, response.name)):
            alike.setdefault(sentence, []).append(response.name)
    for sentence, responses in alike.items():
        yield Finding(
            "effect-undetermined",
            "warning",
            sentence.format(listed(responses, "or")),
            {"table": "effects", "responses": responses},
            "`penstock run STUDY --resume` repeats runs that are not valid.",
        )


def without_run(outcome: Outcome, response: str) -> list[str]:
    """The planned treatments without a valid run for the response."""
    runs = outcome.measured
    completed = set(runs.loc[runs[response].notna(), "treatment_id"].astype(str))
    planned = dict.fromkeys(str(r["treatment_id"]) for r in outcome.plan.get("rows") or [])
    return sorted(t for t in planned if t not in completed)


def _sentence(outcome: Outcome, terms: Terms, response: str) -> str:
    """Sentence with `{}` for the responses; empty if every effect has an estimate."""
    methods = list(zip(terms.names, terms.column("method"), strict=True))
    names = [term for term, method in methods if method == NOT_ESTIMABLE]
    assumed = [term for term, method in methods if method == ASSUMED]
    if len(outcome.factors) < 2 or (not names and not assumed):
        return ""
    lost = without_run(outcome, response)
    if len(names) == len(terms.names):
        return (
            f"No effect on {{}} can be estimated: of the {_planned(outcome)}, {_have_none(lost)}, "
            "and without "
            f"{'it' if len(lost) == 1 else 'them'} every effect is aliased with others that the complete "
            "design separates."
        )
    gone = [f.name for f in outcome.factors if f.name in names]
    if gone:
        constant_levels = {n: str(outcome.measured[n].iloc[0]) for n in gone}
        also = f"; {_long(outcome, assumed)} taken as 0" if assumed else ""
        return (
            f"Effects of {listed([term_text(n) for n in gone])} on {{}} cannot be determined, and all "
            f"others hold for {outcome.phrase(constant_levels, ' + ')} alone{also}."
        )
    if assumed:
        return (
            f"Of the {_planned(outcome)}, {_have_none(lost)}: statements about effects on {{}} hold only if "
            f"{_long(outcome, assumed)} 0, which these runs do not show."
        )
    which = listed(first_of([term_text(n) for n in names], _MOST_NAMED), "or")
    return f"Too few runs are valid to estimate the effect of {which} on {{}}."


def _planned(outcome: Outcome) -> str:
    """`8 combinations of the half fraction`."""
    count = len({r["treatment_id"] for r in outcome.plan.get("rows") or []})
    added = int(outcome.plan.get("fraction") or 0)
    return f"{count} combinations{f' of the {fraction_word(added)}' if added else ''}"


def _have_none(lost: list[str]) -> str:
    which = listed(first_of(lost, _MOST_NAMED))
    return f"{len(lost)} {'has' if len(lost) == 1 else 'have'} no valid run ({which})"


def _long(outcome: Outcome, assumed: list[str]) -> str:
    """`the interaction of all 3 factors is`, `interactions of 3 or more factors are`: assumed to be 0."""
    least = min(t.count(":") for t in assumed) + 1
    if least == len(outcome.factors):
        return f"the interaction of all {least} factors is"
    return f"interactions of {least} or more factors are"
