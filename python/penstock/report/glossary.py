"""The terms of a page: each links to an entry on the page.

`templates/glossary.md` is the only source; `docs/glossary.md` is a copy (`make manual`).
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Word:
    """A term, its inflected forms, and its definition."""

    name: str
    forms: tuple[str, ...]
    meaning: str

    @property
    def anchor(self) -> str:
        """Anchor of its entry in the page."""
        return "word-" + re.sub(r"\W+", "-", self.name.lower())


_ENTRY = re.compile(r"^- \*\*(?P<name>[^*]+)\*\*(?: \((?P<forms>[^)]+)\))?: (?P<meaning>.+)$", re.M)
#: skipped elements with their contents (links, quoted text, drawings, script output), a tag, a text
_PART = re.compile(
    r"<(?P<skip>head|script|style|svg|nav|header|footer|table|dl|pre|code|bdi|a|summary|button|label|h1)\b.*?</(?P=skip)>"
    r"|<p class=\"(?:shown|hint)\".*?</p>|<[^>]*>|[^<]+",
    re.DOTALL,
)


@functools.cache
def entries() -> tuple[Word, ...]:
    """All entries, in the order of the page."""
    folder = resources.files("penstock.report") / "templates"
    text = (folder / "glossary.md").read_text(encoding="utf-8")
    return tuple(
        Word(m["name"], tuple(filter(None, (m["forms"] or "").split(", "))), m["meaning"])
        for m in _ENTRY.finditer(text)
    )


@functools.cache
def _forms() -> tuple[re.Pattern[str], dict[str, Word]]:
    by_form = {form.lower(): word for word in entries() for form in (word.name, *word.forms)}
    longest_first = sorted(by_form, key=len, reverse=True)
    one = "|".join(re.escape(html.escape(form)) for form in longest_first)
    # not inside a path, a name, an option or a key: flush.log, --flush, flush_us, /flush
    return re.compile(rf"(?<![\w./=&#-])({one})(?![\w/=-]|\.\w)", re.I), by_form


def explained(page: str, names: Iterable[str] = ()) -> str:
    """The page with the first use of each term linked, and their entries at its end.

    `names` of the study (responses, factors, levels) are no terms, nor is the random order of runs.
    """
    pattern, by_form = _forms()
    own = {form.lower() for name in names for form in (name, name.replace("_", " "))}
    own.add("random order")
    longest_first = sorted(filter(None, own), key=len, reverse=True)
    skipped = "|".join(re.escape(html.escape(name)) for name in longest_first)
    skipped_or_term = re.compile(rf"(?<!\w)(?:{skipped})(?!\w)|{pattern.pattern}", re.I)
    used: set[str] = set()

    def link(match: re.Match[str]) -> str:
        word = by_form.get((match[1] or "").lower())
        if word is None or word.name in used:
            return match[0]
        used.add(word.name)
        return f'<a class="word" href="#{word.anchor}">{match[0]}</a>'

    def part(match: re.Match[str]) -> str:
        text = match[0]
        return text if text.startswith("<") else skipped_or_term.sub(link, text)

    begin, main, rest = page.partition("<main>")
    body, end, tail = rest.rpartition("</main>")
    if not (main and end):
        return page
    body = _PART.sub(part, body)
    return begin + main + body + _section(used) + end + tail


def _section(used: set[str]) -> str:
    rows = "".join(
        f'<dt id="{word.anchor}">{html.escape(word.name)}</dt><dd>{html.escape(word.meaning)}</dd>\n'
        for word in sorted(entries(), key=lambda word: word.name.lower())
        if word.name in used
    )
    if not rows:
        return ""
    return (
        '<section id="words"><h2>Words</h2>\n<details><summary>What the words with dots below them '
        f'mean</summary><dl class="glossary">{rows}</dl></details>\n</section>\n'
    )
