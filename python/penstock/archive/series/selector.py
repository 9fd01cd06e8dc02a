"""Selectors of series: `cpu_busy`, `disk*{vda}`, `node_cpu_seconds_total{mode="idle", cpu!="0"}`.

A name may contain `*` and `?`. Braces contain either a pattern of the node, or Prometheus' label matchers:
`=`, `!=`, `=~`, `!~`, with the value in quotation marks unless it is one plain word.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import BadInput, printable

_SELECTOR = re.compile(r"(?P<name>[^{}]*)(?:\{(?P<within>.*)\})?", re.DOTALL)
_MATCHER = re.compile(
    r"\s*(?P<label>[A-Za-z_][A-Za-z0-9_]*)\s*(?P<how>=~|!~|!=|=)\s*"
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^",{}\s]+))\s*(?:,|$)'
)

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True)
class Matcher:
    """One condition on a label; a missing label counts as empty."""

    label: str
    how: str
    value: str

    def takes(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.label, "")
        if self.how in ("=", "!="):
            return (value == self.value) == (self.how == "=")
        return (re.fullmatch(self.value, value) is not None) == (self.how == "=~")


@dataclass(frozen=True)
class Selector:
    """A pattern of names, empty for all, and a pattern of the node or label matchers."""

    name: str
    node: str | None
    matchers: tuple[Matcher, ...]

    def takes(self, names: Iterable[str], node: str, labels: Mapping[str, str]) -> bool:
        """True for a series with one of these names."""
        return (
            (not self.name or any(fnmatch.fnmatchcase(n, self.name) for n in names if n))
            and (self.node is None or fnmatch.fnmatchcase(node, self.node))
            and all(m.takes(labels) for m in self.matchers)
        )


def _unescaped(quoted: str) -> str:
    """A text in quotation marks, with the escapes of Prometheus."""
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted)


@functools.lru_cache
def selector(text: str) -> Selector:
    """Parse a selector. Raises BadInput for braces with neither a node nor matchers."""
    match = _SELECTOR.fullmatch(text.strip())
    if match is None:
        raise BadInput(
            f"found {printable(text[:80])!r}; expected NAME, NAME{{NODE}} or NAME{{LABEL=VALUE}}"
        )
    name, within = match["name"].strip(), match["within"]
    if within is None or not within.strip():
        return Selector(name, None, ())
    if "=" not in within and "!~" not in within:
        return Selector(name, within.strip().strip('"'), ())
    matchers, at = [], 0
    while at < len(within):
        one = _MATCHER.match(within, at)
        if one is None:
            rest = printable(within[at : at + 40].strip())
            raise BadInput(
                f'found {rest!r} in {{ }}; expected LABEL="VALUE", with one of = != =~ !~'
            )
        value = one["plain"] if one["quoted"] is None else _unescaped(one["quoted"])
        if one["how"] in ("=~", "!~"):
            # a pattern has its escapes as in Prometheus, "a\\.b", or plainly, "a\.b"
            value = one["plain"] or re.sub(r'\\([\\"])', r"\1", one["quoted"])
            try:
                re.compile(value)
            except re.error as error:
                raise BadInput(
                    f"found {printable(value)!r}, {error}; expected a regular expression"
                ) from None
        matchers.append(Matcher(one["label"], one["how"], value))
        at = one.end()
    return Selector(name, None, tuple(matchers))
