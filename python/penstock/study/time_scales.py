"""Time scales of a study's disks: a number, one for each profile or level, or `auto`.

`auto` is decided at the first run, and is a number in the study from then on.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.spec.machine import PlatformFile
from penstock.spec.quantities import AUTO
from penstock.spec.source import dump
from penstock.spec.study import Study, TimeScales
from penstock.spec.template import LoneBrace, fill, names_in

#: limit of examined profiles per disk
_MOST = 4096


@dataclass(frozen=True)
class AutoScales:
    """Profiles of disks with `auto`: one scale for all of them `together`, or one for each its `own`."""

    together: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """True if no disk declares it."""
        return not (self.together or self.own)


def possible(
    profile: Any, factors: Mapping[str, Mapping[str, Any]], study_dir: str = "."
) -> Iterator[tuple[tuple[str, ...], str]]:
    """All profiles that a template can produce, each with its level names.

    `factors`: name → level → value. Empty for an invalid template.
    """
    try:
        used_factors = [f for f in names_in(str(profile)) if f in factors]
        for chosen in itertools.islice(
            itertools.product(*(factors[f].items() for f in used_factors)), _MOST
        ):
            values = {f: str(value) for f, (_, value) in zip(used_factors, chosen, strict=True)}
            yield (
                tuple(level for level, _ in chosen),
                fill(str(profile), {**values, "study_dir": study_dir}),
            )
    except (LoneBrace, KeyError):
        return


def entry(by_profile: Mapping[str, Any], levels: tuple[str, ...], profile: str) -> str | None:
    """Key of `by_profile` for a profile: one of its levels, else the profile itself."""
    return next((key for key in (*levels, profile) if key in by_profile), None)


def picked(
    platform: Mapping[str, Any], treatment: Mapping[str, str], values: Mapping[str, str]
) -> dict[str, Any]:
    """The platform with the one time scale of each disk in a treatment (factor → level), otherwise unchanged.

    `values`: values of templates.
    """
    copied = copy.deepcopy(dict(platform))
    for disk in _disks(copied):
        declared = disk.get("time_scale")
        if isinstance(declared, dict) and disk.get("profile") is not None:
            levels = tuple(treatment[f] for f in names_in(disk["profile"]) if f in treatment)
            key = entry(declared, levels, fill(disk["profile"], values))
            if key is not None:
                disk["time_scale"] = declared[key]
    return copied


def auto_scales(study: Study) -> AutoScales:
    """Profiles without a time scale in the study, in order, without duplicates."""
    together: dict[str, None] = {}
    own: dict[str, None] = {}
    for disk in _disks(study.document["platform"]):
        declared = disk.get("time_scale")
        for levels, profile in _profiles(study, disk):
            if declared == AUTO:
                together.setdefault(profile)
            elif (
                isinstance(declared, dict)
                and declared.get(entry(declared, levels, profile)) == AUTO
            ):
                own.setdefault(profile)
    return AutoScales(tuple(together), tuple(own))


def decided(study: Study, chosen: TimeScales) -> Study:
    """The study with numbers in place of `auto`; the study itself without `auto`."""
    if auto_scales(study).nothing:
        return study
    document = copy.deepcopy(study.document)
    for disk in _disks(document["platform"]):
        declared = disk.get("time_scale")
        if declared == AUTO and chosen.together is not None and disk.get("profile") is not None:
            disk["time_scale"] = _plain(chosen.together)
        if isinstance(declared, dict):
            of_key: dict[str, float] = {}
            for levels, profile in _profiles(study, disk):
                key = entry(declared, levels, profile)
                if key is not None and declared[key] == AUTO and profile in chosen.own:
                    of_key[key] = max(chosen.own[profile], of_key.get(key, 0.0))
            declared.update({key: _plain(scale) for key, scale in of_key.items()})
    return study.model_copy(
        update={
            "document": document,
            "platform": PlatformFile.model_validate(document["platform"]),
            "source_text": dump(document),
            "time_scales": chosen,
        }
    )


def _plain(scale: float) -> float | int:
    return int(scale) if scale == int(scale) else scale


def _profiles(study: Study, disk: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    if disk.get("profile") is None:
        return []
    factors = {f.name: {v.name: v.value for v in f.levels} for f in study.factors}
    return list(possible(disk["profile"], factors, str(study.base_dir)))


def _disks(platform: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for node in platform.get("nodes") or []:
        yield from node.get("disks") or []
