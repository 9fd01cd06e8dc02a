"""The straggler among the nodes of a study, and its causes according to the runs' tables.

The measure is the busy time of a node's busiest resource during the command: a disk by its own counter
(`disk_stats`: `busy_ns`, requests in flight), the processors by the node's control group (`utilisation`)
over those that the study assigns to the node. Links are not recorded. A node is a straggler if its busiest
resource was busy for at least half of the run and a quarter longer than that of any other node.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from penstock.analyse.outcome import Outcome
from penstock.study.disk_speeds import scale_of
from penstock.text import at_speed, duration, percent, size

#: minimum ratio to the second busiest resource, and minimum share of the run, for a straggler
LONGER = 1.25
MUCH = 0.5
#: maximum ratio of equal values
_ALIKE = 1.25


@dataclass(frozen=True)
class Load:
    """Load of one resource of a node in one run: `disk` (its id in `name`) or `processors`."""

    node: str
    resource: str
    name: str
    busy_ns: float
    nbytes: float = 0.0
    requests: float = 0.0

    @property
    def rate_bps(self) -> float:
        """Bytes per second of busy time."""
        return 1e9 * self.nbytes / max(self.busy_ns, 1.0)


@dataclass(frozen=True)
class StragglerRun:
    """One run: the busiest resource of each node in descending order; `after_ns`: delay of the last reply
    of the busiest node's disk after those of all other nodes."""

    run_id: str
    treatment_id: str
    wall_ns: float
    loads: list[Load]
    after_ns: float

    @property
    def ratio(self) -> float:
        """Busy time of the busiest node over that of the second one."""
        return self.loads[0].busy_ns / max(self.loads[1].busy_ns, 1.0)

    @property
    def node(self) -> str | None:
        """The straggler; None if there is none."""
        top = self.loads[0]
        return top.node if self.ratio >= LONGER and top.busy_ns >= MUCH * self.wall_ns else None


def straggler_runs(outcome: Outcome) -> list[StragglerRun]:
    """One row per valid run with tables of at least two nodes."""
    key = "straggler"
    if key not in outcome.memory:
        runs = outcome.measured
        columns = [map(str, runs[c].tolist()) for c in ("run_id", "treatment_id") if len(runs)]
        names = sorted(set(zip(*columns, strict=True)))
        compared = (_of_run(outcome, run, treatment) for run, treatment in names)
        outcome.memory[key] = [row for row in compared if row is not None]
    return list(outcome.memory[key])


def _of_run(outcome: Outcome, run_id: str, treatment_id: str) -> StragglerRun | None:
    times = outcome.manifest(run_id).get("times") or {}
    if not {"start_ns", "end_ns"} <= set(times):
        return None
    begin, end = int(times["start_ns"]), int(times["end_ns"])
    wall_ns = float(max(end - begin, 1))
    every = [*_disks(outcome, run_id), *_processors(outcome, run_id, begin, end)]
    loads: dict[str, Load] = {}
    for load in sorted(every, key=lambda load: -load.busy_ns):
        loads.setdefault(load.node, load)
    if len(loads) < 2:
        return None
    ranked = list(loads.values())
    after_ns = _after(outcome, run_id, ranked[0], begin, end)
    return StragglerRun(run_id, treatment_id, wall_ns, ranked, after_ns)


def _node_of(disk_id: str) -> str:
    return disk_id.split(".", 1)[0]


def _disks(outcome: Outcome, run_id: str) -> Iterator[Load]:
    table = outcome.table(run_id, "disk_stats", ["disk_id", "metric", "value"])
    if table is None or table.empty:
        return
    wide = table.astype({"disk_id": str, "metric": str}).pivot_table(
        index="disk_id", columns="metric", values="value", aggfunc="last"
    )
    for disk_id, row in wide.iterrows():
        if "." not in str(disk_id) or pd.isna(row.get("busy_ns")):
            continue
        yield Load(
            _node_of(str(disk_id)),
            "disk",
            str(disk_id),
            float(row["busy_ns"]),
            float(row.get("read_bytes", 0) + row.get("written_bytes", 0)),
            float(row.get("reads", 0) + row.get("writes", 0)),
        )


def _processors(outcome: Outcome, run_id: str, begin: int, end: int) -> Iterator[Load]:
    """Processor time of each node's group, over the processors of the node in the study (default: one)."""
    columns = ["t_ns", "kind", "entity", "metric", "value"]
    table = outcome.table(run_id, "utilisation", columns)
    receipt = (outcome.manifest(run_id).get("receipts") or {}).get("monitor") or {}
    if table is None or not receipt.get("cpus"):
        return
    of_groups = (table["kind"].astype(str) == "cgroup_cpu") & (
        table["metric"].astype(str) == "busy"
    )
    of_nodes = table[of_groups & table["t_ns"].between(begin, end)]
    for node, rows in of_nodes.groupby(of_nodes["entity"].astype(str)):
        share = float(rows["value"].mean()) / 100
        declared = _declared(outcome, run_id, str(node))
        if share != share or not declared:  # the group of the complete run is not a node
            continue
        used_ns = share * float(receipt["cpus"]) * (end - begin)
        declared_cpus = declared.get("cpus")
        cpus = (
            float(declared_cpus)
            if isinstance(declared_cpus, int | float) and declared_cpus > 0
            else 1.0
        )
        yield Load(str(node), "processors", str(node), min(used_ns / cpus, float(end - begin)))


