"""Checks of a platform beyond its schema. They read plain values and tolerate invalid ones, so that all
mistakes are reported at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from penstock.errors import BadInput
from penstock.platform.checks.emulation import Machines, Placed, check_emulation, networks_of
from penstock.platform.checks.power import check_currencies, check_power
from penstock.platform.emulation import MAIN
from penstock.platform.file import PlatformFile
from penstock.platform.lower import kind_of_storage, merge
from penstock.platform.profiles import read_profile, ready_names
from penstock.platform.stores import STORES, ready_store
from penstock.platform.uncertain import check_assumed, check_estimates
from penstock.profile.load import load_profile
from penstock.profile.model import StorageProfile
from penstock.spec.machine import MachineFile, NamedNetworkFile
from penstock.spec.names import listed, suggestion
from penstock.spec.source import Path, Source

Profiles = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _ProfilesInUse:
    """Storage profiles that a platform refers to, by name.

    `base_dir` has their files; those of `loaded` are not read again.
    """

    base_dir: FilePath
    loaded: Profiles
    values: Profiles = field(default_factory=dict)

    def add(self, source: Source, path: Path, name: str) -> None:
        """Read the profile `name`, to which the value at `path` refers, or note the mistake."""
        if name in self.values:
            return
        if name in self.loaded:
            self.values[name] = self.loaded[name]
            return
        ready = ready_names()
        choices = f"a ready profile ({listed(ready)}) or a JSON file next to the platform"
        try:
            values = read_profile(name, self.base_dir)
            nan = _first_not_finite(values, "")
            if nan:
                source.mistake(path, f"the profile '{name}', whose {nan}", "a finite number")
                return
            load_profile(name, self.base_dir)
        except BadInput as error:
            if error.mistakes:
                first = error.mistakes[0]
                actual = f"the profile '{name}', whose line {first.line} has {first.found}"
                source.mistake(path, actual, first.expected)
                return
            missing = str(error).startswith("no profile")
            actual = f"the profile '{name}'" + (
                ", which does not exist" if missing else f" ({error})"
            )
            source.mistake(path, actual, f"{choices}{suggestion(name, ready)}")
            return
        self.values[name] = values


def check(
    source: Source,
    document: dict[str, Any],
    base_dir: FilePath,
    loaded: Profiles,
    *,
    written: bool = True,
    predicted: bool | None = True,
) -> Profiles:
    """Add every mistake to `source`; returns the storage profiles that the platform refers to, by name.

    `document` is the source's value with estimates replaced by their values; `loaded` are profiles that need
    not be read again. With `written` false, values were sampled or varied individually, and a host's active
    power may be below its idle power (which then counts). Values for predictions only (roles, bandwidths) may
    be missing if the platform is not `predicted`; with None, if no host has a role.
    """
    check_estimates(source)
    _finite(source, document, ())
    profiles = _ProfilesInUse(base_dir, loaded)
    needed = predicted is not False
    _groups(source, document, profiles, written=written, needed=needed)
    if has_roles(document) if predicted is None else predicted:
        _roles(source, document)
        _network(source, document)
    for key in ("networks", "schedule"):
        _plain_texts(source, (key,), document.get(key))
    for i, event in enumerate(_list(document.get("schedule"))):
        if isinstance(_mapping(event).get("profile"), str):
            at = ("schedule", i, "profile")
            profiles.add(source, at, event["profile"])
    _store(source, document)
    for path in _times(document):
        _distribution(source, path, _get(document, path))
    prices: list[tuple[Path, Any]] = [(("price",), document.get("price"))]
    prices += [((*path, "price"), here.get("price")) for path, _, here in _hosts(document)]
    check_currencies(source, prices)
    check_assumed(source, document)
    return profiles.values


def has_roles(document: dict[str, Any]) -> bool:
    """True if any host has a role in a prediction."""
    return any(_list(here.get("roles")) for _, _, here in _hosts(document))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _finite(source: Source, value: Any, path: Path) -> None:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            _finite(source, inner, (*path, key))
    elif isinstance(value, float) and not math.isfinite(value):
        source.mistake(path, str(value), "a finite number")


def _hosts(document: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """(path, group, values) of each group and of each of its `except` entries."""
    for i, group in enumerate(_list(document.get("hosts"))):
        if isinstance(group, dict):
            yield ("hosts", i), group, group
            for key, change in _mapping(group.get("except")).items():
                if isinstance(change, dict):
                    yield ("hosts", i, "except", key), group, change


def _count(group: dict[str, Any]) -> int:
    count = group.get("count")
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def _has(group: dict[str, Any], role: str) -> bool:
    return role in _list(group.get("roles"))


def _groups(
    source: Source,
    document: dict[str, Any],
    profiles: _ProfilesInUse,
    *,
    written: bool,
    needed: bool,
) -> None:
    taken: set[str] = set()
    broken = False
    for path, group, here in _hosts(document):
        if here is group:
            name = group.get("group")
            if isinstance(name, str) and name in taken:
                source.mistake(
                    (*path, "group"), f"a second group called '{name}'", "each name once"
                )
            taken.add(str(name))
            _twice(source, (*path, "roles"), _list(group.get("roles")), "role")
            _excepted(source, path, group)
            _racks(source, path, group)
        merged = group if here is group else _mapping(merge(group, here))
        _disks(source, path, here, profiles)
        for key, value in _of_machine(here).items():
            _plain_texts(source, (*path, key), value)
        if here is group or not broken:
            before = len(source.mistakes)
            _storage(source, path, group, here, merged, profiles, needed)
            broken = len(source.mistakes) > before
        _manager(source, path, group, here, needed)
        power = merge(_mapping(document.get("power")), _mapping(merged.get("power")))
        if isinstance(here.get("power"), dict):
            check_power(source, (*path, "power"), _mapping(power), written=written)
    if isinstance(document.get("power"), dict):
        check_power(source, ("power",), document["power"], written=written)


def _twice(source: Source, path: Path, names: list[Any], what: str) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            source.mistake((*path, i), f"the {what} '{name}' a second time", "each once")


def _excepted(source: Source, path: Path, group: dict[str, Any]) -> None:
    count = _count(group)
    entries: dict[int, str] = {}
    for key in _mapping(group.get("except")):
        at = (*path, "except", key)
        expected = f"the number of a host from 0 to {max(0, count - 1)}, or a range such as 0-3"
        if re.fullmatch(r"\d{1,6}(-\d{1,6})?", key) is None:
            source.mistake(at, f"'{key}'", expected, key=True)
            continue
        first, last = int(key.split("-")[0]), int(key.split("-")[-1])
        if count and not first <= last < count:
            source.mistake(at, f"the host {key} of {count}", expected, key=True)
            continue
        twice = next((i for i in range(first, last + 1) if i in entries), None)
        if twice is not None:
            actual = f"the host {twice}, which the entry '{entries[twice]}' already includes"
            source.mistake(at, actual, "each host in one entry", key=True)
        entries.update(dict.fromkeys(range(first, last + 1), key))


def _racks(source: Source, path: Path, group: dict[str, Any]) -> None:
    racks = group.get("rack")
    if isinstance(racks, list) and _count(group) and len(racks) > _count(group):
        actual = f"{len(racks)} racks for {_count(group)} hosts"
        source.mistake((*path, "rack"), actual, "at most one rack for each host")


def _plain_texts(source: Source, path: Path, value: Any) -> None:
    """Report templates: a platform has no factors for them."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _plain_texts(source, (*path, key), inner)
    elif isinstance(value, str) and "{" in value:
        source.mistake(path, f"the template '{value}'", "a value; a platform has no factors")


