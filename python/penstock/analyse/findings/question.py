"""Kind of a study's question (which, whether or how much), its factor and its direction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.analyse.outcome import Outcome

_HOW_MUCH = re.compile(
    r"\b(how (much|long|far|fast|slow|large|big|strong\w*)|by how|what (does|do|would|is the)\b.*\b"
    r"(cost|costs|gain|gains|price|difference|effect|influence|penalty|overhead)"
    r"|how many\b.*\b(cost|costs|gain|gains|lose|loses|save|saves))\b"
)
_WHICH = re.compile(
    r"^\W*(which|what|where|when|how (should|many)|choose|find|who)\b|\bwhich of\b|\bbest\b|\bfastest\b"
)
_WHETHER = re.compile(
    r"^\W*(do|does|did|is|are|was|can|could|will|would|should|has|have|may|might)\b|\bwhether\b"
)
_COSTS = re.compile(
    r"\b(cost|costs|hurt|hurts|slow|slows|slower|lose|loses|worse|harm|harms|limit|limits|suffers?|waits?)\b"
)
_HELPS = re.compile(
    r"\b(help|helps|gain|gains|pay|pays|save|saves|improves?|faster|better|benefits?|worth|make up|makes up"
    r"|quicker|cheaper)\b"
)
_MATTERS = re.compile(
    r"\b(matters?|differ|differs|difference|depends?|affects?|changes?|influences?|effects?)\b"
)


#: screening designs
_SCREENS = ("plackett-burman", "definitive-screening")
#: minimum number of factors of a screening that is not declared as one
_LEAST_SCREENED = 3
#: words of a question for a setting to choose
_PICK = re.compile(r"\b(best|fastest|cheapest|should|choose|most|least|optimal|highest|lowest)\b")


def kind(question: str) -> str:
    """`which`, `whether` or `how much`; `which` if it is none of these."""
    text = question.lower()
    if _HOW_MUCH.search(text.split(",")[0]):
        return "how much"
    if _WHICH.search(text.split(",")[0]):
        return "which"
    return "whether" if _WHETHER.search(text) else "which"


def direction(question: str) -> str:
    """Direction of a `whether` question: `costs`, `helps`, `matters`; empty if there is none."""
    text = question.lower()
    matches = [
        (match.start(), name)
        for name, pattern in (("costs", _COSTS), ("helps", _HELPS), ("matters", _MATTERS))
        if (match := pattern.search(text))
    ]
    return min(matches)[1] if matches else ""


def named(word: str, question: str) -> bool:
    """True if the question names a factor or level; numbers do not count."""
    text = question.lower()
    spelt = re.escape(word.lower()).replace("_", "[ _-]")
    return not word[:1].isdigit() and bool(re.search(rf"(?<!\w){spelt}s?(?!\w)", text))


def is_screening(outcome: Outcome) -> bool:
    """True for a study that asks which factors matter, by its purpose, its question or its design."""
    design = outcome.study.get("design")
    purpose = design.get("purpose") if isinstance(design, dict) else None
    if purpose or len(outcome.factors) < _LEAST_SCREENED:
        return bool(purpose == "screen")
    question = outcome.question
    if kind(question) != "which":
        return False
    screens = outcome.plan.get("kind") in _SCREENS or bool(outcome.plan.get("fraction"))
    return direction(question) == "matters" or (screens and not _PICK.search(question.lower()))
