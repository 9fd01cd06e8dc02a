"""Actions between runs that a change of factors requires, and their order.

A factor declares the strongest action that it requires. An action includes the weaker ones, since a newly
formatted device must also be mounted and its services started. A factor that keeps its level requires no
action. Before the first run, and after one that left an unknown state, all actions are run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.design.orders import STAYS
from penstock.design.planned import PlannedRun
from penstock.spec.study import ACTIONS, Factor


@dataclass(frozen=True)
class Step:
    """Changes before one run (factor → levels before and now), and the actions, strongest first."""

    run_id: str
    changed: dict[str, tuple[str, str]]
    actions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        changed = {name: list(pair) for name, pair in self.changed.items()}
        return {"run_id": self.run_id, "changed": changed, "actions": list(self.actions)}


class Changes:
    """Actions before each run; `completed` reports a run that has reached its state.

    A factor whose settings are whole plots of the plan's `rows` is set again for each whole plot, even if
    its level is unchanged. The result of a setting in strips persists: it is created once per pass.
    """

    def __init__(self, factors: Sequence[Factor], rows: Sequence[PlannedRun]) -> None:
        self._factors = factors
        self._hard = _constant(factors, {(r.whole_plot, r.run_id): r for r in rows if r.whole_plot})
        self._strips = _constant(factors, {(r.strip, r.run_id): r for r in rows if r.strip})
        self._up: PlannedRun | None = None
        self._settled: set[int] = set()

    def step(self, row: PlannedRun) -> Step:
        """The actions before this run."""
        up = self._up
        if up is None:
            return Step(row.run_id, {}, ACTIONS[::-1])
        changed = {
            f.name: (up.levels[f.name], row.levels[f.name])
            for f in self._factors
            if up.levels[f.name] != row.levels[f.name]
            or (f.name in self._hard and up.whole_plot != row.whole_plot)
        }
        most = max(
            (_rank(f.change) for f in self._factors if self._acts(f, changed, row)), default=0
        )
        return Step(row.run_id, changed, ACTIONS[:most][::-1])

    def completed(self, row: PlannedRun) -> None:
        """Record that the system is in the state of this run."""
        self._up = row
        self._settled.add(row.strip)

    def lost(self) -> None:
        """Record that the state is unknown: all actions are run before the next run."""
        self._up = None
        self._settled.clear()

    def _acts(self, factor: Factor, changed: Mapping[str, Any], row: PlannedRun) -> bool:
        stays = factor.name in self._strips and row.strip in self._settled
        return factor.name in changed and not (stays and factor.change in STAYS)


def sequence(factors: Sequence[Factor], rows: Sequence[PlannedRun]) -> Iterator[Step]:
    """Steps of a complete plan in which no run fails."""
    changes = Changes(factors, rows)
    for row in rows:
        yield changes.step(row)
        changes.completed(row)


def _constant(
    factors: Sequence[Factor], rows: Mapping[tuple[int, str], PlannedRun]
) -> frozenset[str]:
    """Factors of one level in each group (the first of a key); none if there are no groups."""
    levels: dict[str, dict[int, set[str]]] = {f.name: {} for f in factors}
    for (group, _), row in rows.items():
        for name, by_group in levels.items():
            by_group.setdefault(group, set()).add(row.levels[name])
    return frozenset(
        name
        for name, by_group in levels.items()
        if by_group and all(len(names) == 1 for names in by_group.values())
    )


def _rank(change: str) -> int:
    return ACTIONS.index(change) + 1 if change in ACTIONS else 0
