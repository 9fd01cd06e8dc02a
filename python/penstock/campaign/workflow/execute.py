"""Runs a workflow on the nodes of a store: real processes, real files, what each task and operation took."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.campaign.workflow.hints import tags_of
from penstock.campaign.workflow.schedule import Scheduler
from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import BadInput, PenstockError
from penstock.host.journal import new_token
from penstock.host.residency import drop_file_cache
from penstock.spec.store import Extent
from penstock.store.store import Store
from penstock.store.tags import Tagged
from penstock.workload.workflow import Hints, Operation, Task, Workload

AGENT = Path(__file__).with_name("agent.py")
#: where the files of a run lie in the store, with a token behind it: clients may keep what they knew of a
#: folder for a while (MooseFS: one second), and would not find what is new in another of its name
FOLDER = "workflow-"
_LEAVE_WITHIN_S = 10.0
#: tasks that are prepared and sent at the same time
_TOGETHER = 8

Row = dict[str, Any]


@dataclass
class Executed:
    """A run of a workflow: seconds from its first task's dispatch to the end of its last; tables of rows.

    `tags` is what became of the hints; `extents` where the files lay at its end, by name; `begin_ns` when the
    first task was dispatched (CLOCK_MONOTONIC).
    """

    makespan_s: float
    tasks: pa.Table
    operations: pa.Table
    tags: list[Tagged] = field(default_factory=list)
    extents: dict[str, list[Extent]] = field(default_factory=dict)
    begin_ns: int = 0

    def spans(self) -> dict[str, tuple[float, float]]:
        """By stage, in the order of their begin: when its first task was ready, when its last ended [s]."""
        found: dict[str, tuple[float, float]] = {}
        for task in sorted(self.tasks.to_pylist(), key=lambda t: t["ready_s"]):
            first, last = found.get(task["stage"], (task["ready_s"], task["end_s"]))
            found[task["stage"]] = (first, max(last, task["end_s"]))
        return found


def placement(run: Executed) -> dict[str, list[dict[str, Any]]]:
    """Where the files lay, as `penstock predict --placement` takes it."""
    return {
        name: [
            {
                "offset_bytes": e.offset_bytes,
                "length_bytes": e.length_bytes,
                "hosts": list(e.nodes),
            }
            for e in extents
        ]
        for name, extents in run.extents.items()
    }


def execute(
    workload: Workload,
    store: Store,
    *,
    slots: Mapping[str, int],
    groups: Mapping[str, str],
    by_data: bool = False,
    keep_cache: bool = False,
    located: bool = True,
    timeout_s: float = 3600.0,
    heard: Callable[[int, int], None] | None = None,
) -> Executed:
    """Runs it once, in a folder of its own, which is removed before the next run.

    `slots`: tasks that each client node takes at once; `groups`: the group of each. Files that exist before
    are written first, each by a client that is not bound to read it, and dropped from caches, as what tasks
    write is unless `keep_cache`. PenstockError where a task fails (the others are stopped), after
    `timeout_s`, or where a node dies.
    """
    _check(workload, slots)
    runner = _Runner(workload, store, keep_cache)
    try:
        runner.prepare()
        scheduler = Scheduler(workload, slots, groups, by_data)
        if by_data:
            scheduler.extents.update(runner.locate([f.name for f in workload.files if f.preloaded]))
        begin = runner.run(scheduler, time.monotonic() + timeout_s, heard)
        extents = runner.locate(list(workload.file_sizes)) if located else {}
        return runner.result(begin, extents)
    finally:
        runner.close()


def _check(workload: Workload, slots: Mapping[str, int]) -> None:
    """Refuses what cannot be run for real."""
    for task in workload.tasks:
        for operation in task.operations:
            if operation.op == "compute" and not isinstance(operation.seconds, int | float):
                raise BadInput(
                    f"task {task.name}: found a distribution of computing; expected a number of seconds"
                )
    if not slots:
        raise BadInput("found no client node; expected at least one")


class _Runner:
    def __init__(self, workload: Workload, store: Store, keep_cache: bool) -> None:
        self._workload = workload
        self._store = store
        self._keep_cache = keep_cache
        self._answers: queue.Queue[tuple[str, Row | None]] = queue.Queue()
        self._agents: dict[str, _Agent] = {}
        self._folder = f"{FOLDER}{new_token()}"
        self._hints: dict[str, Hints | None] = {f.name: f.hints for f in workload.files}
        self._rows: list[Row] = [{} for _ in workload.tasks]
        self._done: list[Row] = []
        self._tags: list[Tagged] = []
        self._pool = ThreadPoolExecutor(_TOGETHER)
        self._numbers = {task.name: i for i, task in enumerate(workload.tasks)}
        nodes = store.cluster.nodes
        for name in store.roles.clients:
            self._agents[name] = _Agent(nodes[name], self._answers)

    def prepare(self) -> None:
        """An empty folder, and the files that exist before, one client after the other."""
        client = self._store.client()
        earlier = ["find", self._store.inside("/"), "-maxdepth", "1", "-name", f"{FOLDER}*"]
        for words in (
            [*earlier, "-exec", "rm", "-rf", "--", "{}", "+"],
            ["mkdir", self._store.inside(self._folder)],
        ):
            self._store.run(client, words, what="the workflow's folder")
        given = [f for f in self._workload.files if f.preloaded]
        readers = self._readers()
        for number, file in enumerate(given):
            # a client may keep what it wrote where no advice to the kernel reaches (ceph-fuse does)
            others = [n for n in self._agents if n not in readers.get(file.name, ())]
            names = others or list(self._agents)
            node = names[number % len(names)]
            self._tag(file.name, file.hints, node)
            size = file.size_bytes or self._workload.file_sizes.get(file.name, 0)
            write = Operation("write", file.name, 0, size)
            self._agents[node].send(
                self._line(Task(f"given {file.name}", (write,)), keep_cache=False)
            )
            self._await_one(f"given {file.name}")
        for running in self._store.cluster.nodes.values():
            for disk in running.disks.values():
                drop_file_cache(disk.at)

    def _readers(self) -> dict[str, set[str]]:
        """By file, the nodes on which tasks that must run there read it."""
        found: dict[str, set[str]] = {}
        for task in self._workload.tasks:
            if task.machine is not None:
                for one in task.operations:
                    if one.op == "read" and one.file is not None:
                        found.setdefault(one.file, set()).add(task.machine)
        return found

    def _await_one(self, name: str) -> None:
        node, answer = self._answers.get(timeout=3600)
        if answer is None:
            raise PenstockError(f"{node}: what runs the tasks has ended")
        if answer["error"]:
            raise PenstockError(f"{name} on {node}: {answer['error']}")

    def _tag(self, name: str, hints: Hints | None, node: str) -> None:
        tags = tags_of(hints)
        if tags:
            done = self._store.tag(f"{self._folder}/{name}", tags, node=node, create=True)
            # under the workflow's own name: the folder is of this run alone
            self._tags += [replace(one, path=name) for one in done]

    def run(
        self, scheduler: Scheduler, until: float, heard: Callable[[int, int], None] | None
    ) -> int:
        """Until every task has ended; gives when the first was sent [ns]."""
        tasks, ended = self._workload.tasks, 0
        begin = time.monotonic_ns()
        where: dict[int, str] = {}
        while not scheduler.finished:
            ready_ns = time.monotonic_ns()
            for number, host in scheduler.next():
                where[number] = host
                self._rows[number] = {"host": host, "ready_ns": ready_ns}
                self._pool.submit(self._send, number, host, begin)
            if not where:
                raise PenstockError("no task can run: a machine that is named is no client")
            node, answer = self._answer(until)
            if answer is None:
                raise PenstockError(f"{node}: what runs the tasks has ended")
            number = self._numbers[answer["task"]]
            if answer["error"]:
                raise PenstockError(f"task {answer['task']} on {node}: {answer['error']}")
            if "extents" in answer:
                scheduler.extents.update(answer["extents"])
            else:
                self._done.append(answer)
                if scheduler.by_data:
                    self._pool.submit(self._find, number, node)
                    continue
            scheduler.ended(number, where.pop(number))
            ended += 1
            if heard is not None:
                heard(ended, len(tasks))
        return begin

    def _answer(self, until: float) -> tuple[str, Row | None]:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise PenstockError("the workflow took longer than it may")
            try:
                return self._answers.get(timeout=min(left, 1.0))
            except queue.Empty:
                continue

    def _send(self, number: int, host: str, begin: int) -> None:
        """Hints of what it will write, then the task itself."""
        task = self._workload.tasks[number]
        try:
            if task.not_before_s:
                time.sleep(max(0.0, task.not_before_s - (time.monotonic_ns() - begin) / 1e9))
            for name in self._written(task):
                self._tag(name, self._hints.get(name), host)
            self._rows[number]["sent_ns"] = time.monotonic_ns()
            self._agents[host].send(self._line(task, keep_cache=self._keep_cache))
        except (PenstockError, OSError) as error:
            self._answers.put((host, {"task": task.name, "error": str(error)}))

    def _find(self, number: int, node: str) -> None:
        """Where the store has put what a task wrote, asked on the node where it ran; an answer of its own."""
        task = self._workload.tasks[number]
        answer: Row = {"task": task.name, "error": ""}
        try:
            answer["extents"] = self.locate(self._written(task), node)
        except (PenstockError, OSError) as error:
            answer["error"] = f"where its files are: {error}"
        self._answers.put((node, answer))

    def _written(self, task: Task) -> list[str]:
        names = (o.file for o in task.operations if o.op == "write" and o.file is not None)
        return list(dict.fromkeys(names))

    def _line(self, task: Task, *, keep_cache: bool) -> Row:
        operations = []
        for one in task.operations:
            said: Row = {"op": one.op}
            if one.op == "compute":
                said["seconds"] = one.seconds
            elif one.file is not None:
                said |= {"path": self._store.inside(f"{self._folder}/{one.file}")}
                said |= {"offset_bytes": one.offset_bytes, "size_bytes": one.size_bytes}
            operations.append(said)
        return {"task": task.name, "operations": operations, "keep_cache": keep_cache}

    def locate(self, names: list[str], node: str | None = None) -> dict[str, list[Extent]]:
        """Where these files are, as a client node is told (default: the first that runs)."""
        return {name: self._store.locate(f"{self._folder}/{name}", node) for name in names}

    def result(self, begin: int, extents: dict[str, list[Extent]]) -> Executed:
        """The tables, times in seconds from the first dispatch."""
        tasks, operations = [], []
        for answer in self._done:
            number = self._numbers[answer["task"]]
            task, row = self._workload.tasks[number], self._rows[number]
            seconds = {k: (row[f"{k}_ns"] - begin) / 1e9 for k in ("ready", "sent")}
            tasks.append(
                {
                    "task": task.name,
                    "stage": task.stage or task.name,
                    "host": row["host"],
                    "ready_s": seconds["ready"],
                    "sent_s": seconds["sent"],
                    "start_s": (answer["started_ns"] - begin) / 1e9,
                    "end_s": (answer["ended_ns"] - begin) / 1e9,
                }
            )
            for index, start_ns, end_ns in answer["operations"]:
                one = task.operations[index]
                operations.append(
                    {
                        "task": task.name,
                        "number": index,
                        "op": one.op,
                        "file": one.file,
                        "offset_bytes": one.offset_bytes,
                        "size_bytes": one.size_bytes,
                        "start_s": (start_ns - begin) / 1e9,
                        "end_s": (end_ns - begin) / 1e9,
                    }
                )
        makespan_s = max(t["end_s"] for t in tasks)
        return Executed(
            makespan_s,
            pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow),
            pa.Table.from_pylist(operations, TABLES["workflow_operations"].arrow),
            self._tags,
            extents,
            begin,
        )

    def close(self) -> None:
        """Ends what runs on the nodes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for agent in self._agents.values():
            agent.close()


class _Agent:
    """The process on one node that runs its tasks."""

    def __init__(self, node: RunningNode, answers: queue.Queue[tuple[str, Row | None]]) -> None:
        self._node = node
        self._closed = False
        words = [sys.executable, "-I", "-u", "-c", AGENT.read_text()]
        self._process = subprocess.Popen(
            node.enter(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.Queue[tuple[str, Row | None]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answers.put((self._node.name, json.loads(line)))
        if not self._closed:
            answers.put((self._node.name, None))

    def send(self, line: Row) -> None:
        """Hands a task over."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write((json.dumps(line) + "\n").encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """No task comes any more; tasks that still run are ended with it."""
        self._closed = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_LEAVE_WITHIN_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
