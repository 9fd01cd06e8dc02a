"""Places of a study's runs: one of each kind, started at first use."""

from __future__ import annotations

import contextlib

from penstock.campaign.places.stage import Site, Stage
from penstock.errors import PenstockError
from penstock.plugins import RUN_PLACES
from penstock.study.resolve import ResolvedRun


class Stages:
    """The stages of one study."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._up: dict[str, Stage] = {}

    def of(self, resolved: ResolvedRun) -> Stage:
        """The stage for a run of this kind."""
        kind = _kind(resolved)
        if kind not in self._up:
            self._up[kind] = RUN_PLACES.load(kind)(self._site)
        return self._up[kind]

    def take_down(self, resolved: ResolvedRun) -> None:
        """Stop the stage for runs of this kind, so that the next one starts a new one."""
        kind = _kind(resolved)
        if kind in self._up:
            self._up.pop(kind).stop()

    def stop(self) -> None:
        """Stop all stages."""
        with contextlib.ExitStack() as stack:
            while self._up:
                stack.callback(self._up.popitem()[1].stop)


def _kind(resolved: ResolvedRun) -> str:
    """First place that supports a run, those of other packages before ours."""
    names = [*(name for name in RUN_PLACES if name not in RUN_PLACES.own), *RUN_PLACES.own]
    for name in names:
        if RUN_PLACES.load(name).takes(resolved):
            return name
    raise PenstockError(f"no place takes the run; expected one of {', '.join(names)}")
