"""Fuzz targets: one row per reader of external input, with its documented errors.

Each module has a family of readers; its `targets` returns their rows.
"""

from __future__ import annotations

from tests.fuzz.drive import Target
from tests.fuzz.targets import (
    archives,
    ceph,
    checks,
    commands,
    files,
    points,
    reports,
    routes,
    spools,
    traces,
    words,
)

_FAMILIES = (
    traces,
    spools,
    reports,
    files,
    checks,
    words,
    points,
    ceph,
    archives,
    commands,
)


def all_targets(*, by_route: bool = False) -> list[Target]:
    """Every target that this host can fuzz; the routes of the server as one, or `by_route`."""
    readers = [target for family in _FAMILIES for target in family.targets()]
    return readers + (routes.targets() if by_route else [routes.all_routes()])
