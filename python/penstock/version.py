"""The version of this package."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """As it was installed; reading it takes a moment, so it is read when it is asked for."""
    from importlib.metadata import version as installed

    return installed("penstock")