def _after(outcome: Outcome, run_id: str, top: Load, begin: int, end: int) -> float:
    """Delay of the last reply of a disk after the last one of all other nodes' disks; at least 0."""
    if top.resource != "disk":
        return 0.0
    table = outcome.table(run_id, "device_requests", ["disk_id", "done_ns"])
    if table is None or table.empty:
        return 0.0
    table = table[table["done_ns"].between(begin, end)]
    last = table["done_ns"].groupby(table["disk_id"].astype(str).map(_node_of)).max()
    others = last.drop(top.node, errors="ignore")
    if top.node not in last or others.empty:
        return 0.0
    return max(float(last[top.node] - others.max()), 0.0)


def _declared(outcome: Outcome, run_id: str, node: str) -> dict[str, Any]:
    """The study's entry of a node; for a group of nodes (`count`) by the name before the number."""
    for entry in (outcome.study.get("platform") or {}).get("nodes") or []:
        name = str(entry.get("name"))
        if name == node or (entry.get("count") is not None and node.rsplit("-", 1)[0] == name):
            return dict(entry)
    return {}


def _limits(outcome: Outcome, run_id: str, disk_id: str) -> str:
    """The limits that the study declares for a disk in this run, as text; empty without limits."""
    node, _, name = disk_id.partition(".")
    for disk in _declared(outcome, run_id, node).get("disks") or []:
        if str(disk.get("name")) == name and disk.get("limits"):
            text = ", ".join(f"{k} {v}" for k, v in disk["limits"].items())
            for factor, level in outcome.levels(run_id).items():
                text = text.replace(f"{{{factor}}}", level)
            return text
    return ""


def why(outcome: Outcome, run: StragglerRun) -> str:
    """Comparison of the first node with the others: bytes, rate, profile, limits."""
    top = run.loads[0]
    if top.resource == "processors":
        return (
            f"its processors are busy for {percent(top.busy_ns / run.wall_ns)} of the run; "
            "what they do is in no table"
        )
    others = [x for x in run.loads[1:] if x.resource == "disk" and x.nbytes > 0]
    if not others or top.nbytes <= 0:
        return "no other disk served as much as a byte: there is nothing to compare it with"
    nbytes = statistics.median(x.nbytes for x in others)
    rate = statistics.median(x.rate_bps for x in others)
    more, slower = top.nbytes / nbytes, rate / max(top.rate_bps, 1e-9)
    served = (
        f"it served {size(top.nbytes)} at {size(top.rate_bps)}/s, "
        f"the others {size(nbytes)} at {size(rate)}/s in the median"
    )
    causes = []
    if more > _ALIKE:
        causes.append(f"it has {more:.1f} times as much to serve")
    if slower > _ALIKE:
        causes.append(f"it is {slower:.1f} times as slow{_of_what(outcome, run, top, others)}")
    if not causes:
        causes.append("neither explains it on its own")
    return f"{served}: {' and '.join(causes)}"


def _of_what(outcome: Outcome, run: StragglerRun, top: Load, others: list[Load]) -> str:
    """Differences in the declaration of a slow disk, or in its requests."""
    disks = outcome.manifest(run.run_id).get("disks") or {}

    def profile(load: Load) -> str:
        disk = disks.get(load.name) or {}
        return at_speed(str(disk.get("profile")), scale_of(disk) or 1.0)

    differences = []
    theirs = sorted({profile(x) for x in others})
    if profile(top) not in theirs:
        differences.append(f"its profile is {profile(top)}, theirs {', '.join(theirs)}")
    limits = _limits(outcome, run.run_id, top.name)
    if limits and limits not in {_limits(outcome, run.run_id, x.name) for x in others}:
        differences.append(f"its limits are {limits}")
    each = top.nbytes / max(top.requests, 1)
    usual = statistics.median(x.nbytes / max(x.requests, 1) for x in others)
    if usual > _ALIKE * each:
        differences.append(f"its requests are of {size(each)} in the mean, theirs of {size(usual)}")
    if outcome.has_table(run.run_id, "events"):
        differences.append("what changed during the run is in its table `events`")
    return (
        f" ({'; '.join(differences)})" if differences else " (why is in none of the run's tables)"
    )


def describe(outcome: Outcome, rows: list[StragglerRun]) -> str:
    """A statement on runs with the same straggler; the numbers are of the median run."""
    median = sorted(rows, key=lambda row: row.ratio)[len(rows) // 2]
    top, second = median.loads[:2]
    what = f"disk {top.name}" if top.resource == "disk" else "processors"
    verb = "is" if top.resource == "disk" else "are"
    text = (
        f"its {what} {verb} at work {duration(top.busy_ns)} of {duration(median.wall_ns)}, "
        f"{median.ratio:.1f} times as long as anything of the next node ({second.node})"
    )
    if median.after_ns > 0.05 * median.wall_ns:
        text += f", and done {duration(median.after_ns)} after the other disks"
    return f"{text}; {why(outcome, median)}"
