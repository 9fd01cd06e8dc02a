"""A store of toys: a directory on the first storage node's disk, shared; every hint is refused."""

from __future__ import annotations

from penstock.parts.stores.engines.directory import Directory


class ToyEngine(Directory):
    """A directory, under another name."""

    name = "toy"
