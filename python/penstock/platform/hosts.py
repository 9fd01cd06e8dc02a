"""A platform: hosts by group, their services, their network. As read, as changed, in numbers."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from pydantic import ValidationError

from penstock.errors import BadInput, Mistake
from penstock.platform.checks.platform_file import check, check_nodes, has_roles
from penstock.platform.draws import placed
from penstock.platform.file import PlatformFile
from penstock.platform.lower import Host, Lowering, expand
from penstock.platform.paths import NoPath, dotted, find, get, put
from penstock.platform.power import Power, Price
from penstock.platform.profiles import ready_names
from penstock.platform.schedule import expand_in
from penstock.platform.uncertain import (
    Assumed,
    Estimate,
    assumed,
    drawn,
    ends,
    estimates,
    forget,
    is_estimate,
    ranged,
    stripped,
)
from penstock.spec.machine import NodeFile
from penstock.spec.mistakes import in_order, note
from penstock.spec.source import Path, Position, Source, dump, read_input, read_source, read_value

PAGE = "docs/platform-file.md"
_STORAGES = (("profile",), ("disk",), ("read", "write"))
_KINDS = tuple(f".storage.{k}" for kind in _STORAGES for k in kind)


@dataclass(frozen=True, eq=False)
class Platform:
    """A validated platform.

    `document` is the file as plain values, after `--set`, with unresolved estimates; `profiles` are its
    storage profiles. Platforms with equal documents and profiles are equal.
    """

    file: PlatformFile
    document: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    base_dir: FilePath
    chosen: frozenset[Path] = frozenset()
    source: Source = field(default_factory=lambda: Source("platform", {}), repr=False)

    @property
    def name(self) -> str:
        return self.file.name

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The document with each estimate replaced by its value."""
        return dict(stripped(self.document))

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, in file order."""
        return tuple(expand(self.plain))

    @property
    def predictable(self) -> bool:
        """True if its hosts have roles in a prediction; else they are only nodes to be started."""
        return has_roles(self.document)

    @property
    def nodes(self) -> tuple[NodeFile, ...]:
        """The hosts as nodes of a study: memory, processors, disks."""
        return tuple(h.node for h in self.hosts)

    @cached_property
    def power(self) -> dict[str, Power]:
        """Power of each host, by name; without hosts that do not count or declare no power."""
        return {h.name: h.power for h in self.hosts if h.power is not None}

    @cached_property
    def price(self) -> dict[str, Price]:
        """Price of each host, by name; without hosts that declare no price."""
        return {h.name: h.price for h in self.hosts if h.price is not None}

    @cached_property
    def assumed(self) -> list[Assumed]:
        """Unmeasured values with their range: (path, value, low, high, note) each."""
        return assumed(self.plain, self.chosen)

    @cached_property
    def estimates(self) -> list[Estimate]:
        """Measured values with their interval."""
        return estimates(self.document)

    def lower(self) -> dict[str, Any]:
        """The platform in numbers, "penstock/network/1": bytes, seconds, bytes per second."""
        return Lowering(self.file, list(self.hosts), self.profiles).network()

    def to_yaml(self, directory: FilePath | None = None) -> str:
        """The platform as a file for `directory` (by default its original one); reading it there gives an
        equal platform."""
        if directory is None or directory.resolve() == self.base_dir.resolve():
            return dump(self.document)
        return dump(moved(self.document, self.base_dir, directory.resolve()))

    def value(self, path: str) -> Any:
        """Value at a dotted path such as `hosts.nodes.count`, None if not given. BadInput for an unknown
        path."""
        try:
            return get(self.plain, find(self.document, path))
        except NoPath as error:
            raise BadInput(f"{path}: {error}") from None

    def with_values(self, values: Mapping[str, Any]) -> Platform:
        """The platform with other values at dotted paths, such as {"hosts.app.count": 14, "store.chunk":
        "256KiB"}. Numeric text is a number. These values are then certain. BadInput with every mistake."""
        changes = {path: (_number(value), f"{path}={value}") for path, value in values.items()}
        return _with(self, changes)

    def sample(
        self, rngs: Sequence[np.random.Generator], *, assumptions: bool = False
    ) -> list[tuple[list[int], Platform]]:
        """Platforms with each estimate sampled from its interval, with `assumptions` those as well; one draw
        per generator.

        A platform has several draws, and comes with their indices: in its network, powers and prices, sampled
        values are arrays with a number for each of them.
        """
        platforms = []
        groups = drawn(self.document, rngs, assumptions=assumptions, chosen=self.chosen)
        for rows, common, arrays in groups:
            source = _copy(self.source, copy.deepcopy(self.document))
            for path, value in (common | arrays).items():
                put(source.value, path, value)
            if common:
                platform = platform_from(source, self.base_dir, self.profiles, self.chosen)
            else:  # all values are those of this platform, which are valid
                file = placed(self.file, source.value)
                platform = dataclasses.replace(
                    self, file=file, document=source.value, source=source
                )
            platforms.append((rows, platform))
        return platforms

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], base_dir: FilePath | str = ".") -> Platform:
        """A platform from the file's plain values. BadInput with every mistake."""
        source = Source(str(document.get("name", "platform")), copy.deepcopy(dict(document)))
        return platform_from(source, FilePath(base_dir), {}, frozenset(), first=True)


