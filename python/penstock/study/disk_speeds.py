"""Speeds of a study's disks, by the level that selects their profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.spec.template import LoneBrace, names_in
from penstock.study.references import level_values
from penstock.text import listed, speed

#: factor → level, and disk → its description in a manifest
Row = tuple[Mapping[str, str], Mapping[str, Any]]
#: caveat of a comparison of disks at different speeds
NO_DIFFERENCE_OF_DEVICES = "their difference is not that of the devices"
#: limit of names per speed
_MOST_NAMED = 4


@dataclass(frozen=True)
class DiskSpeeds:
    """`by_level`: factor → level → time scales of the disks whose profile the factor selects; `runs`: disk,
    profile and time scale of all emulated disks of each kind of run; `everywhere`: every run has one."""

    by_level: dict[str, dict[str, set[float]]] = field(default_factory=dict)
    runs: list[tuple[tuple[str, str, float], ...]] = field(default_factory=list)
    everywhere: bool = True

    def label(self, factor: str, level: str) -> float:
        """Time scale for a level's label; 1 if it selects no profile or one of several scales, or if all
        disks share one, which is stated once."""
        if self.shared != 1:
            return 1.0
        scales = self.by_level.get(factor, {}).get(level, set())
        return next(iter(scales)) if len(scales) == 1 else 1.0

    @property
    def scales(self) -> list[float]:
        """Distinct time scales, fastest first."""
        return sorted({scale for run in self.runs for _, _, scale in run})

    @property
    def shared(self) -> float:
        """Common time scale of the disks of all runs; 1 if they differ."""
        return self.scales[0] if self.everywhere and len(self.scales) == 1 else 1.0

    @property
    def several(self) -> bool:
        """True if a run has more than one emulated disk."""
        return any(len(run) > 1 for run in self.runs)

    @property
    def common(self) -> str:
        """Text of the common speed for axes, tables and answers: `disks at ¼ speed`, or empty."""
        if self.shared == 1:
            return ""
        disks = {disk for run in self.runs for disk in run}
        return f"disk{'s' * (len(disks) > 1)} at {speed(self.shared)}"

    @property
    def stated(self) -> str:
        """Text of all speeds: `disks emulated at ¼ speed`; empty if all run at full speed."""
        if self.scales in ([], [1.0]):
            return ""
        return f"disks emulated at {listed([speed(s) for s in self.scales])}"

    def unequal(self) -> list[str]:
        """One text for each factor whose levels have different time scales, and for different disks of one
        run."""
        sentences = []
        for factor, levels in self.by_level.items():
            groups = _by_speed([(level, frozenset(scales)) for level, scales in levels.items()])
            if len(groups) > 1:
                sentences.append(_unequal(f"the levels of {factor}", groups))
        for run in self.runs:
            groups = _by_speed(
                [(f"{disk}: {name}", frozenset([scale])) for disk, name, scale in run]
            )
            if len(groups) > 1:
                sentences.append(_unequal("the disks of a run", groups))
                break
        return sentences


def _by_speed(named: list[tuple[str, frozenset[float]]]) -> list[str]:
    """Names grouped by time scale: `network-volume and sata-ssd at ¼ speed`."""
    groups: dict[frozenset[float], list[str]] = {}
    for name, scales in named:
        groups.setdefault(scales, []).append(name)
    phrases = []
    for scales, names in groups.items():
        more = len(names) - _MOST_NAMED
        few = [*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names
        phrases.append(f"{listed(few)} at {listed([speed(s) for s in sorted(scales)])}")
    return phrases


def _unequal(what: str, groups: list[str]) -> str:
    return f"{what} do not share one time scale ({', '.join(groups)}): {NO_DIFFERENCE_OF_DEVICES}"


def disk_speeds(document: Mapping[str, Any], rows: Iterable[Row]) -> DiskSpeeds:
    """Speeds of runs, each with its levels and its disks; `document` is the study as plain values."""
    declared = document.get("factors")
    factors = {
        str(name): [level for _, level, _ in level_values(body.get("levels"))]
        for name, body in (declared.items() if isinstance(declared, Mapping) else ())
        if isinstance(body, Mapping)
    }
    says = _factors_of_profiles(document)
    by_level: dict[str, dict[str, set[float]]] = {}
    runs: dict[tuple[tuple[str, str, float], ...], None] = {}
    for levels, disks in rows:
        run = []
        for disk_id, disk in disks.items():
            scale = scale_of(disk)
            if scale is None:
                continue
            run.append((str(disk_id), str(disk.get("profile")), scale))
            for factor in _of(disk_id, says):
                if factor in levels:
                    of_factor = by_level.setdefault(
                        factor, {level: set() for level in factors.get(factor, [])}
                    )
                    of_factor.setdefault(str(levels[factor]), set()).add(scale)
        runs.setdefault(tuple(run))
    met = {f: {v: s for v, s in levels.items() if s} for f, levels in by_level.items()}
    return DiskSpeeds(met, [run for run in runs if run], () not in runs)


def scale_of(disk: Any) -> float | None:
    """Time scale of a disk in a manifest; None for a plain directory."""
    scale = disk.get("time_scale") if isinstance(disk, Mapping) else None
    return float(scale) if isinstance(scale, int | float) and scale > 0 else None


def _of(disk_id: str, says: Mapping[tuple[str, str], set[str]]) -> set[str]:
    """Factors that select the profile of `node.disk`; identical nodes are NAME-0, NAME-1, …"""
    node, dot, disk = str(disk_id).rpartition(".")
    if not dot:
        return {f for (_, name), factors in says.items() if name == disk for f in factors}
    return says.get((node, disk)) or says.get((node.rpartition("-")[0], disk)) or set()


def _factors_of_profiles(document: Mapping[str, Any]) -> dict[tuple[str, str], set[str]]:
    platform = document.get("platform")
    by_disk: dict[tuple[str, str], set[str]] = {}
    nodes = platform.get("nodes") if isinstance(platform, Mapping) else None
    for node in nodes if isinstance(nodes, list) else []:
        disks = node.get("disks") if isinstance(node, Mapping) else None
        for disk in disks if isinstance(disks, list) else []:
            if not isinstance(disk, Mapping):
                continue
            try:
                named = set(names_in(str(disk.get("profile") or "")))
            except LoneBrace:
                continue
            by_disk[str(node.get("name")), str(disk.get("name"))] = named
    return by_disk
