"""Time scales of a study's emulated disks, their feasibility on this host, and uses that a profile
excludes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.emulate.disks.floor import stored_floor
from penstock.errors import BadInput
from penstock.profile.honour import (
    HostLimits,
    check_honourable,
    nearest_honest_time_scale,
    too_fast_when_loaded,
)
from penstock.profile.model import StorageProfile, ruled_out
from penstock.spec.study import Study, TimeScales
from penstock.study.disk_speeds import DiskSpeeds, disk_speeds
from penstock.study.resolve import ResolvedRun, profile_of
from penstock.study.time_scales import AutoScales, auto_scales, decided


def _nearest(study: Study, auto: AutoScales, floor: HostLimits) -> dict[str, float]:
    """Nearest sustainable time scale of each profile of these disks, relative to its current one."""
    scales = {}
    for name in (*auto.together, *auto.own):
        profile = StorageProfile.from_dict(profile_of(study, name))
        scales[name] = nearest_honest_time_scale(profile, floor) / profile.time_scale
    return scales


def with_time_scales(
    study: Study, frozen: Mapping[str, Any] | None, floor: Callable[[], HostLimits]
) -> tuple[Study, list[str]]:
    """The study with a number for each `auto`, and messages: the nearest sustainable time scale of each
    profile with its own `auto`; the largest of those with a common one, as compared disks must share it.

    Numbers `frozen` with a campaign stay, whatever this host can do; `floor` is called only for missing ones.
    """
    auto = auto_scales(study)
    if auto.nothing:
        return study, []
    chosen, why = TimeScales.model_validate(frozen or {}), ""
    lacks_together = bool(auto.together) and chosen.together is None
    if lacks_together or set(auto.own) - set(chosen.own):
        nearest = _nearest(study, auto, floor())
        if lacks_together:
            together = max(nearest[name] for name in auto.together)
            chosen = chosen.model_copy(update={"together": together})
            needs = [f"{name} {nearest[name]:g}" for name in auto.together]
            why = f" (nearest sustainable: {', '.join(needs)})"
        own = {name: nearest[name] for name in auto.own}
        chosen = chosen.model_copy(update={"own": {**own, **chosen.own}})
    chosen_text = [f"{chosen.together:g} for all its disks{why}"] if auto.together else []
    chosen_text += [f"{chosen.own[name]:g} for {name}" for name in auto.own]
    origin = ", as when the study was begun" if frozen else ""
    return decided(study, chosen), [f"time_scale auto is {', '.join(chosen_text)}{origin}"]


def as_planned(study: Study) -> tuple[Study, list[str]]:
    """As `with_time_scales`, by the stored floor; without one `auto` is left open. Measures nothing."""
    floor = stored_floor()
    if auto_scales(study).nothing:
        return study, []
    if floor is None:
        return study, [
            "time_scale auto is decided by penstock run: how fast emulated disks can be on this host is not "
            "known (penstock doctor measures it)"
        ]
    return with_time_scales(study, None, lambda: floor)


def speeds_of(study: Study, treatments: Iterable[ResolvedRun]) -> DiskSpeeds:
    """Speeds of the disks of treatments."""
    rows = [
        (
            run.treatment,
            {
                d.disk_id: {"profile": d.profile_name, "time_scale": d.time_scale}
                for d in run.disks
                if d.emulated
            },
        )
        for run in treatments
    ]
    return disk_speeds(study.document, rows)


def profiles_of(treatments: Iterable[ResolvedRun]) -> list[StorageProfile]:
    """Profiles of all emulated disks, each at its time scale, once."""
    disks = [d for run in treatments for d in run.disks if d.emulated]
    profiles = {(d.profile_name, d.time_scale): d.profile for d in disks}
    return [StorageProfile.from_dict(profile) for profile in profiles.values()]


def what_run_says(treatments: Iterable[ResolvedRun]) -> list[str]:
    """Refusals and warnings of `penstock run` about the disks' profiles. Measures nothing."""
    profiles = profiles_of(treatments)
    warnings = ruled_out_text(profiles)
    floor = stored_floor()
    if profiles and floor is None:
        warnings.append(
            "how fast emulated disks can be on this host is not known: penstock doctor measures it"
        )
    if floor is None:
        return warnings
    for profile in profiles:
        try:
            check_honourable(profile, floor)
        except BadInput as error:
            warnings.append(f"penstock run refuses this: {error}")
        else:
            warnings.append(too_fast_when_loaded(profile, floor) if floor.quiet else "")
    return list(filter(None, warnings))


def ruled_out_text(profiles: Iterable[StorageProfile]) -> list[str]:
    """A message for each profile that excludes some uses."""
    by_name = {p.name: ruled_out(p.to_dict()) for p in profiles}
    return [
        f"profile {name} is not to be used for {'; '.join(what)}"
        for name, what in by_name.items()
        if what
    ]
