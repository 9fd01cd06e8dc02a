"""Levels that the engine of the platform's store refuses: removed from a space, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.exploration.space.space import Axis, Level, RefusedLevel, Space
from penstock.platform.engine import EXPECTED, circumstances_of, refusals, settings
from penstock.platform.hosts import Platform
from penstock.spec.store_engines import Circumstances, capabilities

_ENGINE = "store.engine"
_STRIPE = "store.stripe"
#: storage hosts whose names are enumerated for a stripe
_MOST_HOSTS = 100_000


def without_refused(space: Space, platform: Platform) -> Space:
    """The space without the levels that no store of the platform's engine has; it names them in `refused`.

    A level whose refusal depends on the number of storage hosts stays: `CombinedRefusals` checks the
    combinations. BadInput for an axis of which no level remains.
    """
    engines = [
        value
        for axis in space.axes
        for level in axis.levels
        for key, value in level.values
        if key == _ENGINE
    ] or [platform.file.store.engine]
    if None in engines:
        return space
    refused: list[RefusedLevel] = []
    axes = []
    for axis in space.axes:
        remaining = []
        for level in axis.levels:
            reasons = [_reason(engine, level) for engine in engines]
            if all(reasons):
                refused.append(RefusedLevel(axis.name, level.label, reasons[0]))
            else:
                remaining.append(level)
        if not remaining:
            raise _no_level_remains(axis, refused)
        axes.append(replace(axis, levels=tuple(remaining)))
    return Space(tuple(axes), tuple(refused)) if refused else space


def _reason(engine: str, level: Level) -> str:
    """Reason why the engine refuses a level whatever the number of storage hosts."""
    values = dict(level.values)
    stripe = values.get(_STRIPE)
    hosts = stripe if isinstance(stripe, int) else 1
    reasons = refusals(engine, values, _circumstances(min(hosts, _MOST_HOSTS)))
    return next(iter(reasons.values()), "")


def _circumstances(storage: int) -> Circumstances:
    return Circumstances(tuple(f"storage-{n}" for n in range(storage)))


def _no_level_remains(axis: Axis, refused: list[RefusedLevel]) -> BadInput:
    return BadInput(
        mistakes=[
            axis.position.mistake(f"{one.axis} {one.level}; {one.why}", EXPECTED)
            for one in refused
            if one.axis == axis.name
        ]
    )


class CombinedRefusals:
    """Refusals of combinations of settings and of the number of storage hosts."""

    def __init__(self, platform: Platform) -> None:
        declared = settings(platform)
        self._engine = platform.file.store.engine
        at = circumstances_of(platform)
        gone = refusals(self._engine, declared, at) if self._engine is not None else {}
        #: settings of the file; a refused one has the engine's own value
        self._declared = {path: v for path, v in declared.items() if path not in gone}

    def reason(self, values: Mapping[str, Any], storage: int) -> str:
        """Reason against a store with these settings on `storage` hosts; empty if there is none."""
        engine = values.get(_ENGINE, self._engine)
        own = None if engine is None else capabilities(engine)
        if own is None:
            return ""
        if own.excess(storage):
            return f"more storage hosts than {engine} supports"
        refused = refusals(engine, {**self._declared, **values}, _circumstances(storage))
        return f"a {next(iter(refused))} that {engine} refuses" if refused else ""
