"""A predicted run as a trace for ui.perfetto.dev: Chrome's trace event format, JSON.

Hosts are processes, slots are threads, tasks are slices and their operations slices within them. Times are
microseconds of virtual time.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import PenstockError
from penstock.parts.prediction.prediction import Prediction, Row


def slots_of(tasks: Sequence[Row]) -> list[int]:
    """Slot of each task on its host, from 0: no two tasks of a slot overlap.

    Simulated tasks have no slot number; each gets the lowest one that is free at its start.
    """
    slots = [0] * len(tasks)
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    order = sorted(range(len(tasks)), key=lambda i: tasks[i]["start_s"])
    for i in order:
        task = tasks[i]
        host = str(task["host"])
        ending, idle = busy.setdefault(host, []), free.setdefault(host, [])
        while ending and ending[0][0] <= task["start_s"] + 1e-12:
            heapq.heappush(idle, heapq.heappop(ending)[1])
        slot = heapq.heappop(idle) if idle else len(ending)
        heapq.heappush(ending, (float(task["end_s"]), slot))
        slots[i] = slot
    return slots


def trace_events(tasks: Sequence[Row], hosts: Sequence[str] = ()) -> list[Row]:
    """Events of a trace: names of processes and threads first, then slices in order of time.

    `hosts` gives the order of the processes; other hosts of tasks follow.
    """
    names = list(dict.fromkeys([*hosts, *(str(t["host"]) for t in tasks)]))
    pid = {name: i for i, name in enumerate(names, 1)}
    slots = slots_of(tasks)
    used = sorted({(str(t["host"]), s) for t, s in zip(tasks, slots, strict=True)})
    events: list[Row] = []
    for host in [n for n in names if n in {h for h, _ in used}]:
        events.append(_named("process_name", pid[host], 0, host))
        sort = {"sort_index": pid[host]}
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": pid[host], "tid": 0, "args": sort}
        )
    events += [_named("thread_name", pid[h], s + 1, f"slot {s}") for h, s in used]
    slices: list[Row] = []
    for task, slot in zip(tasks, slots, strict=True):
        where = {"pid": pid[str(task["host"])], "tid": slot + 1}
        start, end = float(task["start_s"]), float(task["end_s"])
        args = {
            k: v
            for k, v in task.items()
            if k not in ("spans", "name", "host", "start_s", "end_s") and v is not None
        }
        category = f"{task['stage']}{',critical' if task.get('critical') else ''}"
        slices.append(_slice(str(task["name"]), category, start, end, where, args))
        for span in task.get("spans") or []:
            label = span["op"] if not span.get("file") else f"{span['op']} {span['file']}"
            inner = {
                k: span[k] for k in ("file", "bytes", "local_bytes") if span.get(k) is not None
            }
            slices.append(
                _slice(
                    label,
                    str(span["op"]),
                    float(span["start_s"]),
                    float(span["end_s"]),
                    where,
                    inner,
                )
            )
    # outer slices before inner ones with the same start
    slices.sort(key=lambda e: (e["ts"], -e["dur"]))
    return events + slices


def write_trace(prediction: Prediction, path: Path) -> None:
    """Write the trace of a prediction made with detail; PenstockError without detail."""
    if prediction.tasks is None:
        raise PenstockError("the prediction was made without its tasks; ask for detail")
    hosts = [str(h["name"]) for h in prediction.hosts]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "what": f"{prediction.workload} on {prediction.platform}, predicted",
            "seed": prediction.task_seed,
            "schema": "penstock/prediction/1",
        },
        "traceEvents": trace_events(prediction.tasks, hosts),
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def _named(what: str, pid: int, tid: int, name: str) -> Row:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, category: str, start_s: float, end_s: float, where: Row, args: Row) -> Row:
    # whole nanoseconds, the viewer's resolution: nesting is preserved
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_ns / 1e3,
        "dur": max(0, end_ns - start_ns) / 1e3,
        **where,
        "args": args,
    }
