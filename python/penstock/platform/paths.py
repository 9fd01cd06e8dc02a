"""Dotted paths into a platform, such as `hosts.nodes.storage.profile`: groups and disks by their name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.platform.file import PlatformFile
from penstock.spec.mistakes import keys_at, schema_at
from penstock.spec.names import listed, suggestion
from penstock.spec.source import Path

#: keys that name an element of a list
_NAMES = ("group", "name", "frequency")


class NoPath(ValueError):  # noqa: N818 - reads as what it is
    """Invalid dotted path: the actual step, and the existing ones."""

    def __init__(self, actual: str, expected: str) -> None:
        self.actual, self.expected = actual, expected
        super().__init__(f"found {actual}; expected {expected}")


def name_of(element: Any, index: int) -> str:
    """Name of a list element in a dotted path: its group, its name, or its index."""
    if isinstance(element, dict):
        for key in _NAMES:
            if isinstance(element.get(key), str) and "." not in element[key]:
                return str(element[key])
    return str(index)


def dotted(document: Any, path: Sequence[str | int]) -> str:
    """`path` as text, with list elements by name."""
    names = []
    node = document
    for step in path:
        node = _step(node, step)
        names.append(name_of(node, step) if isinstance(step, int) else step)
    return ".".join(names)


def _step(node: Any, step: str | int) -> Any:
    """Value at one step; None if missing."""
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return None


def find(document: Any, text: str) -> Path:
    """Path of `text`: an existing one, or one that the format allows. Raises NoPath."""
    steps = [s.strip() for s in text.split(".")]
    if not all(steps):
        raise NoPath(f"the path '{text}'", "names joined by dots, such as hosts.nodes.count")
    node: Any = document
    path: Path = ()
    for step in steps:
        where: str | int = step
        if isinstance(node, list):
            where = _element(node, step, path)
        else:
            _check_key(document, node, step, path)
        path = (*path, where)
        node = _step(node, where)
    return path


def _element(node: list[Any], step: str, path: Path) -> int:
    names = [name_of(element, i) for i, element in enumerate(node)]
    if step in names:
        return names.index(step)
    if step.isdigit() and int(step) < len(node):
        return int(step)
    above = ".".join(map(str, path))
    expected = (
        f"one of {listed(names)}{suggestion(step, names)}" if names else f"nothing in {above}"
    )
    raise NoPath(f"'{step}', which is not in {above}", expected)


def _check_key(document: Any, node: Any, step: str, path: Path) -> None:
    above = dotted(document, path) or "the platform"
    schema = schema_at(PlatformFile, path)
    keys = keys_at(PlatformFile, path)
    if isinstance(node, dict) and step in node:
        return
    if keys:
        if step not in keys:
            raise NoPath(
                f"'{step}', which is not in {above}",
                f"one of {', '.join(keys)}{suggestion(step, keys)}",
            )
        return
    if isinstance(schema.get("additionalProperties"), dict):
        return
    if isinstance(node, dict):
        raise NoPath(f"'{step}', which is not in {above}", f"one of {listed(list(node))}")
    raise NoPath(f"'{step}' below {above}", f"the path {above} itself, which is a single value")


def put(document: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at `path`; missing mappings are created."""
    node: Any = document
    for i, step in enumerate(path[:-1]):
        if isinstance(node, dict) and not isinstance(node.get(str(step)), dict | list):
            node[str(step)] = [] if isinstance(path[i + 1], int) else {}
        node = node[step]
    node[path[-1]] = value


def get(document: Any, path: Path) -> Any:
    """Value at `path`; None if missing."""
    node = document
    for step in path:
        node = _step(node, step)
    return node