def load_platform(
    path: FilePath | str, overrides: Sequence[str] = (), *, predicted: bool | None = True
) -> Platform:
    """The platform in the YAML or JSON file `path`, after `overrides` (`hosts.nodes.count=14`).

    Profiles are relative to the file's directory. Raises BadInput with every mistake and its line and column.
    Values for predictions only (roles, bandwidths) may be missing if it is not `predicted`; with None, if no
    host has a role.
    """
    path = FilePath(path)
    return read_platform(read_input(path, "a platform file"), path, overrides, predicted=predicted)


def read_platform(
    raw: bytes, path: FilePath, overrides: Sequence[str] = (), *, predicted: bool | None = True
) -> Platform:
    """Like `load_platform`, of a text already read."""
    source = read_source(raw, str(path), f"a platform file; see {PAGE}")
    if not isinstance(source.value, dict):
        source.mistake((), "no mapping", "a platform: keys such as name, hosts, network")
        raise BadInput(mistakes=source.mistakes)
    if "penstock" in source.value and "penstock_platform" not in source.value:
        expected = "a platform file; `penstock platform study` makes one of a study's nodes"
        source.mistake(("penstock",), "a study", expected, key=True)
        raise BadInput(mistakes=source.mistakes)
    values: dict[str, tuple[Any, str]] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            example = "a.b=c, such as hosts.nodes.count=14"
            raise BadInput(mistakes=[Mistake(f"--set {text}", 1, 1, f"'{text}'", example)])
        values[name.strip()] = (read_value(value), f"--set {text}")
    _expand_short(source)
    if values:
        _put_all(source, values)
    chosen = frozenset(find(source.value, p) for p in values)
    return platform_from(source, path.parent.resolve(), {}, chosen, first=True, predicted=predicted)


def moved(value: Any, old: FilePath, new: FilePath) -> Any:
    """A copy with profiles that are files in `old` renamed relative to `new`."""
    if isinstance(value, list):
        return [moved(v, old, new) for v in value]
    if not isinstance(value, dict):
        return value
    copy = {k: moved(v, old, new) if k != "facts" else v for k, v in value.items()}
    name = copy.get("profile")
    if isinstance(name, str) and name not in ready_names():
        copy["profile"] = os.path.relpath(old / name, new)
    return copy


def _number(value: Any) -> Any:
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _with(platform: Platform, values: Mapping[str, tuple[Any, str]]) -> Platform:
    source = _copy(platform.source, copy.deepcopy(platform.document))
    _put_all(source, values)
    chosen = platform.chosen | {find(source.value, p) for p in values}
    return platform_from(source, platform.base_dir, platform.profiles, frozenset(chosen))


def _copy(source: Source, document: dict[str, Any]) -> Source:
    return Source(
        source.file, document, dict(source.keys), dict(source.values), [], source.lines, source.ends
    )


def _put_all(source: Source, values: Mapping[str, tuple[Any, str]]) -> None:
    """Set values at dotted paths, each with its origin."""
    assumptions = ranged(source.value)
    mistakes = []
    paths = []
    order = sorted(values.items(), key=lambda v: not v[0].endswith(_KINDS))
    for name, (value, option) in order:
        try:
            path = find(source.value, name)
        except NoPath as error:
            mistakes.append(Mistake(option, 1, 1, error.actual, error.expected))
            continue
        if len(path) > 1 and path[-2] == "storage":
            _other_storage(source, path)
        paths.append(path)
        put(source.value, path, copy.deepcopy(value))
        parents = [path[:i] for i in range(1, len(path)) if path[:i] not in source.values]
        for table in (source.keys, source.values):
            for stale in [p for p in table if p[: len(path)] == path and len(p) > len(path)]:
                del table[stale]
            table[path] = Position(option, 1, 1)
            table.update(dict.fromkeys(parents, Position(option, 1, 1)))
    if mistakes:
        raise BadInput(mistakes=mistakes)
    _expand_short(source)
    forget(source.value, assumptions, paths)


