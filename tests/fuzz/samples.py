"""Where inputs begin: files of the tree that readers take."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def texts(*patterns: str) -> list[bytes]:
    """The files that these patterns name, from the root of the tree."""
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
