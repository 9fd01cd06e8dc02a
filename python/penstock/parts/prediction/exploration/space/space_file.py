"""A file of axes, constraints and objective: the equivalent of `--vary` for larger spaces.

penstock_space: 1
vary:
  split: hosts.app:hosts.storage/19
  store.chunk: [256KiB, 1MiB, 4MiB]
constraints: [cost <= 2 EUR]
objective: time
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadInput
from penstock.parts.prediction.exploration.space.space import Axis, axes_of_source
from penstock.spec.names import listed, suggestion
from penstock.spec.source import Position, read_source

_KEYS = ["penstock_space", "vary", "constraints", "objective"]


@dataclass(frozen=True)
class Located:
    """A text and its position."""

    text: str
    at: Position


@dataclass(frozen=True)
class SpaceFile:
    """Contents of a space file."""

    axes: tuple[Axis, ...]
    constraints: tuple[Located, ...] = ()
    objective: Located | None = None


def read_space_file(path: Path) -> SpaceFile:
    """Read a space file; BadInput with every mistake's line and column."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"no space file {path}: {error.strerror}") from None
    source = read_source(raw, str(path))
    document = source.value
    if not isinstance(document, dict):
        source.mistake((), "no mapping", "a mapping with penstock_space and vary")
        raise BadInput(mistakes=source.mistakes)
    for key in document:
        if key not in _KEYS:
            source.mistake((key,), f"'{key}'{suggestion(key, _KEYS)}", listed(_KEYS), key=True)
    version = document.get("penstock_space")
    if version != 1 or isinstance(version, bool):
        actual = "no penstock_space" if version is None else f"penstock_space {version!r}"
        source.mistake(("penstock_space",), actual, "penstock_space: 1")
    vary = document.get("vary")
    axes: list[Axis] = []
    if isinstance(vary, dict) and vary:
        axes = axes_of_source(source, vary, ("vary",))
    else:
        source.mistake(("vary",), "no axis", "vary: a mapping of keys to levels")
    constraints = document.get("constraints") or []
    listed_constraints = constraints if isinstance(constraints, list) else [constraints]
    texts = []
    for i, text in enumerate(listed_constraints):
        where = ("constraints", i) if isinstance(constraints, list) else ("constraints",)
        if isinstance(text, str):
            texts.append(Located(text, source.at(where)))
        else:
            source.mistake(where, f"{text!r}", "a text such as cost <= 2 EUR")
    objective = document.get("objective")
    if objective is not None and not isinstance(objective, str):
        source.mistake(("objective",), f"{objective!r}", "time, cost, energy or an expression")
    if source.mistakes:
        raise BadInput(mistakes=source.mistakes)
    where_objective = Located(objective, source.at(("objective",))) if objective else None
    return SpaceFile(tuple(axes), tuple(texts), where_objective)
