"""Service times of a store from measured single operations, such that its model has the same durations.

Subtracting network and manager from an operation's duration [Costa 2014, eq. 3.2] assumes that they are
sequential. They overlap in a real store, so the remainder for the storage is too small, even negative. Here
the simulation of the measured deployment is fitted to the measured durations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from penstock.parts.prediction.queue_network.simulate import Row, Simulator, makespan
from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform
from penstock.spec.units import parse_duration

#: seeds of the simulated deployment if its platform is random
_SEEDS = (1, 2, 3)
#: smallest service time [s, s/byte]: less is indistinguishable from none
_LEAST = (1e-9, 1e-15)
#: operations of each client, one after the other, where several clients write at once
IN_TURN = 2
#: key of a platform with the time that each other writer adds to a write
CONTENTION = "store.write_contention"
#: smaller shares of a write are indistinguishable from none
_LEAST_CONTENTION = 1e-3
#: windows that are tried [chunks]; a client with more requests under way is hardly limited
_WINDOWS = (1, 2, 3, 4)


class Measured(NamedTuple):
    """A measured kind of operation: `read` or `write` of N bytes of a file, and the client's place.

    `local`: by a client on the storage node itself; else by one without storage, over the network. `clients`:
    number of clients that do it at once, each with files of its own.
    """

    op: str
    size_bytes: int
    local: bool = False
    clients: int = 1

    def __str__(self) -> str:
        place = " on the storage node" if self.local else ""
        together = f" by {self.clients} clients at once" if self.clients > 1 else ""
        return f"{self.op} {self.size_bytes} B{place}{together}"


@dataclass(frozen=True)
class Linear:
    """Time of one request: `overhead_s` + bytes × `per_byte_s`."""

    overhead_s: float
    per_byte_s: float


@dataclass(frozen=True)
class Identified:
    """Service times in the form of the model; `off`: simulated over measured, minus one, by operation.

    `contention_s`: time that each other writer adds to a write; None without writes of several clients.
    """

    manager_s: float
    write: Linear
    read: Linear
    clamped_manager: bool = False
    off: dict[Measured, float] = field(default_factory=dict)
    contention_s: float | None = None


def identify(deployment: Platform, measured_s: Mapping[Measured, float]) -> Identified:
    """Fit to mean seconds of operations: writing an empty file, writing and reading files by their size.

    `deployment` is the measured one, with its network known; its service times are ignored. At least two
    sizes are needed to separate overhead and time per byte. Over a network slower than the storage, the
    storage's time is hidden; operations on the storage node itself show it. Writes of several clients at once
    determine the contention of writers, with these service times.
    """
    none = Linear(0.0, 0.0)
    empty = Measured("write", 0)
    manager_s = (measured_s[empty] - simulated_s(deployment, 0.0, none, none, empty)) / 2
    clamped = manager_s < 0
    manager_s = max(0.0, manager_s)
    off: dict[Measured, float] = {}
    services = {}
    for op in ("write", "read"):
        seen = {
            m: s for m, s in measured_s.items() if m.op == op and m.size_bytes and m.clients == 1
        }
        services[op] = _fit(deployment, manager_s, op, seen)
        for m, seconds in seen.items():
            both = (services[op], none) if op == "write" else (none, services[op])
            off[m] = simulated_s(deployment, manager_s, *both, m) / seconds - 1
    write, read = services["write"], services["read"]
    together = {m: s for m, s in measured_s.items() if m.clients > 1}
    contention_s = None
    if together:
        served = with_services(deployment, manager_s, write, read)
        contention_s = _contention_s(served, together)
        network = _contended(served, contention_s).lower()
        off |= {m: _duration_s(deployment, network, m) / s - 1 for m, s in together.items()}
    return Identified(manager_s, write, read, clamped, off, contention_s)


def window_of(
    deployment: Platform, read: Linear, delay_s: float, sizes: tuple[int, int], longer_s: float
) -> tuple[int | None, float]:
    """Requests of a client under way at once [chunks], None without a limit; and simulated over measured,
    minus one.

    With an additional one-way delay, reading the second of `sizes` bytes takes `longer_s` more than reading
    the first. That difference does not depend on the manager, and decreases with the window.
    """
    latency_s = parse_duration(deployment.file.protocol.latency) + delay_s
    delayed = with_services(deployment, 0.0, Linear(0.0, 0.0), read).with_values(
        {"protocol.latency": f"{1e6 * latency_s:.6g} us"}
    )

    def off(window: int | None) -> float:
        limit = "unlimited" if window is None else window
        network = delayed.with_values({"store.window": limit}).lower()
        one_s, many_s = (_duration_s(delayed, network, Measured("read", size)) for size in sizes)
        return (many_s - one_s) / longer_s - 1

    offs = {window: off(window) for window in (*_WINDOWS, None)}
    # the greater window of two that are as near
    best = min(reversed(offs), key=lambda window: abs(math.log1p(offs[window])))
    return best, offs[best]


def simulated_s(
    deployment: Platform, manager_s: float, write: Linear, read: Linear, one: Measured
) -> float:
    """Simulated duration of one operation on an idle store [s]."""
    return _duration_s(deployment, with_services(deployment, manager_s, write, read).lower(), one)


def _duration_s(deployment: Platform, network: Row, one: Measured) -> float:
    """Simulated mean duration of an operation on the lowered platform [s]."""
    clients = [h.name for h in deployment.hosts if "client" in h.roles]
    stores = {h.name for h in deployment.hosts if "storage" in h.roles}
    machines = [name for name in clients if (name in stores) == one.local][: one.clients]
    files, tasks = [], []
    for machine in machines:
        names = [f"{machine}.{i}" for i in range(IN_TURN if one.clients > 1 else 1)]
        operations = tuple(Operation(one.op, name, 0, one.size_bytes) for name in names)
        size = one.size_bytes if one.op == "read" else None
        files += [File(name, size, preloaded=size is not None) for name in names]
        tasks.append(Task(machine, operations, launch=0.0, machine=machine))
    simulator = Simulator(Workload("one", tuple(files), tuple(tasks)), threads=1)
    outcomes = simulator.runs(network, _SEEDS)
    if one.clients > 1:
        return float(np.mean([o["operations"][one.op]["mean_s"] for o in outcomes]))
    return float(np.mean([makespan(o) for o in outcomes]))


def _contended(deployment: Platform, seconds: float) -> Platform:
    return deployment.with_values({CONTENTION: f"{1e6 * seconds:.6g} us"})


def _contention_s(served: Platform, together_s: Mapping[Measured, float]) -> float:
    """Non-negative time per other writer with the least relative error of writes of several clients."""
    scale = max(together_s.values())

    def off(x: np.ndarray) -> list[float]:
        network = _contended(served, float(x[0]) * scale).lower()
        return [_duration_s(served, network, m) / seconds - 1 for m, seconds in together_s.items()]

    optimum = least_squares(off, (0.1,), bounds=(0, np.inf), diff_step=1e-2, xtol=1e-6)
    seconds = float(optimum.x[0]) * scale
    return seconds if seconds > _LEAST_CONTENTION * scale else 0.0


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
