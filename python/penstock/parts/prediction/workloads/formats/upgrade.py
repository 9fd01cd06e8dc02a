"""Instances of WfFormat 1.2 to 1.5 as 1.6, all other properties retained; and workloads as instances of 1.6.

The changes from 1.4 to 1.5 and 1.6 are in the READMEs of github.com/wfcommons/WfFormat: separate
`specification` and `execution`, ids instead of names, `wms` is `runtimeSystem`, a list of machines,
`metrics`. Those from 1.2 to 1.4 are in its tools/wfcommons-migrate-instance.py.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.parts.prediction.workloads.distribution import mean_s
from penstock.parts.prediction.workloads.formats.instance import (
    OWN,
    file_id_of,
    identifier,
    task_ids,
)
from penstock.parts.prediction.workloads.formats.wfformat_rules import FLAT
from penstock.parts.prediction.workloads.graph import levels
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.version import version

VERSION = "1.6"

#: start time of instances that were never run (a required property)
NEVER = "1970-01-01T00:00:00+00:00"

_TASK = ("name", "parents", "children")
#: properties in KB of 1.2 and 1.3, in bytes since 1.4
_IN_KB = {"bytesRead": "readBytes", "bytesWritten": "writtenBytes", "memory": "memoryInBytes"}
_RENAMED = {"cores": "coreCount", "energy": "energyInKWh", "avgPower": "avgPowerInW"}


def upgraded(values: Mapping[str, Any], waits: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The same instance as WfFormat 1.6, a copy; unknown properties are retained.

    `values` must have been read without a mistake; `waits`: ids of the predecessors of each task (used for a
    task without parents), or nothing. Ids with characters that 1.6 forbids are replaced, and retained as
    `originalId`.
    """
    instance = copy.deepcopy(dict(values))
    if instance["schemaVersion"] in FLAT:
        _to_1_4(instance)
        instance = _from_flat(instance)
    instance["schemaVersion"] = VERSION
    _machines(instance["workflow"].get("execution", {}))
    _parents(instance["workflow"]["specification"]["tasks"], waits)
    _identifiers(instance["workflow"])
    _metrics(instance["workflow"])
    return instance


def instance_of(workload: Workload) -> dict[str, Any]:
    """The workload as an instance of WfFormat 1.6.

    A workload read from an instance gives that instance. Otherwise run time is the mean computing time, and
    properties `penstock` have what WfFormat cannot express (operations, hints, launch times), from which
    `workload_of_instance` restores an equal workload. Not executed: makespan 0, in 1970.
    """
    if workload.origin is not None:
        return workload.origin()
    tasks, executed = [], []
    parents = [[identifier(workload.tasks[i].name) for i in w] for w in workload.dependencies]
    children: dict[str, list[str]] = {identifier(task.name): [] for task in workload.tasks}
    for task, ahead in zip(workload.tasks, parents, strict=True):
        for name in ahead:
            children[name].append(identifier(task.name))
    for task, ahead in zip(workload.tasks, parents, strict=True):
        own = identifier(task.name)
        reads, writes = (
            list(dict.fromkeys(identifier(str(o.file)) for o in task.operations if o.op == op))
            for op in ("read", "write")
        )
        tasks.append(
            {
                "name": task.stage or task.name,
                "id": own,
                "parents": ahead,
                "children": children[own],
                "inputFiles": reads,
                "outputFiles": writes,
            }
        )
        seconds = sum(mean_s(o.seconds) for o in task.operations if o.op == "compute")
        moved = {
            name: sum(o.size_bytes for o in task.operations if o.op == op)
            for name, op in (("readBytes", "read"), ("writtenBytes", "write"))
        }
        command = {} if task.command is None else {"command": task.command.to_dict()}
        times = {"id": own, "runtimeInSeconds": seconds, **command, **moved}
        executed.append({**times, OWN: task.described()})
    files = [
        {"id": identifier(name), "sizeInBytes": size} for name, size in workload.file_sizes.items()
    ]
    instance: dict[str, Any] = {
        "name": workload.name,
        "description": "A workload of penstock; its operations are in the properties `penstock`",
        "schemaVersion": VERSION,
        "runtimeSystem": {"name": "penstock", "version": version()},
        OWN: {"name": workload.name, "files": [file.to_dict() for file in workload.files]},
        "workflow": {
            "specification": {"tasks": tasks, "files": files},
            "execution": {"makespanInSeconds": 0, "executedAt": NEVER, "tasks": executed},
        },
    }
    _metrics(instance["workflow"])
    return instance


def _to_1_4(instance: Mapping[str, Any]) -> None:
    """Convert 1.2 and 1.3; sizes of files are bytes in all versions."""
    old, new = FLAT[instance["schemaVersion"]], FLAT["1.4"]
    if old == new:
        return
    workflow = instance["workflow"]
    _rename(workflow, {old.tasks: new.tasks, old.makespan: new.makespan})
    machines = [one for one in workflow.get("machines") or () if isinstance(one, dict)]
    for row in (*workflow[new.tasks], *machines):
        _rename(row, {old.runtime: new.runtime})
        for name, in_bytes in _IN_KB.items():
            if isinstance(row.get(name), int | float):
                row[in_bytes] = row.pop(name) * 1000
        for file in row.get("files") or ():
            _rename(file, {old.size: new.size})


def _rename(values: dict[str, Any], names: Mapping[str, str]) -> None:
    for old, new in names.items():
        if old in values:
            values[new] = values.pop(old)


