"""Placement of chunks in the peers' models: storage hosts by position in the list of storage hosts."""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]


class Placement:
    """Striped, local and collocated placement over `names`, the storage hosts in order. `rules` is the
    platform's `store`, `hints` those of each file. Capacity is ignored.
    """

    def __init__(
        self, rules: Json, hints: dict[str, Json], names: list[str], rng: random.Random
    ) -> None:
        self.rules, self.hints, self.names, self.random = rules, hints, names, rng
        self.groups: dict[str, int] = {}

    def place(self, file: str, size: int, client: str | None) -> list[tuple[list[int], int]]:
        """Per chunk of a file of `size` bytes: positions of its replicas, its bytes."""
        hint = self.hints.get(file, {})
        count = len(self.names)
        order = list(range(count))
        width = min(hint.get("stripe_width") or self.rules["stripe_width"] or count, count)
        kind = hint.get("placement", self.rules["placement"])
        if kind == "local" and hint.get("host", client) in self.names:
            own = self.names.index(hint.get("host", client))
            order, width = [own, *(h for h in order if h != own)], 1
        elif kind == "collocate":
            first = self.groups.setdefault(hint["group"], len(self.groups) % count)
            order, width = order[first:] + order[:first], 1
        elif self.rules["shuffle"] == "fresh":
            self.random.shuffle(order)
        copies = hint.get("replicas", self.rules["replicas"])
        chunk = hint.get("chunk_bytes", self.rules["chunk_bytes"])
        return [
            (
                [order[(number % width + j) % count] for j in range(copies)],
                min(chunk, size - start),
            )
            for number, start in enumerate(range(0, size, chunk))
        ]
