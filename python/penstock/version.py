"""The version of this package."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """Installed version, read on demand because that takes a moment."""
    from importlib.metadata import version as installed

    return installed("penstock")
