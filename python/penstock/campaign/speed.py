"""How fast a study's emulated disks must be, and what this host can honour of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from penstock.errors import BadInput
from penstock.host.floor import kept_floor
from penstock.profile.honour import check_honourable, too_fast_when_loaded
from penstock.profile.model import StorageProfile
from penstock.study.model import Study
from penstock.study.resolve import ResolvedRun, resolve


def profiles_of(treatments: Iterable[ResolvedRun]) -> list[StorageProfile]:
    """The profiles of all emulated disks, each at its time scale, once."""
    disks = [d for run in treatments for d in run.disks if d.emulated]
    profiles = {(d.profile_name, d.time_scale): d.profile for d in disks}
    return [StorageProfile.from_dict(profile) for profile in profiles.values()]


def what_run_says(study: Study, treatments: Iterable[dict[str, str]]) -> list[str]:
    """What `penstock run` would refuse, or warn of, for the speed of disks. Nothing is measured."""
    profiles = profiles_of(_resolved(study, treatments))
    if not profiles:
        return []
    floor = kept_floor()
    if floor is None:
        return [
            "how fast emulated disks can be on this host is not known: penstock doctor measures it"
        ]
    found = []
    for profile in profiles:
        try:
            check_honourable(profile, floor)
        except BadInput as error:
            found.append(f"penstock run refuses this: {error}")
        else:
            found.append(too_fast_when_loaded(profile, floor))
    return list(filter(None, found))


def _resolved(study: Study, treatments: Iterable[dict[str, str]]) -> Iterator[ResolvedRun]:
    for levels in treatments:
        with suppress(BadInput, KeyError):  # said when it is resolved to be run
            yield resolve(study, levels)
