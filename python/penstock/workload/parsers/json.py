"""A number in a JSON text, by a path such as `jobs.0.read.bw_bytes`."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import PenstockError

WHAT = "Path such as jobs.0.read.bw_bytes."


def expected(path: str) -> str:
    """Any text may be a path."""
    return ""


def number(path: str, text: str, where: str) -> float:
    """The number at `path`; PenstockError if the text is no JSON or holds no number there.

    Text before the first line that starts with `{` or `[` is skipped (programs print notes there).
    """
    value = document(text, where)
    done: list[str] = []
    for step in path.split("."):
        done.append(step)
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise PenstockError(f"{where} has no {'.'.join(done)}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PenstockError(f"{path} in {where} is not a number")
    return float(value)


def document(text: str, where: str) -> Any:
    """The JSON value of `text`, notes of the program before it skipped; PenstockError if there is none."""
    lines = text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")]
    for start in starts[:10]:
        try:
            return json.JSONDecoder().raw_decode("".join(lines[start:]).lstrip())[0]
        except (ValueError, RecursionError):
            continue
    raise PenstockError(f"{where} holds no JSON")