def _of_machine(here: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in here.items() if k in MachineFile.model_fields}


def _disks(
    source: Source,
    path: Path,
    here: dict[str, Any],
    profiles: _ProfilesInUse,
) -> None:
    names: set[str] = set()
    for j, disk in enumerate(_list(here.get("disks"))):
        if not isinstance(disk, dict):
            continue
        at = (*path, "disks", j)
        name = disk.get("name")
        if isinstance(name, str) and name in names:
            source.mistake((*at, "name"), f"a second disk called '{name}'", "each name once")
        names.add(str(name))
        emulated = {"profile", "limits", "features", "backend"} & set(disk)
        if "profile" in disk if "directory" in disk else not emulated:
            actual = (
                "both directory and profile"
                if "profile" in disk
                else f"no 'profile' in disk '{name}'"
            )
            source.mistake(at, actual, "a profile, or the directory of a host", key=True)
        if isinstance(disk.get("profile"), str):
            profiles.add(source, (*at, "profile"), disk["profile"])


def _first_not_finite(value: Any, where: str) -> str:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            fault = _first_not_finite(inner, f"{where}.{key}" if where else str(key))
            if fault:
                return fault
    elif isinstance(value, float) and not math.isfinite(value):
        return f"{where} is {value}"
    return ""


def _storage(
    source: Source,
    path: Path,
    group: dict[str, Any],
    here: dict[str, Any],
    merged: dict[str, Any],
    profiles: _ProfilesInUse,
    needed: bool,
) -> None:
    at = (*path, "storage")
    declared = here.get("storage")
    if declared is not None and not _has(group, "storage"):
        source.mistake(
            at, "storage on hosts without that role", "storage among their roles", key=True
        )
        return
    if not _has(group, "storage"):
        return
    storage = _mapping(merged.get("storage"))
    disks = {str(d.get("name")): d for d in _list(merged.get("disks")) if isinstance(d, dict)}
    kinds: list[str] = [k for k in ("profile", "disk") if k in storage]
    if {"read", "write"} & set(storage):
        kinds.append("read and write")
    if here is not group and not {"storage", "disks", "memory"} & set(here):
        return
    if not kinds:
        if needed and not any("profile" in d for d in disks.values()):
            source.mistake(
                at if declared is not None else path,
                f"no storage in group '{group.get('group')}', whose role it is",
                "storage: {read: …, write: …}, {profile: …} or {disk: …}, or a disk with a profile",
                key=True,
            )
    elif len(kinds) > 1:
        source.mistake(
            at, f"both {listed(kinds).replace(' or ', ' and ')}", "one of them", key=True
        )
    for one, other in (("read", "write"), ("write", "read")):
        if one in storage and other not in storage:
            source.mistake(
                at, f"{one} without {other}", f"the service of {other} as well", key=True
            )
    if "servers" in storage and kinds and kinds[0] != "read and write":
        source.mistake(
            (*at, "servers"), "servers with a profile", "the profile's own servers", key=True
        )
    if "time_scale" in storage and "profile" not in storage:
        expected = "time_scale at the disk" if kinds == ["disk"] else "a profile, or no time_scale"
        source.mistake((*at, "time_scale"), "time_scale without a profile", expected, key=True)
    if isinstance(storage.get("profile"), str) and "profile" in _mapping(declared):
        profiles.add(source, (*at, "profile"), storage["profile"])
    elif isinstance(storage.get("profile"), str):
        profiles.add(source, at, storage["profile"])
    _on_disk(source, at, storage, disks, merged)


