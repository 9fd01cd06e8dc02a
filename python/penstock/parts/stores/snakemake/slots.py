"""Choice of the node for a job: a queue, or data locality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Slots:
    """Idle slots of each node; `by_data`: prefer the node with most of the input bytes.

    Else, and without known bytes, a job goes to the node with the fewest busy slots. Ties go to the first.
    """

    total: Mapping[str, int]
    by_data: bool = True
    _idle: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._idle = dict(self.total)

    @property
    def nodes(self) -> list[str]:
        """Nodes that accept jobs."""
        return list(self._idle)

    def needed(self, threads: int) -> int:
        """Slots of a job: its threads, at most those of the largest node."""
        return max(1, min(threads, max((self.total[n] for n in self._idle), default=1)))

    def take(self, threads: int, stored: Mapping[str, int]) -> str | None:
        """Node of a job whose input bytes are `stored`, by node; None while no node has enough slots."""
        slots = self.needed(threads)
        able = [node for node, idle in self._idle.items() if idle >= slots]
        if not able:
            return None
        if self.by_data and any(stored.get(node) for node in able):
            node = max(able, key=lambda n: stored.get(n, 0))
        else:
            node = min(able, key=lambda n: self.total[n] - self._idle[n])
        self._idle[node] -= slots
        return node

    def give_back(self, node: str, threads: int) -> None:
        """Return the slots of a job that ended."""
        if node in self._idle:
            self._idle[node] = min(self.total[node], self._idle[node] + self.needed(threads))

    def drop(self, node: str) -> None:
        """Exclude a node that died."""
        self._idle.pop(node, None)
