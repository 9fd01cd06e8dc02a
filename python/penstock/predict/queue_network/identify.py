"""Service times of a store from what single operations took: those with which its model takes as long.

The subtraction of network and manager from a whole operation [Costa 2014, eq. 3.2] takes them for done one
after the other. They overlap in a real store, and what is left for the storage is too little, even
negative. Here the deployment that was measured is simulated until it takes what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from penstock.platform.hosts import Platform
from penstock.predict.queue_network.simulate import Simulator, makespan
from penstock.workload.workflow import File, Operation, Task, Workload

#: how often the simulated deployment is run where its platform draws at random
_SEEDS = (1, 2, 3)
#: a service is at least this [s, s/byte]: below it, it cannot be told from none
_LEAST = (1e-9, 1e-15)


@dataclass(frozen=True)
class Linear:
    """Time of one request: `overhead_s` + bytes × `per_byte_s`; `clamped` where it came out negative."""

    overhead_s: float
    per_byte_s: float
    clamped: bool = False


@dataclass(frozen=True)
class Identified:
    """Service times with which the model takes what was measured."""

    manager_s: float
    write: Linear
    read: Linear
    clamped_manager: bool = False


def identify(
    deployment: Platform,
    zero_write_s: float,
    writes_s: Mapping[int, float],
    reads_s: Mapping[int, float],
) -> Identified:
    """From mean seconds of an operation: writing a file of no bytes, writing and reading files by their size.

    `deployment` is what was measured on, with its network known; its service times do not count. Two sizes
    at least tell overhead and time per byte apart.
    """
    none = Linear(0.0, 0.0)
    free = simulated_s(deployment, 0.0, none, none, "write", 0)
    manager_s = (zero_write_s - free) / 2
    clamped = manager_s < 0
    manager_s = max(0.0, manager_s)
    write = _fit(deployment, manager_s, "write", writes_s)
    read = _fit(deployment, manager_s, "read", reads_s)
    return Identified(manager_s, write, read, clamped)


def simulated_s(
    deployment: Platform, manager_s: float, write: Linear, read: Linear, op: str, size: int
) -> float:
    """What one operation on an idle store takes in the model [s]."""
    network = with_services(deployment, manager_s, write, read).lower()
    file = File("f", size_bytes=size, preloaded=True) if op == "read" else File("f")
    task = Task("t", (Operation(op, "f", 0, size),), launch=0.0)
    simulator = Simulator(Workload("one", (file,), (task,)), threads=1)
    return float(np.mean([makespan(o) for o in simulator.runs(network, _SEEDS)]))


def with_services(deployment: Platform, manager_s: float, write: Linear, read: Linear) -> Platform:
    """The platform with these service times on every host, and nothing else that takes time to launch."""
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
    """As a platform file says it."""
    return {
        "overhead": f"{1e6 * service.overhead_s:.6g} us",
        "per_byte": f"{1e3 * service.per_byte_s * 2**20:.6g} ms/MiB",
    }


def _fit(
    deployment: Platform, manager_s: float, op: str, measured_s: Mapping[int, float]
) -> Linear:
    """Overhead and time per byte, neither below none, of the least relative error over the sizes."""
    sizes = sorted(measured_s)
    scale = (measured_s[sizes[0]], measured_s[sizes[-1]] / max(1, sizes[-1]))

    def off(x: np.ndarray) -> list[float]:
        service = Linear(float(x[0]) * scale[0], float(x[1]) * scale[1])
        none = Linear(0.0, 0.0)
        both = (service, none) if op == "write" else (none, service)
        return [
            simulated_s(deployment, manager_s, *both, op, size) / measured_s[size] - 1
            for size in sizes
        ]

    found = least_squares(off, (0.1, 0.1), bounds=(0, np.inf), diff_step=1e-3, xtol=1e-6)
    overhead_s, per_byte_s = float(found.x[0]) * scale[0], float(found.x[1]) * scale[1]
    clamped = bool(max(map(abs, found.fun)) > 0.02)
    return Linear(
        overhead_s if overhead_s > _LEAST[0] else 0.0,
        per_byte_s if per_byte_s > _LEAST[1] else 0.0,
        clamped,
    )