def _on_disk(
    source: Source, at: Path, storage: dict[str, Any], disks: dict[Any, Any], merged: dict[str, Any]
) -> None:
    name = storage.get("disk")
    disk = _mapping(disks.get(str(name)))
    if isinstance(name, str) and "profile" not in disk:
        with_profile = [str(n) for n, d in disks.items() if "profile" in d]
        expected = f"one of its disks with a profile: {listed(with_profile) or 'it has none'}"
        source.mistake(
            (*at, "disk"), f"the disk '{name}'", expected + suggestion(name, with_profile)
        )
    if name is None and not kind_of_storage(storage):
        disk = _mapping(next((d for d in disks.values() if "profile" in d), None))
    capacity = storage.get("capacity")
    if isinstance(capacity, str):
        share = capacity.rstrip().endswith("%")
        if capacity == "disk" and "size" not in disk:
            source.mistake((*at, "capacity"), "'disk'", "storage on a disk that has a size")
        elif (capacity == "memory" or (share and "size" not in disk)) and "memory" not in merged:
            source.mistake((*at, "capacity"), f"'{capacity}'", "a group that has memory, or a size")


def _manager(
    source: Source, path: Path, group: dict[str, Any], here: dict[str, Any], needed: bool
) -> None:
    if "manager" in here and not _has(group, "manager"):
        source.mistake(
            (*path, "manager"),
            "a manager on hosts without that role",
            "manager among their roles",
            key=True,
        )
    if needed and here is group and _has(group, "manager") and "manager" not in here:
        actual = f"no manager in group '{group.get('group')}', whose role it is"
        source.mistake(path, actual, "manager: {service: {overhead: 0.5ms}}", key=True)


def _roles(source: Source, document: dict[str, Any]) -> None:
    groups = [g for g in _list(document.get("hosts")) if isinstance(g, dict)]
    if not groups:
        return
    for role, what in (("client", "no task could run"), ("storage", "no data could be stored")):
        if not any(_has(g, role) for g in groups):
            source.mistake(
                ("hosts",),
                f"no host with the role {role}; {what}",
                f"{role} among a group's roles",
                key=True,
            )
    managers = sum(_count(g) for g in groups if _has(g, "manager"))
    if (
        managers == 0
        and _stored(document, "allocation") == "manager"
        and all("roles" in g for g in groups)
    ):
        source.mistake(
            ("hosts",),
            "no host with the role manager, which this store needs",
            "manager among a group's roles, or store: {allocation: none}",
            key=True,
        )


