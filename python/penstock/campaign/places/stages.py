"""The places in which runs of a study take place: one of each kind, put up when first needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from penstock.campaign.places.guest_stage import GuestStage
from penstock.campaign.places.host_stage import HostStage
from penstock.campaign.places.nodes_stage import NodesStage
from penstock.campaign.places.stage import Stage
from penstock.host.journal.journal import Journal
from penstock.study.resolve import ResolvedRun


class Stages:
    """The stages of one study. `home`, `mounts`: our directories of the daemons, and of mount points."""

    def __init__(self, journal: Journal, home: Path, mounts: Path, study_dir: Path) -> None:
        self._up: dict[str, Stage] = {}
        self._makers: dict[str, Callable[[], Stage]] = {
            "guest": lambda: GuestStage(journal),
            "nodes": lambda: NodesStage(journal, study_dir),
            "host": lambda: HostStage(journal, home, mounts),
        }

    def of(self, resolved: ResolvedRun) -> Stage:
        """Where a run of this kind takes place."""
        kind = _kind(resolved)
        if kind not in self._up:
            self._up[kind] = self._makers[kind]()
        return self._up[kind]

    def take_down(self, resolved: ResolvedRun) -> None:
        """What is up for runs of this kind, so that the next one finds it new."""
        kind = _kind(resolved)
        if kind in self._up:
            self._up.pop(kind).stop()

    def stop(self) -> None:
        """Takes down all of them."""
        with contextlib.ExitStack() as stack:
            while self._up:
                stack.callback(self._up.popitem()[1].stop)


def _kind(resolved: ResolvedRun) -> str:
    if resolved.guest is not None:
        return "guest"
    return "nodes" if resolved.cluster is not None else "host"
