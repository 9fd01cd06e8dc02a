"""Checks of a study's platform: names, profiles, and every value of its templates."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import BadInput
from penstock.platform.checks.emulation import Machines, check_emulation, networks_of
from penstock.platform.profiles import read_profile, ready_names
from penstock.spec.machine import NodeFile, PlatformFile, node_names
from penstock.spec.mistakes import expected_of, located, note_at
from penstock.spec.names import BUILT_IN, OF_STORE, listed, suggestion
from penstock.spec.quantities import AUTO, is_template, without_templates
from penstock.spec.source import Path, Source
from penstock.spec.template import filled_in, names_in
from penstock.study.references import Names, filled, template_value
from penstock.study.store import check_store
from penstock.study.time_scales import entry, possible

#: limit of treatments for which the complete platform is checked
_MOST_COMPLETE = 256
_AT: Path = ("platform",)

Profiles = dict[str, dict[str, Any]]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _nodes(document: dict[str, Any]) -> list[Any]:
    platform = document.get("platform")
    return _list(platform.get("nodes")) if isinstance(platform, dict) else []


def check_names(source: Source, document: dict[str, Any], names: Names) -> None:
    """Record names of nodes and disks in `names`, and their errors."""
    factors = {f.lower() for f in names.factors}
    entries: set[str] = set()
    platform = document.get("platform")
    names.store = isinstance(platform, dict) and platform.get("store") is not None
    if names.store and OF_STORE in factors:
        actual = f"the factor '{OF_STORE}' with a shared store, whose directory is {{{OF_STORE}}}"
        source.mistake(("factors", OF_STORE), actual, "another name")
    for i, node in enumerate(_nodes(document)):
        path: Path = (*_AT, "nodes", i)
        name = node.get("name") if isinstance(node, dict) else None
        called = [str(name)]
        if isinstance(name, str):
            _part_name(source, (*path, "name"), name, entries, "node")
            entries.add(name)
            called = node_names(name, _most(node.get("count"), names))
            for twice in sorted(set(called) & names.nodes):
                if twice != name:
                    actual = f"a second node called '{twice}'"
                    source.mistake((*path, "name"), actual, "each name once")
            names.nodes |= set(called)
            names.order += called
        _disk_names(source, path, node, called, names, factors)


def _most(count: Any, names: Names) -> Any:
    """Maximum of a count over the levels; None without one."""
    if is_template(count):
        values = [
            v for f in names.factors if f"{{{f}}}" in count for v in names.factors[f].values()
        ]
        numbers = [int(v) for v in values if str(v).strip().isdigit()]
        return min(max(numbers, default=1), 1000)
    if isinstance(count, str) and count.strip().isdigit():
        return min(int(count), 1000)
    good = isinstance(count, int) and not isinstance(count, bool) and count > 0
    return min(count, 100_000) if good else None


def _disk_names(
    source: Source, path: Path, node: Any, called: list[str], names: Names, factors: set[str]
) -> None:
    here: set[str] = set()
    for j, disk in enumerate(_list(node.get("disks")) if isinstance(node, dict) else []):
        name = disk.get("name") if isinstance(disk, dict) else None
        if not isinstance(name, str):
            continue
        at = (*path, "disks", j, "name")
        if name == OF_STORE and names.store:
            actual = f"the disk name '{name}' with a shared store, whose directory is {{{name}}}"
            source.mistake(at, actual, "another name")
        elif name in BUILT_IN or name.lower() in factors:
            what = "a factor" if name.lower() in factors else "reserved"
            source.mistake(at, f"the disk name '{name}', which is {what} too", "another name")
        else:
            _part_name(source, at, name, here, "disk of this node")
        here.add(name)
        nodes_of = names.disks.setdefault(name, [])
        nodes_of += [n for n in called if n not in nodes_of]


def _part_name(source: Source, path: Path, name: str, taken: set[str], what: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
        source.mistake(
            path, f"the name '{name}'", "letters, digits, '_' and '-' (at most 32), such as data"
        )
    elif name in taken:
        source.mistake(path, f"a second {what} called '{name}'", "each name once")


def check_platform(
    source: Source, document: dict[str, Any], names: Names, base_dir: FilePath
) -> Profiles:
    """Record every mistake of the platform in `source`; returns its profiles, by name."""
    profiles: Profiles = {}
    before = len(source.mistakes)
    for i, node in enumerate(_nodes(document)):
        for j, disk in enumerate(_list(node.get("disks")) if isinstance(node, dict) else []):
            if isinstance(disk, dict):
                at: Path = (*_AT, "nodes", i, "disks", j)
                _profile_or_directory(source, at, disk)
                _time_scales(source, at, disk, names)
    platform = document.get("platform")
    used: dict[str, None] = {}
    for path, text in _texts(platform, ()):
        is_profile = path[-1] == "profile"
        if is_profile or is_template(text):
            used_before = set(names.used)
            for value, where in filled(source, (*_AT, *path), text, names):
                if is_profile and isinstance(value, str):
                    _profile(source, where, value, base_dir, profiles)
                elif isinstance(value, dict | list):
                    _part(source, platform, path, value, where)
                elif expected := _auto_by_factor(path, value) or _refusal(platform, path, value):
                    source.mistake(where, f"'{value}'", expected)
            used.update(dict.fromkeys(f for f in names.factors if f in names_of(text)))
            names.used |= used_before
    if len(source.mistakes) == before and isinstance(platform, dict):
        _wholes(source, platform, names, list(used))
    return profiles


def _auto_by_factor(path: Path, value: str) -> str:
    """Expected value in place of `auto` as a factor's level: its value belongs to no single treatment."""
    if "time_scale" in path[-2:] and value.strip() == AUTO:
        return "a number above 0, such as 4; auto is a value of time_scale itself"
    return ""


