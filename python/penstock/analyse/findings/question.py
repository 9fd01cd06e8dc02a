"""What a study's question asks: which, whether or how much; of which factor, and in which direction."""

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


#: designs that are made for screening
_SCREENS = ("plackett-burman", "definitive-screening")
#: factors of a screening without that purpose, at least
_LEAST_SCREENED = 3
#: a setting to choose
_PICK = re.compile(r"\b(best|fastest|cheapest|should|choose|most|least|optimal|highest|lowest)\b")


def kind(question: str) -> str:
    """`which`, `whether` or `how much`; `which` for what is none of them."""
    asked = question.lower()
    if _HOW_MUCH.search(asked.split(",")[0]):
        return "how much"
    if _WHICH.search(asked.split(",")[0]):
        return "which"
    return "whether" if _WHETHER.search(asked) else "which"


def direction(question: str) -> str:
    """What a question whether asks of a level: `costs`, `helps`, `matters`; empty where nobody can tell."""
    asked = question.lower()
    found = [
        (match.start(), name)
        for name, words in (("costs", _COSTS), ("helps", _HELPS), ("matters", _MATTERS))
        if (match := words.search(asked))
    ]
    return min(found)[1] if found else ""


def named(word: str, question: str) -> bool:
    """Whether the question speaks of a factor or level; numbers do not count."""
    asked = question.lower()
    spelt = re.escape(word.lower()).replace("_", "[ _-]")
    return not word[:1].isdigit() and bool(re.search(rf"(?<!\w){spelt}s?(?!\w)", asked))


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
