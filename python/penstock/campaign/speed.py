"""What a study's emulated disks are: whether this host can be as fast, and for what a profile says itself
that it is not to be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from penstock.errors import BadInput
from penstock.host.floor import kept_floor
from penstock.profile.honour import check_honourable, too_fast_when_loaded
from penstock.profile.model import StorageProfile, ruled_out
from penstock.study.model import Study
from penstock.study.resolve import ResolvedRun, resolve


def profiles_of(treatments: Iterable[ResolvedRun]) -> list[StorageProfile]:
    """The profiles of all emulated disks, each at its time scale, once."""
    disks = [d for run in treatments for d in run.disks if d.emulated]
    profiles = {(d.profile_name, d.time_scale): d.profile for d in disks}
    return [StorageProfile.from_dict(profile) for profile in profiles.values()]


def what_run_says(study: Study, treatments: Iterable[dict[str, str]]) -> list[str]:
    """What `penstock run` would refuse or warn of in the disks' profiles. Nothing is measured."""
    profiles = profiles_of(_resolved(study, treatments))
    found = ruled_out_words(profiles)
    floor = kept_floor()
    if profiles and floor is None:
        found.append(
            "how fast emulated disks can be on this host is not known: penstock doctor measures it"
        )
    if floor is None:
        return found
    for profile in profiles:
        try:
            check_honourable(profile, floor)
        except BadInput as error:
            found.append(f"penstock run refuses this: {error}")
        else:
            found.append(too_fast_when_loaded(profile, floor))
    return list(filter(None, found))


def ruled_out_words(profiles: Iterable[StorageProfile]) -> list[str]:
    """One text for each profile that says for what it is not to be used."""
    found = {p.name: ruled_out(p.to_dict()) for p in profiles}
    return [
        f"profile {name} is not to be used for {'; '.join(what)}"
        for name, what in found.items()
        if what
    ]


def _resolved(study: Study, treatments: Iterable[dict[str, str]]) -> Iterator[ResolvedRun]:
    for levels in treatments:
        with suppress(BadInput, KeyError):  # said when it is resolved to be run
            yield resolve(study, levels)
