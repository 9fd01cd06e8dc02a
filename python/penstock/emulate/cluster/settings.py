"""Changes of a running node: checks of requests; processors and memory, applied and read back."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import Write
from penstock.host.nodes.node_group import NodeGroup
from penstock.spec.check_cluster import check_cpu, check_memory, check_state
from penstock.spec.cluster import NodeSpec, Resource

#: tolerance of a share of processors read back: the kernel's resolution is microseconds
_CPU_TOLERANCE = 0.005


@dataclass(frozen=True)
class Change:
    """A patch of one resource of several nodes (names or patterns); `name` of a disk or network."""

    nodes: tuple[str, ...]
    resource: Resource
    patch: dict[str, Any]
    name: str | None = None

    def check(self) -> None:
        """Raises BadInput with every mistake that is visible without the nodes."""
        where = f"{', '.join(self.nodes)}: {self.resource}"
        checks = {"cpu": check_cpu, "memory": check_memory, "node": check_state}
        wrong = list(checks[self.resource](self.patch, where)) if self.resource in checks else []
        if not self.patch:
            wrong.append(f"{where}: nothing to be changed")
        if wrong:
            raise BadInput("\n".join(wrong))


@dataclass
class NodeSettings:
    """Requested processors and memory of a node; patches change single values and leave the others.

    `cpu_ratio` r runs each processor of the node r of the time, in periods of 20 ms: the node's quota is r
    times its processors (`cpus`, else those of `cpuset`, else the host's).
    """

    spec: NodeSpec
    group: NodeGroup
    cpus: float | None = None
    cpuset: tuple[int, ...] | None = None
    ratio: float | None = None
    hard: int | None = None
    soft: int | None = None

    def first(self) -> dict[str, dict[str, Any]]:
        """Specification as patches by resource."""
        spec = self.spec
        cpu = {"cpus": spec.cpus, "cpuset": spec.cpuset, "ratio": spec.cpu_ratio}
        memory = {"hard": spec.memory_bytes, "soft": spec.memory_soft_bytes}
        patches = {}
        for resource, patch in (("cpu", cpu), ("memory", memory)):
            declared = {key: value for key, value in patch.items() if value is not None}
            if declared:
                patches[resource] = declared
        return patches

    def begin(self) -> None:
        """Apply the specification. Raises PenstockError if the host refuses."""
        for resource, patch in self.first().items():
            answer = self.verified(resource, patch, self.change(resource, patch))
            if answer["error"]:
                raise PenstockError(f"node {self.spec.name}: {answer['error']}")

    def writes(self, resource: str, patch: dict[str, Any]) -> list[Write]:
        """Writes of `change`, for the journal. Raises as `change` does."""
        changed = self._with(patch)
        if resource == "cpu":
            of_set = self.group.cpuset_writes(changed.cpuset) if "cpuset" in patch else []
            return [*of_set, *self.group.cpu_writes(changed.quota())]
        if changed.soft is not None and changed.hard is not None and changed.soft > changed.hard:
            raise BadInput(f"soft memory limit {changed.soft} is above the hard one {changed.hard}")
        return self.group.memory_writes(changed.hard, changed.soft)

    def change(self, resource: str, patch: dict[str, Any]) -> int:
        """Apply a patch that the journal has recorded; returns the time [ns].

        A refused value stays as it was.
        """
        self.group.write(self.writes(resource, patch))
        changed = self._with(patch)
        for key in patch:
            setattr(self, key, getattr(changed, key))
        return time.monotonic_ns()

    def _with(self, patch: Mapping[str, Any]) -> NodeSettings:
        values: dict[str, Any] = {k: None if v == "max" else v for k, v in patch.items()}
        if values.get("cpuset") is not None:
            values["cpuset"] = tuple(values["cpuset"])
        return replace(self, **values)

    def verified(self, resource: str, patch: dict[str, Any], applied_ns: int) -> dict[str, Any]:
        """Read back the values after a change; returns `Applied` without the planned time."""
        in_force = self.in_force(resource)
        return {
            "applied_ns": applied_ns,
            "verified_ns": time.monotonic_ns(),
            "asked": patch,
            "found": in_force,
            "error": self._difference(resource, in_force),
        }

    def processors(self) -> float:
        """Number of processors without the ratio."""
        there = len(self.cpuset or os.sched_getaffinity(0))
        return min(self.cpus, there) if self.cpus is not None else float(there)

    def quota(self) -> float | None:
        """Number of processors that the node may use; None: no limit."""
        if self.ratio is None or self.ratio == 1.0:
            return self.cpus
        return self.ratio * self.processors()

    def in_force(self, resource: str) -> dict[str, Any]:
        """Values in force, read back."""
        if resource == "cpu":
            return {
                "cpus": self.group.cpus(),
                "cpuset": list(self.group.cpuset()),
                "ratio": self.ratio,
            }
        hard, soft = self.group.memory()
        return {"hard": hard, "soft": soft}

    def _difference(self, resource: str, in_force: Mapping[str, Any]) -> str:
        if resource == "cpu":
            requested, has = self.quota(), in_force["cpus"]
            same = requested == has or (
                requested and has and abs(requested - has) <= _CPU_TOLERANCE * requested
            )
            if not same:
                return f"requested {requested} processors, found {has}"
            if self.cpuset is not None and tuple(in_force["cpuset"]) != tuple(
                sorted(set(self.cpuset))
            ):
                return f"requested processors {self.cpuset}, found {in_force['cpuset']}"
            return ""
        page = os.sysconf("SC_PAGE_SIZE")
        for key, requested in (("hard", self.hard), ("soft", self.soft)):
            rounded = None if requested is None else requested // page * page
            if in_force[key] != rounded:
                return f"requested a {key} limit of {requested} bytes, found {in_force[key]}"
        return ""
