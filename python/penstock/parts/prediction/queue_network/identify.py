"""Service times of a store from measured single operations, such that its model has the same durations.

Subtracting network and manager from an operation's duration [Costa 2014, eq. 3.2] assumes that they are
sequential. They overlap in a real store, so the remainder for the storage is too small, even negative. Here
the simulation of the measured deployment is fitted to the measured durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from penstock.parts.prediction.queue_network.simulate import Row, Simulator, makespan
from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform

#: seeds of the simulated deployment if its platform is random
_SEEDS = (1, 2, 3)
#: smallest service time [s, s/byte]: less is indistinguishable from none
_LEAST = (1e-9, 1e-15)


class Measured(NamedTuple):
    """A measured kind of operation: `read` or `write` of N bytes of a file, and the client's place.

    `local`: by a client on the storage node itself; else by one without storage, over the network.
    """

    op: str
    size_bytes: int
    local: bool = False

    def __str__(self) -> str:
        return f"{self.op} {self.size_bytes} B{' on the storage node' if self.local else ''}"


@dataclass(frozen=True)
class Linear:
    """Time of one request: `overhead_s` + bytes × `per_byte_s`."""

    overhead_s: float
    per_byte_s: float


@dataclass(frozen=True)
class Identified:
    """Service times in the form of the model; `off`: simulated over measured, minus one, by operation."""

    manager_s: float
    write: Linear
    read: Linear
    clamped_manager: bool = False
    off: dict[Measured, float] = field(default_factory=dict)


def identify(deployment: Platform, measured_s: Mapping[Measured, float]) -> Identified:
    """Fit to mean seconds of operations: writing an empty file, writing and reading files by their size.

    `deployment` is the measured one, with its network known; its service times are ignored. At least two
    sizes are needed to separate overhead and time per byte. Over a network slower than the storage, the
    storage's time is hidden; operations on the storage node itself show it.
    """
    none = Linear(0.0, 0.0)
    empty = Measured("write", 0)
    manager_s = (measured_s[empty] - simulated_s(deployment, 0.0, none, none, empty)) / 2
    clamped = manager_s < 0
    manager_s = max(0.0, manager_s)
    off: dict[Measured, float] = {}
    services = {}
    for op in ("write", "read"):
        seen = {m: s for m, s in measured_s.items() if m.op == op and m.size_bytes}
        services[op] = _fit(deployment, manager_s, op, seen)
        for m, seconds in seen.items():
            both = (services[op], none) if op == "write" else (none, services[op])
            off[m] = simulated_s(deployment, manager_s, *both, m) / seconds - 1
    return Identified(manager_s, services["write"], services["read"], clamped, off)


def simulated_s(
    deployment: Platform, manager_s: float, write: Linear, read: Linear, one: Measured
) -> float:
    """Simulated duration of one operation on an idle store [s]."""
    return _duration_s(deployment, with_services(deployment, manager_s, write, read).lower(), one)


def _duration_s(deployment: Platform, network: Row, one: Measured) -> float:
    """Simulated duration of one operation on the lowered platform [s]."""
    file = File("f", size_bytes=one.size_bytes, preloaded=True) if one.op == "read" else File("f")
    clients = [h for h in deployment.hosts if "client" in h.roles]
    machine = next(h.name for h in clients if ("storage" in h.roles) == one.local)
    operation = Operation(one.op, "f", 0, one.size_bytes)
    task = Task("t", (operation,), launch=0.0, machine=machine)
    simulator = Simulator(Workload("one", (file,), (task,)), threads=1)
    return float(np.mean([makespan(o) for o in simulator.runs(network, _SEEDS)]))


def with_services(deployment: Platform, manager_s: float, write: Linear, read: Linear) -> Platform:
    """The platform with these service times on every host, and no launch times."""
    values: dict[str, Any] = {"launch.overhead": "0s", "launch.stagger": "0s"}
    for group in deployment.document["hosts"]:
        name = group["group"]
        if "storage" in group["roles"]:
            for which, service in (("write", write), ("read", read)):
                at = f"hosts.{name}.storage.{which}"
                values[at] = service_text(service)
        if "manager" in group["roles"]:
            values[f"hosts.{name}.manager.service"] = {"overhead": f"{1e6 * manager_s:.6g} us"}
    return deployment.with_values(values)


def service_text(service: Linear) -> dict[str, str]:
    """In the syntax of a platform file."""
    return {
        "overhead": f"{1e6 * service.overhead_s:.6g} us",
        "per_byte": f"{1e3 * service.per_byte_s * 2**20:.6g} ms/MiB",
    }


def _fit(
    deployment: Platform, manager_s: float, op: str, measured_s: Mapping[Measured, float]
) -> Linear:
    """Non-negative overhead and time per byte with the least relative error."""
    local = {m: s for m, s in measured_s.items() if m.local} or measured_s
    least, most = (f(local, key=lambda m: m.size_bytes) for f in (min, max))
    scale = (measured_s[least], measured_s[most] / max(1, most.size_bytes))
    none = Linear(0.0, 0.0)

    def off(x: np.ndarray) -> list[float]:
        service = Linear(float(x[0]) * scale[0], float(x[1]) * scale[1])
        both = (service, none) if op == "write" else (none, service)
        network = with_services(deployment, manager_s, *both).lower()
        return [
            _duration_s(deployment, network, m) / seconds - 1 for m, seconds in measured_s.items()
        ]

    optimum = least_squares(off, (0.1, 0.1), bounds=(0, np.inf), diff_step=1e-3, xtol=1e-6)
    overhead_s, per_byte_s = float(optimum.x[0]) * scale[0], float(optimum.x[1]) * scale[1]
    return Linear(
        overhead_s if overhead_s > _LEAST[0] else 0.0,
        per_byte_s if per_byte_s > _LEAST[1] else 0.0,
    )
