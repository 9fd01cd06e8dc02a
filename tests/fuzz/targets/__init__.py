"""What is fuzzed: one row per reader of what others write, with the errors that it may answer with.

A file for each family of readers, whose `targets` has their rows.
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
    """Every target that can be fuzzed here; the routes of the server as one, or `by_route`."""
    found = [target for family in _FAMILIES for target in family.targets()]
    return found + (routes.targets() if by_route else [routes.together()])
