"""Candidates as networks for the simulator, assembled from parts that are lowered once.

The numbers of a platform fall into parts that depend on different keys: hosts and their network on hosts.*,
network.*, power.* and price.*; store, protocol, scheduler, launch and preprocess each on their own. Each part
is lowered once per combination of its own axes, and identical hosts of a group are lowered once for the
largest count, so a candidate costs microseconds instead of a validation of the complete platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import BadInput, Mistake
from penstock.parts.prediction.exploration.space.refused import CombinedRefusals
from penstock.parts.prediction.exploration.space.space import Axis, Candidate, Space
from penstock.parts.prediction.queue_network.simulate import Columns
from penstock.platform.hosts import Platform
from penstock.platform.lower import Host, Lowering
from penstock.platform.paths import NoPath, find

#: keys that describe hosts; every other first path component has its own section
_OF_HOSTS = ("hosts", "network", "power", "price")
_SECTIONS = ("store", "protocol", "scheduler", "launch", "preprocess")
#: short names of axes
SHORT = {"scheduler": "scheduler.kind"}
#: enough storage hosts for any stripe and number of replicas, for the check of a single section
_PLENTY = 100_000


@dataclass(frozen=True)
class Hosts:
    """Hosts of a candidate: their JSON, and by name their power, price and slots."""

    json: str
    hosts: tuple[Host, ...]
    storage: int
    manager: bool

    @property
    def count(self) -> int:
        """Number of hosts, including the manager."""
        return len(self.hosts)


@dataclass(frozen=True)
class _Group:
    """The hosts of one group at its largest count."""

    name: str
    texts: list[str]
    hosts: list[Host]


class Composer:
    """Assembles the network of any candidate of a space. BadInput for an invalid axis or level.

    `columns` has the arrays of networks if the platform's values are draws.
    """

    def __init__(self, platform: Platform, space: Space, *, checked: bool = False) -> None:
        self.platform, self.space = platform, space
        self.columns = Columns()
        self._part_axes: dict[str, list[int]] = {}
        self._counts: dict[int, Axis] = {}
        sliceable = _sliceable(platform)
        for k, axis in enumerate(space.axes):
            keys = [SHORT.get(key, key) for key, _ in axis.levels[0].of_platform]
            if all(group_of_count(key) in sliceable for key in keys):
                self._counts[k] = axis
                continue
            parts = {
                "hosts" if key.split(".")[0] in _OF_HOSTS else key.split(".")[0] for key in keys
            }
            if len(parts) != 1 or not parts <= {"hosts", *_SECTIONS}:
                self._no_part(axis, keys)
            self._part_axes.setdefault(parts.pop(), []).append(k)
        if not checked:
            self._check_levels()
        self._groups: dict[tuple[int, ...], list[_Group] | str] = {}
        self._fabrics: dict[tuple[int, ...], str] = {}
        self._hosts: dict[tuple[int, ...], Hosts | str] = {}
        self._sections: dict[tuple[str, tuple[int, ...]], tuple[str, Any] | str] = {}
        self._combined = CombinedRefusals(platform)
        self._refusals: dict[tuple[int, ...], str] = {}

    def _no_part(self, axis: Axis, keys: list[str]) -> None:
        parts = ", ".join([*_OF_HOSTS, *_SECTIONS])
        actual, expected = f"'{axis.name}'", f"a key below {parts}"
        try:  # the platform file reports unknown keys
            for key in keys:
                find(self.platform.document, key)
        except NoPath as error:
            actual, expected = error.actual, error.expected
        at = axis.position
        raise at.bad_input(actual, expected)

    # ------------------------------------------------------------ levels

    def _check_levels(self) -> None:
        """Check each level individually against the platform file; combinations of counts and widths come
        later."""
        mistakes: list[Mistake] = []
        enough = {f"hosts.{g}.count": _PLENTY for g in _groups_with(self.platform, "storage")}
        for axis in self.space.axes:
            at = axis.position
            for level in axis.levels:
                values = {SHORT.get(k, k): v for k, v in level.of_platform}
                if all(group_of_count(k) for k in values):
                    mistakes += self._of_counts(axis, values)
                    continue
                try:
                    self.platform.with_values({**enough, **_plain(values), **values})
                except BadInput as error:
                    if _about_counts(error):
                        continue
                    for m in error.mistakes:
                        mistakes.append(at.mistake(m.found, m.expected))
                    if not error.mistakes:
                        raise
                    break
        if mistakes:
            raise BadInput(mistakes=list(dict.fromkeys(mistakes)))

    def _of_counts(self, axis: Axis, values: Mapping[str, Any]) -> list[Mistake]:
        """Any count of an existing group is a valid level; invalid combinations are skipped later."""
        at = axis.position
        if 0 in values.values():
            expected = "at least 1 host in each group"
            return [at.mistake("0 hosts", expected)]
        try:
            for key in values:
                find(self.platform.document, key)
        except NoPath as error:
            return [at.mistake(error.actual, error.expected)]
        return []

    # ------------------------------------------------------------ pieces

    def _own(self, part: str, candidate: Candidate) -> tuple[int, ...]:
        return tuple(candidate[k] for k in self._part_axes.get(part, ()))

    def _values(self, part: str, candidate: Candidate) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for k in self._part_axes.get(part, ()):
            level = self.space.axes[k].levels[candidate[k]]
            values.update({SHORT.get(key, key): v for key, v in level.of_platform})
        return values

    def _groups_of(self, candidate: Candidate) -> list[_Group] | str:
        """The groups at their largest counts with this candidate's speeds, disks and links."""
        own = self._own("hosts", candidate)
        if own not in self._groups:
            largest = {
                SHORT.get(key, key): max(dict(level.values)[key] for level in axis.levels)
                for axis in self._counts.values()
                for key in axis.keys
            }
            values = largest | self._values("hosts", candidate)
            try:
                platform = self.platform.with_values(values | _plain({}))
            except BadInput as error:
                self._groups[own] = _why(error)
            else:
                network = Lowering(platform.file, list(platform.hosts), platform.profiles).network()
                groups: dict[str, _Group] = {}
                for host, lowered in zip(platform.hosts, network["hosts"], strict=True):
                    group = groups.setdefault(host.group, _Group(host.group, [], []))
                    group.texts.append(self.columns.json(lowered))
                    group.hosts.append(host)
                self._groups[own] = list(groups.values())
                self._fabrics[own] = self.columns.json(network["fabric"])
        return self._groups[own]

    def hosts(self, candidate: Candidate) -> Hosts | str:
        """Hosts of a candidate, or the reason why it is infeasible."""
        key = (*self._own("hosts", candidate), *(candidate[k] for k in self._counts))
        hosts = self._hosts.get(key)
        if hosts is None:
            hosts = self._hosts[key] = self._make_hosts(candidate)
        return hosts

    def _make_hosts(self, candidate: Candidate) -> Hosts | str:
        groups = self._groups_of(candidate)
        if isinstance(groups, str):
            return groups
        counts: dict[str, int] = {}
        for k, axis in self._counts.items():
            for key, value in axis.levels[candidate[k]].values:
                counts[group_of_count(key)] = value
        texts: list[str] = []
        hosts: list[Host] = []
        for group in groups:
            n = counts.get(group.name, len(group.hosts))
            texts += group.texts[:n]
            hosts += group.hosts[:n]
        managers = sum("manager" in h.roles for h in hosts)
        if managers > 1:
            return f"{managers} managers"
        storage = sum("storage" in h.roles for h in hosts)
        return Hosts(f"[{','.join(texts)}]", tuple(hosts), storage, managers == 1)

    def _section(self, name: str, candidate: Candidate) -> tuple[str, Any] | str:
        """A section as JSON and as numbers, or the reason why it is infeasible."""
        key = (name, self._own(name, candidate))
        if key not in self._sections:
            values = self._values(name, candidate)
            enough = {f"hosts.{g}.count": _PLENTY for g in _groups_with(self.platform, "storage")}
            changed = {**enough, **(_plain({}) if name != "store" else {}), **values}
            try:
                platform = self.platform.with_values(changed) if values else self.platform
            except BadInput as error:
                self._sections[key] = _why(error)
            else:
                numbers = Lowering(platform.file, [], platform.profiles).network()[name]
                self._sections[key] = (self.columns.json(numbers), numbers)
        return self._sections[key]

    # ------------------------------------------------------------ candidates

    def reason(self, candidate: Candidate) -> str | None:
        """Reason why the candidate cannot be built, None if it can."""
        hosts = self.hosts(candidate)
        if isinstance(hosts, str):
            return hosts
        for name in _SECTIONS:
            section = self._section(name, candidate)
            if isinstance(section, str):
                return section
        store: dict[str, Any] = self._section("store", candidate)[1]  # type: ignore[assignment]
        if store["replicas"] > hosts.storage:
            return "more replicas than storage hosts"
        if store["stripe_width"] is not None and store["stripe_width"] > hosts.storage:
            return "a stripe wider than the storage hosts"
        if store["allocation"] == "manager" and not hosts.manager:
            return "a store that asks a manager, and none there"
        return self._refusal(candidate, hosts.storage) or None

    def _refusal(self, candidate: Candidate, storage: int) -> str:
        """Reason of the store's engine against the candidate; empty if it accepts it."""
        key = (*self._own("store", candidate), *self._own("preprocess", candidate), storage)
        if key not in self._refusals:
            values = self._values("store", candidate) | self._values("preprocess", candidate)
            self._refusals[key] = self._combined.reason(values, storage)
        return self._refusals[key]

    def network(self, candidate: Candidate) -> str:
        """The candidate as the JSON of "penstock/network/1". It must be feasible."""
        hosts = self.hosts(candidate)
        assert isinstance(hosts, Hosts)
        sections = ",".join(f'"{name}":{self._section(name, candidate)[0]}' for name in _SECTIONS)
        fabric = self._fabrics[self._own("hosts", candidate)]
        return (
            f'{{"schema":"penstock/network/1","hosts":{hosts.json},"fabric":{fabric},{sections}}}'
        )

    def values(self, candidate: Candidate) -> dict[str, Any]:
        """Platform values of the candidate by dotted path, as input of `Platform.with_values`."""
        levels = self.space.levels(candidate)
        return {SHORT.get(k, k): v for level in levels for k, v in level.of_platform}


