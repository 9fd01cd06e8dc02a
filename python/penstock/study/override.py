"""`--set a.b=c` and `--quick`: changes of a study's values before validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput, Mistake
from penstock.spec.source import Position, Source, read_value


def apply_override(source: Source, text: str) -> None:
    """Set one dotted path, such as `workload.timeout=5s` or `platform.nodes.node1.memory=1GiB`.

    A list element is addressed by index or `name`. BadInput for an unknown path.
    """
    path_text, equals, value_text = text.partition("=")
    steps = [s.strip() for s in path_text.split(".")]
    if not equals or not all(steps):
        raise _bad(text, f"'{text}'", "a.b=c, such as workload.timeout=5s")
    value = read_value(value_text)
    node: Any = source.value
    path: tuple[str | int, ...] = ()
    for depth, step in enumerate(steps):
        last = depth == len(steps) - 1
        where = _step(node, step, text, path)
        path = (*path, where)
        if last:
            node[where] = value
            _moved(source, path, f"--set {text}")
        elif isinstance(node, dict) and where not in node:
            node[where] = {}
            _moved(source, path, f"--set {text}")
            node = node[where]
        else:
            node = node[where]


def apply_quick(document: Mapping[str, Any], source: Source) -> None:
    """Reduce a study to few replicates and short commands.

    Replicates become at most 2 (the minimum for a spread), `workload.quick` overrides its keys. The design
    (`design/plan.py`) chooses the fraction later, because it depends on the factors.
    """
    design, workload = document.get("design"), document.get("workload")
    if isinstance(design, dict) and isinstance(design.get("replicates", 2), int):
        design["replicates"] = min(2, design.get("replicates", 2))
    quick = workload.get("quick") if isinstance(workload, dict) else None
    if isinstance(workload, dict) and isinstance(quick, dict):
        for key, value in quick.items():
            if key in ("prepare", "command", "timeout", "expected"):
                workload[key] = value
                for table in (source.keys, source.values):
                    at = table.get(("workload", "quick", key))
                    if at is not None:
                        table[("workload", key)] = at


def _step(node: Any, step: str, text: str, path: tuple[str | int, ...]) -> str | int:
    if isinstance(node, dict):
        return step
    if isinstance(node, list):
        for i, child in enumerate(node):
            if isinstance(child, dict) and child.get("name") == step:
                return i
        if step.isdigit() and int(step) < len(node):
            return int(step)
        names = [str(c.get("name")) for c in node if isinstance(c, dict)]
        raise _bad(text, f"'{step}'", f"an index below {len(node)} or one of: {', '.join(names)}")
    above = ".".join(str(p) for p in path) or "the study"
    raise _bad(text, f"'{step}' below {above}", "a path that leads to a value of the study")


def _moved(source: Source, path: tuple[str | int, ...], file: str) -> None:
    for table in (source.keys, source.values):
        for path_below in [p for p in table if p[: len(path)] == path and len(p) > len(path)]:
            del table[path_below]
        table[path] = Position(file, 1, 1)


def _bad(text: str, found: str, expected: str) -> BadInput:
    return BadInput(mistakes=[Mistake(f"--set {text}", 1, 1, found, expected)])
