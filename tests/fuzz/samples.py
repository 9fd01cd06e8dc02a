"""Samples for inputs: files of the repository that the targets read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def texts(*patterns: str) -> list[bytes]:
    """Contents of the files that match the patterns, relative to the root of the repository."""
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