def group_of_count(key: str) -> str:
    """GROUP of `hosts.GROUP.count`, empty for other keys."""
    steps = key.split(".")
    return steps[1] if len(steps) == 3 and steps[0] == "hosts" and steps[2] == "count" else ""


def _sliceable(platform: Platform) -> set[str]:
    """Groups whose first n hosts do not depend on the count: no exceptions, one rack, no manager."""
    return {
        group["group"]
        for group in platform.plain["hosts"]
        if not group.get("except")
        and not isinstance(group.get("rack"), list)
        and "manager" not in group["roles"]
    }


def _groups_with(platform: Platform, role: str) -> Iterable[str]:
    """Groups of that role with a variable count."""
    free = _sliceable(platform)
    return [
        g["group"] for g in platform.plain["hosts"] if role in g["roles"] and g["group"] in free
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replicas and stripes valid for any number of storage hosts, unless they are being checked."""
    return {
        key: value
        for key, value in (("store.replicas", 1), ("store.stripe", "all"))
        if key not in values
    }


def _about_counts(error: BadInput) -> bool:
    """True if the only error is too few storage hosts, which depends on the combination."""
    return bool(error.mistakes) and all(
        m.expected.endswith("or more storage hosts") for m in error.mistakes
    )


def _why(error: BadInput) -> str:
    return error.mistakes[0].found if error.mistakes else str(error)
