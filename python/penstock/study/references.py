"""References in the templates of a study, and all texts that they can produce."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.spec.names import BUILT_IN, OF_NODES, OF_STORE, listed, suggestion
from penstock.spec.source import Path, Source
from penstock.spec.study import level_name
from penstock.spec.template import LoneBrace, filled_in, name_alone, names_in

#: limit of combinations for one text
_MOST_FILLINGS = 4096


@dataclass
class Names:
    """Names that templates may refer to."""

    factors: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → level name → value
    disks: dict[str, list[str]] = field(default_factory=dict)  # disk → nodes with it
    nodes: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)  # node names in order
    used: set[str] = field(default_factory=set)
    store: bool = False  # True with a shared store

    def is_part(self, factor: str) -> bool:
        """True for a factor with a mapping or list level."""
        return any(isinstance(v, dict | list) for v in self.factors[factor].values())


def level_values(levels: Any) -> Iterator[tuple[str | int, str, Any]]:
    """Key or index, name, and value of each level of a factor's `levels`."""
    if isinstance(levels, dict):
        for name, value in levels.items():
            yield name, name, _level_value(value)
    elif isinstance(levels, list):
        for i, value in enumerate(levels):
            yield i, level_name(value), _level_value(value)


def level_names(raw: Any) -> tuple[str, ...]:
    """Names of levels in a file: one, or a list."""
    levels = raw if isinstance(raw, list) else [raw]
    return tuple(level_name(value) for value in levels)


def _level_value(value: Any) -> Any:
    return level_name(value) if isinstance(value, bool) else value


def templates(
    source: Source,
    path: Path,
    text: Any,
    names: Names,
    *,
    disks: bool,
    on: Sequence[str] = (),
) -> list[str] | None:
    """Factors in a template; None for an invalid template. Records its mistakes.

    With `disks`, names of disks are valid, those of the nodes `on` without the node's name.
    """
    if not isinstance(text, str):
        return None
    try:
        referenced = names_in(text)
    except LoneBrace as brace:
        names.used |= {f for f in names.factors if f"{{{f}}}" in text}
        source.mistake_in(
            path,
            str(brace),
            f"a lone '{brace}'",
            "{name} of a factor or disk; a literal brace is doubled",
        )
        return None
    good = True
    for name in referenced:
        if name in names.factors:
            names.used.add(name)
            if names.is_part(name) and (disks or name_alone(text) != name):
                actual = f"the factor '{name}', whose levels are mappings or lists"
                source.mistake_in(path, f"{{{name}}}", actual, "a factor of texts or numbers")
                good = False
        elif not _names_for(source, path, name, names, disks=disks, on=on):
            good = False
    return [n for n in referenced if n in names.factors] if good else None


def _names_for(
    source: Source, path: Path, name: str, names: Names, *, disks: bool, on: Sequence[str]
) -> bool:
    node, dot, disk = name.partition(".")
    if name == "study_dir" or (disks and name in (*BUILT_IN, *OF_NODES)):
        return True
    if disks and name == OF_STORE and names.store:
        return True
    if disks and name in names.disks and (not on or set(on) <= set(names.disks[name])):
        return True
    if disks and dot and node in names.nodes and node in names.disks.get(disk, []):
        return True
    valid_names = [*names.factors, "study_dir"]
    names.used |= {f for f in names.factors if f"'{f}'" in suggestion(name, valid_names)}
    if disks:
        valid_names += [*names.disks, *BUILT_IN]
    if name in names.disks and not disks:
        expected = "a factor; directories of disks are known to the workload only"
    elif name in names.disks:
        choices = [f"{{{n}.{name}}}" for n in names.disks[name]]
        expected = f"which node's disk it is: {listed(choices)}"
    elif disks and dot and node in names.nodes:
        has = [d for d, nodes in names.disks.items() if node in nodes]
        expected = f"a disk of node '{node}': {listed(has) or 'it has none'}{suggestion(disk, has)}"
    elif disks and dot and disk in names.disks:
        nodes = sorted(names.nodes)
        expected = f"a node of the platform: {listed(nodes)}{suggestion(node, nodes)}"
    else:
        shown = listed(list(dict.fromkeys(valid_names)))
        expected = f"{shown}{suggestion(name, valid_names)}; a literal brace is doubled: {{{{ }}}}"
    what = "unknown node or disk" if disks and dot else "unknown name"
    source.mistake_in(path, f"{{{name}}}", f"the {what} '{{{name}}}'", expected)
    return False


def filled(source: Source, path: Path, text: Any, names: Names) -> Iterator[tuple[Any, Path]]:
    """All values of a platform template, each with the position of the level that determines it."""
    factors = templates(source, path, text, names, disks=False)
    if factors is None:
        return
    alone = len(factors) == 1 and name_alone(text) == factors[0]
    for chosen in itertools.islice(
        itertools.product(*(names.factors[f].items() for f in factors)), _MOST_FILLINGS
    ):
        values = {f: template_value(v) for f, (_, v) in zip(factors, chosen, strict=True)}
        where = path
        if alone:
            levels = _levels_of(source.value, factors[0])
            keys = [k for k, n, _ in level_values(levels) if n == chosen[0][0]]
            where = ("factors", factors[0], "levels", *keys)
        yield filled_in(text, {**values, "study_dir": "."}), where


def template_value(level: Any) -> Any:
    """Value of a level in templates: its text, or its mapping or list."""
    return level if isinstance(level, dict | list) else str(level)


def _levels_of(document: Any, factor: str) -> Any:
    for key in ("factors", factor, "levels"):
        document = document.get(key) if isinstance(document, dict) else None
    return document