def _time_scales(source: Source, path: Path, disk: dict[str, Any], names: Names) -> None:
    """Errors of time scales per profile of a disk."""
    scales = disk.get("time_scale")
    if not isinstance(scales, dict) or disk.get("profile") is None:
        return
    of_disk = list(possible(disk["profile"], names.factors))
    if not of_disk:
        return  # reported with the profile
    keys = list(dict.fromkeys(key for levels, profile in of_disk for key in (*levels, profile)))
    for key in scales:
        if key not in keys:
            actual = f"'{key}', which is no profile of this disk"
            expected = f"{listed(keys)}{suggestion(key, keys)}"
            source.mistake((*path, "time_scale", key), actual, expected, key=True)
    for levels, profile in of_disk:
        if entry(scales, levels, profile) is None:
            source.mistake(
                (*path, "time_scale"),
                f"no time_scale of '{profile}'",
                "a number or auto for each profile that the disk can have",
            )


def names_of(text: str) -> list[str]:
    """Names in a text, none if a brace is unpaired."""
    try:
        return names_in(text)
    except ValueError:
        return []


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*path, key))
    elif isinstance(value, str) and path and path[-1] != "name":
        yield path, value


def _refusal(platform: Any, path: Path, value: str) -> str:
    """Expected form of the invalid `value` at `path` of the platform; empty if valid."""
    for _, detail in _refusals(platform, path, value):
        return expected_of(detail).removesuffix(", or a template")
    return ""


def _part(source: Source, platform: Any, path: Path, value: Any, where: Path) -> None:
    """Record mistakes of a mapping or list level, for `path` of the platform, at `where` of the file."""
    for at, detail in _refusals(platform, path, value):
        note_at(source, (*where, *at[len(path) :]), at, detail, PlatformFile, "docs/study-file.md")


def _refusals(platform: Any, path: Path, value: Any) -> list[tuple[Path, ErrorDetails]]:
    """Errors of Pydantic at or below `path` for the platform with `value` there."""
    changed = copy.deepcopy(platform)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    try:
        with without_templates():
            PlatformFile.model_validate(changed)
    except ValidationError as error:
        details = [(located(changed, detail), detail) for detail in error.errors()]
        return [(at, detail) for at, detail in details if at[: len(path)] == path]
    return []


def _wholes(source: Source, platform: dict[str, Any], names: Names, factors: list[str]) -> None:
    """Check the platform of every distinct treatment."""
    levels = [[(f, v) for v in names.factors[f].values()] for f in factors]
    for chosen in itertools.islice(itertools.product(*levels), _MOST_COMPLETE):
        values = {f: template_value(v) for f, v in chosen}
        try:
            complete = filled_in(platform, {**values, "study_dir": "."})
            with without_templates():
                file = PlatformFile.model_validate(complete)
        except (ValidationError, KeyError, ValueError):
            return  # reported at its own position
        before = len(source.mistakes)
        check_emulation(
            source,
            [_machines(i, node) for i, node in enumerate(file.nodes)],
            networks_of(file.network, file.networks, _AT),
            file.schedule,
            (*_AT, "schedule"),
        )
        if file.store is not None:
            check_store(source, (*_AT, "store"), file)
        if len(source.mistakes) > before:
            return


def _machines(index: int, node: NodeFile) -> Machines:
    names = tuple(node_names(node.name, node.count))
    return Machines((*_AT, "nodes", index), names, node)


def _profile_or_directory(source: Source, path: Path, disk: dict[str, Any]) -> None:
    if "directory" not in disk:
        if not {"profile", "limits", "features", "backend"} & set(disk):
            here = ".".join(map(str, path))
            expected = "the key profile (storage to emulate) or directory (storage to use without emulation)"
            source.mistake(path, f"no 'profile' in {here}", expected, key=True)
        return
    for key in ("profile", "time_scale", "mount"):
        if key in disk and not (key == "mount" and {"limits", "features"} & set(disk)):
            source.mistake(
                (*path, key),
                f"both directory and {key}",
                "a disk with a profile, which is emulated, or a directory, which is used without emulation",
                key=True,
            )


def _profile(source: Source, path: Path, name: str, base_dir: FilePath, profiles: Profiles) -> None:
    if name in profiles:
        return
    try:
        profiles[name] = read_profile(name, base_dir)
    except BadInput as error:
        ready = ready_names()
        expectation = f"a ready profile ({listed(ready)}) or a JSON file next to the study"
        actual = f"the profile '{name}', which does not exist"
        if not str(error).startswith("no profile"):
            actual = f"the profile '{name}' ({error})"
        source.mistake(path, actual, f"{expectation}{suggestion(name, ready)}")
