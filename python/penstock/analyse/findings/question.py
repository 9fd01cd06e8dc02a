"""Kind of a study's question (which, whether or how much), its factor and its direction."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    r"|quicker|cheaper|beats?|outperforms?)\b"
)
_MATTERS = re.compile(
    r"\b(matters?|differ|differs|difference|depends?|affects?|changes?|influences?|effects?)\b"
)
#: a comparison: what precedes it has its subject, what follows the other level
_THAN = re.compile(
    r"\b(?:(?:faster|quicker|better|cheaper|slower|worse)\b.*?\bthan|beats?|outperforms?)\b"
)
#: levels that stand for the absence of what their factor names
_ABSENT = frozenset("off no none false never without disabled 0".split())
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
    """True if the question names a factor or level, in any spelling; numbers do not count."""
    return not word[:1].isdigit() and _spelt(word, question)


def _spelt(word: str, question: str) -> bool:
    """True if the text has the word: `btree` also as `B-tree`, `read_ahead` as `read-ahead`, and words of
    four or more letters with an ending: `compression` for `compress`."""
    letters = re.sub(r"[\W_]", "", word.lower())
    if not letters:
        return False
    spelt = "[ _-]?".join(letters) if len(letters) > 3 else re.escape(word.lower())
    ending = "(s|ion|ing|ed)?" if len(letters) > 3 else "s?"
    return bool(re.search(rf"(?<!\w){spelt}{ending}(?!\w)", question.lower()))


def compares(question: str) -> bool:
    """True for a question whether one level is better or worse than another."""
    return kind(question) == "whether" and bool(_THAN.search(question.lower()))


def named_levels(levels: Sequence[str], question: str) -> list[str]:
    """The levels that a question names; in a comparison also by numbers and by a part of their own."""
    if compares(question):
        return _compared(levels, question)
    return [v for v in levels if named(v, question)]


def _compared(levels: Sequence[str], text: str) -> list[str]:
    """The levels in a comparison: `sata-ssd` also as `SSD`, if no other level has that part."""
    parts = {v: set(re.findall(r"[a-z]{2,}", v.lower())) for v in levels}
    chosen = []
    for level in levels:
        own = parts[level].difference(*(parts[v] for v in levels if v != level))
        if any(_spelt(word, text) for word in (level, *own)):
            chosen.append(level)
    return chosen


def subject(levels: Sequence[str], question: str) -> str:
    """The one of these levels that a question is about; empty if it is none, or more than one.

    In a comparison the level before `than`; else the only one that is named, or of two the one that is
    not the absence of something (`off`).
    """
    text = question.lower()
    if compares(question) and (than := _THAN.search(text)):
        chosen = _compared(levels, text[: than.end()])
    else:
        chosen = named_levels(levels, question)
        if not chosen and len(levels) == 2 and direction(question) != "matters":
            chosen = [v for v in levels if v.lower() not in _ABSENT]
    return chosen[0] if len(chosen) == 1 else ""


def picks(question: str) -> bool:
    """True if a question asks for a setting to choose."""
    return bool(_PICK.search(question.lower()))


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
    return direction(question) == "matters" or (screens and not picks(question))