def _from_flat(instance: dict[str, Any]) -> dict[str, Any]:
    """Convert 1.4 to 1.5."""
    if "wms" in instance:
        instance["runtimeSystem"] = instance.pop("wms")
    workflow = instance["workflow"]
    rows = workflow.pop("tasks")
    ids = task_ids(rows)
    many = Counter(row["name"] for row in rows)
    by_name = {row["id"]: own for row, own in zip(rows, ids, strict=True) if "id" in row}
    by_name |= {r["name"]: own for r, own in zip(rows, ids, strict=True) if many[r["name"]] == 1}
    parents = {
        own: list(dict.fromkeys(by_name[p] for p in row.get("parents") or []))
        for row, own in zip(rows, ids, strict=True)
    }
    children: dict[str, list[str]] = {own: [] for own in ids}
    for own, ahead in parents.items():
        for name in ahead:
            children[name].append(own)
    files: dict[str, dict[str, Any]] = {}
    tasks, executed = [], []
    for row, own in zip(rows, ids, strict=True):
        links: dict[str, list[str]] = {"input": [], "output": []}
        for file in row.pop("files", None) or []:
            name, link = file_id_of(file), file.pop("link")
            if name not in links[link]:
                links[link].append(name)
            size = file.pop("sizeInBytes")
            rest = {k: v for k, v in file.items() if k != "name"}
            entry = files.setdefault(name, {"id": name, "sizeInBytes": size, **rest})
            if link == "output" and "_written" not in entry:
                entry.update(sizeInBytes=size, _written=True)
        task = {
            "name": row.pop("name"),
            "id": own,
            "parents": parents[own],
            "children": children[own],
            "inputFiles": links["input"],
            "outputFiles": links["output"],
        }
        rest = {_RENAMED.get(k, k): v for k, v in row.items() if k not in ("id", *_TASK)}
        if "runtimeInSeconds" in rest:
            executed.append({"id": own, **rest})
        else:
            task |= rest
        tasks.append(task)
    for file in files.values():
        file.pop("_written", None)
    workflow["specification"] = {"tasks": tasks, "files": list(files.values())}
    if executed:
        execution = {
            "makespanInSeconds": workflow.pop("makespanInSeconds", 0),
            "executedAt": workflow.pop("executedAt", NEVER),
            "tasks": executed,
        }
        if "machines" in workflow:
            execution["machines"] = [_machine(m) for m in workflow.pop("machines")]
        workflow["execution"] = execution
    return instance


def _parents(tasks: list[dict[str, Any]], waits: Sequence[Sequence[str]]) -> None:
    """Parents of tasks without any, and both sides of every dependency."""
    by_id = {task["id"]: task for task in tasks}
    for i, task in enumerate(tasks):
        task["parents"] = list(task.get("parents") or (waits[i] if waits else ()))
        task["children"] = list(task.get("children") or [])
    for task in tasks:
        for parent in task["parents"]:
            if task["id"] not in by_id[parent]["children"]:
                by_id[parent]["children"].append(task["id"])


def _machine(machine: Any) -> Any:
    cpu = machine.get("cpu") if isinstance(machine, dict) else None
    if isinstance(cpu, dict):
        names = {"count": "coreCount", "speed": "speedInMHz"}
        machine["cpu"] = {names.get(k, k): v for k, v in cpu.items()}
    return machine


def _machines(execution: dict[str, Any]) -> None:
    """A list of machines for each task, in place of the single one in the first drafts of 1.5."""
    for task in execution.get("tasks", []):
        if isinstance(task.get("machine"), str):
            one = task.pop("machine")
            task.setdefault("machines", [one])
    if execution.get("machines") == []:
        del execution["machines"]


def _identifiers(workflow: Mapping[str, Any]) -> None:
    """Replace ids that 1.6 does not allow."""
    specification = workflow["specification"]
    rows = [
        *specification["tasks"],
        *specification.get("files", []),
        *workflow.get("execution", {}).get("tasks", []),
    ]
    for row in rows:
        if row["id"] != identifier(row["id"]):
            row["originalId"] = row["id"]
            row["id"] = identifier(row["id"])
    for task in specification["tasks"]:
        for name in ("parents", "children", "inputFiles", "outputFiles"):
            if name in task:
                task[name] = [identifier(other) for other in task[name] or []]


def _metrics(workflow: Mapping[str, Any]) -> None:
    """Recompute the sums that 1.6 allows; other metrics are retained."""
    specification = workflow["specification"]
    index = {task["id"]: i for i, task in enumerate(specification["tasks"])}
    widths: dict[int, int] = {}
    for level in levels(
        [sorted({index[p] for p in task["parents"]}) for task in specification["tasks"]]
    ):
        widths[level] = widths.get(level, 0) + 1
    files = specification.get("files", [])
    specification["metrics"] = {
        **specification.get("metrics", {}),
        "numberOfTasks": len(index),
        "numberOfFiles": len(files),
        "sumOfFileSizesInBytes": sum(file["sizeInBytes"] for file in files),
        "numberOfLevels": len(widths),
        "minimumWidth": min(widths.values()),
        "maximumWidth": max(widths.values()),
    }
    if "execution" not in workflow:
        return
    tasks = workflow["execution"]["tasks"]
    metrics = workflow["execution"].setdefault("metrics", {})
    metrics["sumTaskRuntimesInSeconds"] = sum(task.get("runtimeInSeconds") or 0 for task in tasks)
    for name, key in (("totalNumBytesRead", "readBytes"), ("totalNumBytesWritten", "writtenBytes")):
        moved = [task[key] for task in tasks if key in task]
        total = sum(moved)
        if moved and float(total).is_integer() and total >= 0:
            metrics[name] = int(total)
        else:
            metrics.pop(name, None)
