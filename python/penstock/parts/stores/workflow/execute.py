"""Run of a workflow on the nodes of a store: real processes, real files, times of tasks and operations."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import BadInput, PenstockError
from penstock.host.storage.residency import drop_file_cache
from penstock.parts.prediction.workloads.task import Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.hang_guard import watched_servers
from penstock.parts.stores.hints import attribute
from penstock.parts.stores.store import Store
from penstock.parts.stores.tags import Tagged
from penstock.parts.stores.workflow.features import uses_set_xattr
from penstock.parts.stores.workflow.folder import RunFolder, paths_of, remove_earlier
from penstock.parts.stores.workflow.hints import tags_of
from penstock.parts.stores.workflow.schedule import Scheduler
from penstock.spec.store import Extent, refused

AGENT = Path(__file__).with_name("agent.py")
_LEAVE_WITHIN_S = 10.0
#: tasks that are prepared and sent concurrently
_TOGETHER = 8

Row = dict[str, Any]


@dataclass
class Executed:
    """A run of a workflow: seconds from its first task's dispatch to the end of its last; tables of rows.

    `tags` has the results of the hints; `extents` the locations of the files at the end, by name; `begin_ns`
    the first dispatch (CLOCK_MONOTONIC).
    """

    makespan_s: float
    tasks: pa.Table
    operations: pa.Table
    tags: list[Tagged] = field(default_factory=list)
    extents: dict[str, list[Extent]] = field(default_factory=dict)
    begin_ns: int = 0
    #: servers that died during the run, without loss of a file
    died: list[str] = field(default_factory=list)

    def spans(self) -> dict[str, tuple[float, float]]:
        """By stage, in order of start: first task ready, last task ended [s]."""
        spans: dict[str, tuple[float, float]] = {}
        for task in sorted(self.tasks.to_pylist(), key=lambda t: t["ready_s"]):
            first, last = spans.get(task["stage"], (task["ready_s"], task["end_s"]))
            spans[task["stage"]] = (first, max(last, task["end_s"]))
        return spans


def placement(run: Executed) -> dict[str, list[dict[str, Any]]]:
    """Locations of the files, as input of `penstock predict --placement`."""
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


class RunFailed(PenstockError):  # noqa: N818 - reads as what it is
    """A run that failed; `executed` has its measurements until then."""

    def __init__(self, text: str, executed: Executed) -> None:
        super().__init__(text)
        self.executed = executed


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
    speeds: Mapping[str, float] | None = None,
    stagger_s: float = 0.0,
    pack: bool = False,
    watched: bool = True,
    heard: Callable[[int, int], None] | None = None,
    interrupted: Callable[[Executed], None] | None = None,
) -> Executed:
    """Run it once, in a directory of its own; files of earlier runs are removed first.

    `slots`: concurrent tasks per client node; `groups`: the group of each; `speeds`: compute speed of each
    (default: 1); `watched`: detect the death of the store's servers. Pre-existing files are written first,
    each by a client that is not bound to read it, and dropped from caches, like the output of tasks unless
    `keep_cache`. RunFailed if a task fails or crashes, if as many storage servers died as there are copies,
    or after `timeout_s`; running tasks are killed. `interrupted` receives the measurements if anything else
    ends the run (Ctrl-C).
    """
    _check(workload, slots)
    runner = _Runner(workload, store, keep_cache, speeds or {})
    try:
        with watched_servers(store, runner.server_died) if watched else contextlib.nullcontext():
            until = time.monotonic() + timeout_s
            runner.prepare(until)
            scheduler = Scheduler(workload, slots, groups, by_data, stagger_s, pack)
            if by_data:
                preloaded = [f.name for f in workload.files if f.preloaded]
                scheduler.extents.update(runner.locate(preloaded))
            runner.run(scheduler, until, heard)
        runner.finished()
        if uses_set_xattr(workload):
            runner.take_refusals()
        extents = runner.locate(list(workload.file_sizes)) if located else {}
        return runner.result(extents)
    except PenstockError as error:
        raise RunFailed(str(error), runner.result({})) from error
    except BaseException:
        if interrupted is not None:
            interrupted(runner.result({}))
        raise
    finally:
        runner.close()


def _check(workload: Workload, slots: Mapping[str, int]) -> None:
    """Refuse workloads that cannot be executed."""
    for task in workload.tasks:
        for time_of, what in (
            (task.launch, "launch"),
            *((o.seconds, "seconds") for o in task.operations),
        ):
            if time_of is not None and not isinstance(time_of, int | float):
                raise BadInput(
                    f"task {task.name}: found a distribution of {what}; expected a number"
                )
    if not slots:
        raise BadInput("found no client node; expected at least one")


class _Runner:
    def __init__(
        self, workload: Workload, store: Store, keep_cache: bool, speeds: Mapping[str, float]
    ) -> None:
        self._workload = workload
        self._store = store
        self._keep_cache = keep_cache
        self._speeds = speeds
        self._answers: queue.Queue[tuple[str, Row]] = queue.Queue()
        self._agents: dict[str, _Agent] = {}
        used = (o.file for task in workload.tasks for o in task.operations if o.file is not None)
        self._paths = paths_of(dict.fromkeys((*workload.file_sizes, *used)))
        self._folder: RunFolder | None = None
        self._hints: dict[str, Hints | None] = {f.name: f.hints for f in workload.files}
        self._rows: list[Row] = [{} for _ in workload.tasks]
        self._done: list[Row] = []
        self._tags: list[Tagged] = []
        self._died: list[str] = []
        self._finished = False
        self._begin_ns = time.monotonic_ns()
        self._pool = ThreadPoolExecutor(_TOGETHER)
        self._numbers = {task.name: i for i, task in enumerate(workload.tasks)}

    def prepare(self, until: float) -> None:
        """Create the directory and the pre-existing files, one client after the other."""
        remove_earlier(self._store)
        self._folder = RunFolder(self._store, list(self._paths.values()))
        nodes = self._store.cluster.nodes
        for name in self._store.roles.clients:
            self._agents[name] = _Agent(nodes[name], self._answers)
        preloaded = [f for f in self._workload.files if f.preloaded]
        readers = self._readers()
        for number, file in enumerate(preloaded):
            # a client may cache its writes despite advice to the kernel (ceph-fuse does)
            others = [n for n in self._agents if n not in readers.get(file.name, ())]
            names = others or list(self._agents)
            node = names[number % len(names)]
            self._tag(file.name, file.hints, node)
            size = file.size_bytes or self._workload.file_sizes.get(file.name, 0)
            task = Task(f"given {file.name}", (Operation("write", file.name, 0, size),))
            self._agents[node].send(self._line(task, node, keep_cache=False))
            self._answer(until)
        for running in self._store.cluster.nodes.values():
            for disk in running.disks.values():
                drop_file_cache(disk.at)

    def _readers(self) -> dict[str, set[str]]:
        """By file, nodes with tasks that must run there and read it."""
        by_file: dict[str, set[str]] = {}
        for task in self._workload.tasks:
            if task.machine is not None:
                for one in task.operations:
                    if one.op == "read" and one.file is not None:
                        by_file.setdefault(one.file, set()).add(task.machine)
        return by_file

    def server_died(self, lost: Sequence[str], nodes: Sequence[str]) -> None:
        """Handle dead servers of the store: `lost` has their names, `nodes` their nodes."""
        self._answers.put(("", {"lost": list(lost), "nodes": list(nodes)}))

    def _at(self, name: str) -> str:
        """Path in the store of a file of the workload."""
        assert self._folder is not None
        return f"{self._folder.name}/{self._paths[name]}"

    def _tag(self, name: str, hints: Hints | None, node: str) -> None:
        tags = tags_of(hints)
        if tags:
            done = self._store.tag(self._at(name), tags, node=node, create=True)
            # under the workflow's own name: the directory belongs to this run only
            self._tags += [replace(one, path=name) for one in done]

    def finished(self) -> None:
        """Wait until every task has ended."""
        self._finished = True

    def take_refusals(self) -> None:
        """Collect refused hints of tasks. PenstockError if the store applies none."""
        assert self._folder is not None
        watch = self._store.status().get("watch") or {"trouble": "nothing watches for them"}
        if "trouble" in watch:
            raise PenstockError(f"hints that tasks set are not taken up: {watch['trouble']}")
        names = {f"/{self._folder.name}/{path}": name for name, path in self._paths.items()}
        for one in watch["refused"]:
            name = names.get(one["path"].removeprefix(self._store.spec.mount))
            if name is not None:
                self._tags.append(Tagged(name, one["key"], one["value"], refused(one["why"])))

    def run(
        self, scheduler: Scheduler, until: float, heard: Callable[[int, int], None] | None
    ) -> None:
        """Schedule tasks until all have ended."""
        tasks, ended = self._workload.tasks, 0
        begin = self._begin_ns = time.monotonic_ns()
        where: dict[int, str] = {}
        while not scheduler.finished:
            ready_ns = time.monotonic_ns()
            for number, host in scheduler.next((ready_ns - begin) / 1e9):
                where[number] = host
                self._rows[number] = {"host": host, "ready_ns": ready_ns}
                self._pool.submit(self._send, number, host)
            wakes_s = scheduler.wakes_s
            if not where and wakes_s is None:
                raise PenstockError("no task can run: a machine that is named is no client")
            wakes = None if wakes_s is None else begin / 1e9 + wakes_s
            answered = self._answer(until, wakes)
            if answered is None:
                continue
            node, answer = answered
            number = self._numbers[answer["task"]]
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

    def _answer(self, until: float, wakes: float | None = None) -> tuple[str, Row] | None:
        """The next answer of a node; None at `wakes` (CLOCK_MONOTONIC, as `until`).

        PenstockError that names the failed task or node.
        """
        while True:
            now = time.monotonic()
            if now >= until:
                raise PenstockError("the workflow took longer than it may (--timeout)")
            if wakes is not None and now >= wakes:
                return None
            try:
                remaining_s = min(until, wakes if wakes is not None else until) - now
                node, answer = self._answers.get(timeout=min(remaining_s, 1.0))
            except queue.Empty:
                continue
            if "lost" in answer:
                self._judge_loss(answer)
                continue
            if answer["error"]:
                of = f"task {answer['task']} on " if answer["task"] else ""
                raise PenstockError(f"{of}{node}: {answer['error']}")
            return node, answer

    def _judge_loss(self, answer: Row) -> None:
        """Continue if every file still has a copy and the store a manager; else PenstockError."""
        self._died += [one for one in answer["lost"] if one not in self._died]
        storage = {n for n in answer["nodes"] if n in self._store.roles.storage}
        copies = [h.replicas for h in self._hints.values() if h is not None and h.replicas]
        least = min([int(self._store.spec.parameters.get("replicas", 1)), *copies])
        if len(storage) >= least or set(answer["nodes"]) - storage:
            copy = "the only copy" if least == 1 else f"all {least} copies"
            raise PenstockError(
                f"the store lost {', '.join(self._died)}: killed, or ended; files may have {copy} there"
            )

    def _send(self, number: int, host: str) -> None:
        """Apply the hints of the task's output, then send it."""
        task = self._workload.tasks[number]
        try:
            for name in self._written(task):
                self._tag(name, self._hints.get(name), host)
            self._rows[number]["sent_ns"] = time.monotonic_ns()
            self._agents[host].send(self._line(task, host, keep_cache=self._keep_cache))
        except (PenstockError, OSError) as error:
            self._answers.put((host, {"task": task.name, "error": str(error)}))

    def _find(self, number: int, node: str) -> None:
        """Locate a task's files in the store, from the node where it ran, as a separate answer."""
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

    def _line(self, task: Task, host: str, *, keep_cache: bool) -> Row:
        """A task in the format of a host's agent."""
        operations = []
        for one in task.operations:
            row: Row = {"op": one.op}
            if one.op == "compute":
                assert isinstance(one.seconds, int | float)
                row["seconds"] = one.seconds / self._speeds.get(host, 1.0)
            elif one.file is not None:
                row |= {"path": self._store.inside(self._at(one.file))}
                row |= {"offset_bytes": one.offset_bytes, "size_bytes": one.size_bytes}
            if one.op == "set_xattr":
                row["attributes"] = {attribute(k): v for k, v in tags_of(one.hints).items()}
            operations.append(row)
        return {
            "task": task.name,
            "operations": operations,
            "keep_cache": keep_cache,
            "launch_s": task.launch or 0.0,
        }

    def locate(self, names: list[str], node: str | None = None) -> dict[str, list[Extent]]:
        """Extents of these files, from a client node (default: the first live one)."""
        return {name: self._store.locate(self._at(name), node) for name in names}

    def result(self, extents: dict[str, list[Extent]]) -> Executed:
        """Tables of the completed tasks, times in seconds from the first dispatch."""
        tasks, operations, begin = [], [], self._begin_ns
        for answer in list(self._done):
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
        makespan_s = max((t["end_s"] for t in tasks), default=0.0)
        return Executed(
            makespan_s,
            pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow),
            pa.Table.from_pylist(operations, TABLES["workflow_operations"].arrow),
            self._tags,
            extents,
            begin,
            self._died,
        )

    def close(self) -> None:
        """Kill the processes on the nodes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for agent in self._agents.values():
            agent.close()
        if not self._finished:
            self._store.release()  # cancel requests to a store that does not answer
        if self._folder is not None:
            self._folder.ended()


class _Agent:
    """Process on one node that runs its tasks."""

    def __init__(self, node: RunningNode, answers: queue.Queue[tuple[str, Row]]) -> None:
        self._node = node
        self._closed = False
        argv = [sys.executable, "-I", "-u", "-c", AGENT.read_text()]
        self._process = subprocess.Popen(
            node.enter(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.Queue[tuple[str, Row]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # a partial line: the agent died while writing
                answers.put((self._node.name, json.loads(line)))
        if not self._closed:
            how = "the process that starts its tasks has died; its tasks died with it"
            answers.put((self._node.name, {"task": "", "error": how}))

    def send(self, line: Row) -> None:
        """Send a task."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write((json.dumps(line) + "\n").encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """No more tasks; the agent kills those that still run."""
        self._closed = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_LEAVE_WITHIN_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