def _network(source: Source, document: dict[str, Any]) -> None:
    network = document.get("network", {})
    if not isinstance(network, dict):
        return
    lacking: dict[str, list[str]] = {}
    for _, group, here in _hosts(document):
        if here is not group:
            continue
        link = _mapping(merge(network, _mapping(group.get("network"))))
        if "bandwidth" not in link and not {"in", "out"} <= set(link):
            lacking.setdefault("bandwidth", []).append(str(group.get("group")))
        if "loopback" not in link:
            lacking.setdefault("loopback", []).append(str(group.get("group")))
    for key, groups in lacking.items():
        several = f"group{'s' * (len(groups) > 1)} {listed(groups).replace(' or ', ' and ')}"
        example = "1 Gbit/s" if key == "bandwidth" else "2 GB/s"
        expected = f"{key} here or in the group's network, such as {example}"
        source.mistake(("network",), f"no {key} for the {several}", expected, key=True)


def _stored(document: dict[str, Any], key: str) -> Any:
    store = _mapping(document.get("store"))
    like, engine = (v if isinstance(v, str) else None for v in map(store.get, ("like", "engine")))
    if like is not None and like not in STORES:  # reported with the store
        return store.get(key)
    return store.get(key, ready_store(like, engine).get(key))


def _store(source: Source, document: dict[str, Any]) -> None:
    store = _mapping(document.get("store"))
    like = store.get("like")
    if isinstance(like, str) and like not in STORES:
        names = list(STORES)
        source.mistake(
            ("store", "like"),
            f"the unknown store '{like}'",
            listed(names) + suggestion(like, names),
        )
        return
    groups = [g for g in _list(document.get("hosts")) if isinstance(g, dict)]
    hosts = sum(_count(g) for g in groups if _has(g, "storage"))
    if not hosts:
        return
    for key, what in (("stripe", "a stripe of {}"), ("replicas", "{} replicas")):
        number = _stored(document, key)
        if isinstance(number, int) and not isinstance(number, bool) and number > hosts:
            source.mistake(
                ("store", key) if key in store else ("store", "like"),
                f"{what.format(number)} on {hosts} storage host{'s' * (hosts != 1)}",
                f"at most {hosts}, or more storage hosts",
            )


#: keys whose value may be a distribution
_TIMES = ("overhead", "stagger")


def _times(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _TIMES and isinstance(inner, dict) and path[:1] != ("assumed",):
                yield (*path, key)
            else:
                yield from _times(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _times(inner, (*path, i))


def _distribution(source: Source, path: Path, value: dict[str, Any]) -> None:
    """Report an invalid distribution, as detected by the sampling code through a profile."""
    if _first_not_finite(value, ""):
        return  # already reported
    one = {"sequential": {"overhead": {"kind": "constant", "value_s": 0}}}
    one["random"] = one["sequential"]
    profile = {
        "schema": "penstock/storage-profile/1",
        "name": "x",
        "servers": 1,
        "read": {**one, "sequential": {"overhead": value}},
        "write": one,
    }
    try:
        StorageProfile.from_json(json.dumps(profile), "")
    except BadInput as error:
        first = error.mistakes[0]
        actual = re.sub(r"\bread\.sequential\.overhead[.:]?\s?", "", first.found)
        actual = re.sub(r"unknown variant `(\w*)`", r"the unknown kind '\1'", actual)
        source.mistake(path, actual, first.expected)


def check_nodes(source: Source, file: PlatformFile) -> None:
    """Add mistakes of the hosts as nodes to be started, in a document with a valid schema."""
    machines = []
    for i, group in enumerate(file.hosts):
        names = tuple(f"{group.group}-{k}" for k in range(group.count))
        machines.append(Machines(("hosts", i), names, group))
        for key, change in group.except_.items():
            machines.append(Machines(("hosts", i, "except", key), (), change))
    options = {
        k: getattr(file.network, k)
        for k in ("subnet", "matrix", "latency", "jitter", "distribution")
    }
    main = NamedNetworkFile(name=MAIN, **options)
    networks = [Placed(("network",), main), *networks_of(None, file.networks, ())]
    check_emulation(source, machines, networks, file.schedule, ("schedule",))
