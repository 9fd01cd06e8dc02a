"""Templates: text with `{name}`; literal braces are doubled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


class LoneBrace(ValueError):  # noqa: N818 - reads as what it is
    """A `{` or `}` that neither names anything nor is doubled."""


def names_in(text: str) -> list[str]:
    """Names that `text` refers to, in order, each once; LoneBrace if a brace stands alone."""
    found: dict[str, None] = {}
    for match in _PIECE.finditer(text):
        if match.group(1) is not None:
            found.setdefault(match.group(1).strip())
        elif match.group() in "{}":
            raise LoneBrace(match.group())
    return list(found)


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with every `{name}` replaced; KeyError for a name without a value, LoneBrace as above."""

    def one(match: re.Match[str]) -> str:
        if match.group(1) is not None:
            return values[match.group(1).strip()]
        if match.group() in "{}":
            raise LoneBrace(match.group())
        return match.group()[0]

    return _PIECE.sub(one, text)


def filled_in(value: Any, values: Mapping[str, str]) -> Any:
    """Plain values (mappings, lists, texts) with every template filled in; raises as `fill` does."""
    if isinstance(value, dict):
        return {k: filled_in(v, values) for k, v in value.items()}
    if isinstance(value, list):
        return [filled_in(v, values) for v in value]
    return fill(value, values) if isinstance(value, str) else value
