"""Features of workloads and platforms that predictions support, and their treatment in a real run.

A run executes a feature, or the feature describes the system itself (its service times), or the run refuses
it by name. `require_executable` checks a workload and a platform against the table before anything is
started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.task import Hints, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform
from penstock.platform.lower import time_of
from penstock.platform.power import chosen_state
from penstock.spec.units import parse_duration
from penstock.text import first_of, listed

How = Literal["executed", "describes", "refused"]
#: uses of one feature in an error message
_NAMED = 3


@dataclass(frozen=True)
class Feature:
    """`what`: its key in a workload or platform file; `why`: its execution in a run, the property of the real
    system that it describes, or the reason of a refusal."""

    what: str
    how: How
    why: str


def _executed(what: str, why: str) -> Feature:
    return Feature(what, "executed", why)


def _describes(what: str, why: str) -> Feature:
    return Feature(what, "describes", why)


def _refused(what: str, why: str) -> Feature:
    return Feature(what, "refused", why)


FEATURES: dict[str, Feature] = {
    feature.what: feature
    for feature in (
        _executed("op open", "open(2) of the file"),
        _executed("op read", "pread(2) of the bytes"),
        _executed("op write", "pwrite(2) of the bytes, then fsync(2)"),
        _executed("op close", "files are closed by the operation that opened them"),
        _executed("op compute", "the task's process sleeps for seconds / speed"),
        _executed("op set_xattr", "setxattr(2); the store must take up hints that programs set"),
        _executed("command", "the task runs this program instead of its operations"),
        _executed("machine", "the task runs on that host, or on one of that group"),
        _executed("after", "the task waits for these tasks"),
        _executed("launch", "the task's process sleeps so long before its first operation"),
        _executed("not_before_s", "the task is not ready before"),
        _executed("preloaded", "the file is written before the run"),
        _refused("distribution", "a run needs a number of seconds"),
        _executed("hints.placement local", "tag DP=local"),
        _executed("hints.placement collocate", "tag DP=collocation GROUP"),
        _executed("hints.placement scatter", "tag DP=scatter N"),
        _executed("hints.placement host", "tag DP=host NODE"),
        _refused("hints.placement striped", "no engine has a tag for it"),
        _refused("hints.placement round_robin", "no engine has a tag for it"),
        _refused("hints.placement random", "no engine has a tag for it"),
        _refused("hints.placement balanced", "no engine has a tag for it"),
        _executed("hints.group", "of the tag DP=collocation GROUP"),
        _executed("hints.scatter", "of the tag DP=scatter N"),
        _executed("hints.host", "tag DP=host NODE, unless another placement is given"),
        _executed("hints.stripe_width", "tag StripeWidth"),
        _executed("hints.replicas", "tag Replication"),
        _executed("hints.chunk_bytes", "tag ChunkSize"),
        _executed("hosts.speed", "computing takes seconds / speed"),
        _executed("hosts.slots", "tasks that a host runs at once"),
        _refused("power.states.service_speed", "a run cannot slow down the services of a store"),
        _executed("scheduler.kind", "the next idle host, or the host with the data"),
        _executed("scheduler.fill", "the host that runs the fewest tasks, or the first"),
        _refused("scheduler.wait", "a run does not wait for the host with the data"),
        _refused("scheduler.inputs", "a run counts the bytes that a task reads"),
        _describes("launch.overhead", "what starting a task takes here"),
        _describes("launch.tag", "what setting hints takes here"),
        _describes("launch.locate", "what asking the store for a place takes here"),
        _executed("launch.stagger", "tasks without predecessors are not ready before"),
        _describes("preprocess.aggregate", "what the client makes of operations that continue"),
        _executed("preprocess.cache", "a parameter of the store"),
        _executed("preprocess.prefetch", "a parameter of the store"),
    )
}


def require_executable(workload: Workload, platform: Platform) -> None:
    """Raise BadInput for features that a prediction supports and a run does not."""
    uses: dict[str, list[str]] = {}
    for what, where in (*_of_tasks(workload), *_of_files(workload), *_of_platform(platform)):
        if FEATURES[what].how == "refused":
            uses.setdefault(what, []).append(where)
    if uses:
        raise BadInput("\n".join(_refusal(what, places) for what, places in uses.items()))


def _refusal(what: str, places: list[str]) -> str:
    named = listed(first_of(places, _NAMED))
    return f"{named}: found {what}, which a real run does not execute: {FEATURES[what].why}"


def uses_set_xattr(workload: Workload) -> bool:
    """True if a task sets hints itself, so that the store must watch for them."""
    return any(o.op == "set_xattr" for task in workload.tasks for o in task.operations)


def _of_tasks(workload: Workload) -> Iterator[tuple[str, str]]:
    for task in workload.tasks:
        where = f"task {task.name}"
        if task.launch is not None:
            yield "launch", where
            if not isinstance(task.launch, int | float):
                yield "distribution", f"{where}, launch"
        for key, value in (
            ("command", task.command),
            ("machine", task.machine),
            ("after", task.after),
        ):
            if value:
                yield key, where
        if task.not_before_s:
            yield "not_before_s", where
        yield from _of_operations(task)


def _of_operations(task: Task) -> Iterator[tuple[str, str]]:
    for number, operation in enumerate(task.operations):
        where = f"task {task.name}, operation {number}"
        yield f"op {operation.op}", where
        if not isinstance(operation.seconds, int | float):
            yield "distribution", where
        yield from _of_hints(operation.hints, where)


def _of_files(workload: Workload) -> Iterator[tuple[str, str]]:
    for file in workload.files:
        where = f"file {file.name}"
        if file.preloaded:
            yield "preloaded", where
        yield from _of_hints(file.hints, where)


def _of_hints(hints: Hints | None, where: str) -> Iterator[tuple[str, str]]:
    for key, value in (hints.to_dict() if hints is not None else {}).items():
        yield (f"hints.placement {value}" if key == "placement" else f"hints.{key}"), where


def _of_platform(platform: Platform) -> Iterator[tuple[str, str]]:
    file = platform.file
    by_data = file.scheduler.kind == "data_location"
    if by_data and (file.scheduler.wait == "forever" or parse_duration(file.scheduler.wait)):
        yield "scheduler.wait", f"scheduler.wait {file.scheduler.wait}"
    if by_data and file.scheduler.inputs != "read":
        yield "scheduler.inputs", f"scheduler.inputs {file.scheduler.inputs}"
    if not isinstance(time_of(file.launch.stagger), int | float):
        yield "distribution", "launch.stagger"
    groups = {}
    for host in platform.hosts:
        state = chosen_state(host.part.power) if host.part.power is not None else None
        if state is not None and state.service_speed != 1 and "storage" in host.roles:
            groups[host.group] = state.service_speed
    for group, speed in groups.items():
        yield "power.states.service_speed", f"hosts.{group}: service_speed {speed:g}"
