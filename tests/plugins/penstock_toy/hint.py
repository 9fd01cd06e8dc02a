"""A hint `toy`: number of uses of a file, with a mapping for engines that do not support it."""

from __future__ import annotations

from typing import Any

from penstock.parts.stores.hints import Hint
from penstock.spec.store import Support, emulated


def parse(text: str) -> int:
    if not text.isdigit():
        raise ValueError("a number of plays")
    return int(text)


def on_directory(site: Any, node: Any, path: str, value: int, empty: bool) -> Support:
    return emulated(f"played {value} times")


PLAYS = Hint(
    "toy",
    "how often it may be played with",
    parse,
    engines={"directory": on_directory, "toy": on_directory},
    model=lambda plays: {"replicas": min(plays, 2)},
)