def _other_storage(source: Source, path: Path) -> None:
    """The choice of one kind of storage removes the others."""
    storage = get(source.value, path[:-1])
    kind = next((k for k in _STORAGES if path[-1] in k), None)
    if kind is None or not isinstance(storage, dict):
        return
    gone = {k for other in _STORAGES if other != kind for k in other}
    if not gone & set(storage):
        return
    gone |= {"capacity"} | ({"servers"} if kind != _STORAGES[2] else {"time_scale", "seed"})
    gone -= {"time_scale", "seed"} if kind == _STORAGES[0] else set()
    for key in gone & set(storage):
        del storage[key]


_SHORT = (("price", "per_host"), ("network", "bandwidth"))
_SHORT_SERVICES = (
    ("storage", ("read", "write")),
    ("manager", ("service",)),
    ("client", ("service",)),
)


def _expand_short(source: Source) -> None:
    """Expand short forms: `read: 5ms` to a service, `price: 0.1 EUR/h` to a price."""
    document = source.value
    for key, inner in _SHORT:
        _short(source, document, (key,), inner)
    hosts = document.get("hosts")
    for i, group in enumerate(hosts if isinstance(hosts, list) else []):
        changes = group.get("except") if isinstance(group, dict) else None
        parts: list[tuple[Path, Any]] = [(("hosts", i), group)]
        for key, change in changes.items() if isinstance(changes, dict) else ():
            parts.append((("hosts", i, "except", key), change))
        for path, part in parts:
            for key, inner in _SHORT if isinstance(part, dict) else ():
                _short(source, part, (*path, key), inner)
            for holder, keys in _SHORT_SERVICES if isinstance(part, dict) else ():
                for key in keys if isinstance(part.get(holder), dict) else ():
                    _short(source, part[holder], (*path, holder, key), "overhead")
    listed = document.get("assumed")
    if isinstance(listed, list):
        document["assumed"] = [{"path": e} if isinstance(e, str) else e for e in listed]


def _short(source: Source, holder: dict[str, Any], path: Path, inner: str) -> None:
    key = path[-1]
    if isinstance(holder.get(str(key)), str) or is_estimate(holder.get(str(key))):
        holder[str(key)] = {inner: holder[str(key)]}
        for table in (source.keys, source.values):
            for below in [p for p in table if p[: len(path)] == path]:
                table[(*path, inner, *below[len(path) :])] = table[below]


def platform_from(
    source: Source,
    base_dir: FilePath,
    loaded: dict[str, dict[str, Any]],
    chosen: frozenset[Path],
    *,
    first: bool = False,
    predicted: bool | None = True,
) -> Platform:
    """Validate everything, including the bounds of ranges on the `first` read; BadInput with every mistake.
    Profiles in `loaded` are not read again."""
    _expand_short(source)
    expand_in(source, base_dir)
    plain = stripped(source.value)
    file: PlatformFile | None = None
    try:
        file = placed(PlatformFile.model_validate(plain), plain)
    except ValidationError as error:
        for detail in error.errors():
            note(source, detail, PlatformFile, PAGE)
        source.mistakes = [
            dataclasses.replace(m, expected=m.expected.removesuffix(", or a template"))
            for m in source.mistakes
        ]
    profiles = check(source, plain, base_dir, loaded, written=first, predicted=predicted)
    if source.mistakes or file is None:
        raise BadInput(mistakes=in_order(source.mistakes))
    if first:
        check_nodes(source, file)
        _check_ends(source, plain, base_dir, profiles, predicted)
        if source.mistakes:
            raise BadInput(mistakes=in_order(source.mistakes))
    return Platform(file, source.value, profiles, base_dir, chosen, source)


def _check_ends(
    source: Source,
    plain: Mapping[str, Any],
    base_dir: FilePath,
    profiles: dict[str, dict[str, Any]],
    predicted: bool | None,
) -> None:
    """Record bounds of ranges that are invalid as values, such as a bandwidth of 0."""
    for at, name, value in ends(source.value):
        changed = copy.deepcopy({k: v for k, v in plain.items() if k != "assumed"})
        put(changed, find(changed, name), value)
        try:
            platform_from(
                Source(source.file, changed), base_dir, profiles, frozenset(), predicted=predicted
            )
        except BadInput as error:
            source.mistake(at, f"'{value}' for {name}", error.mistakes[0].expected)


__all__ = ["Host", "Platform", "dotted", "load_platform", "read_platform"]
