"""Run of a workflow on the nodes of a store: real processes, real files, times of tasks and operations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.hang_guard import watched_servers
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.features import uses_set_xattr
from penstock.parts.stores.workflow.running.executed import Executed, RunFailed, executed, placement
from penstock.parts.stores.workflow.running.loop import Loop
from penstock.parts.stores.workflow.running.node_agents import AGENT, Crew, kill_programs
from penstock.parts.stores.workflow.running.recovery import Recovery, RunRecord
from penstock.parts.stores.workflow.running.resume import Complete, remaining
from penstock.parts.stores.workflow.running.run_files import RunFiles
from penstock.parts.stores.workflow.running.task_lines import TaskLines
from penstock.parts.stores.workflow.schedule import Scheduler
from penstock.spec.store import Extent

__all__ = ["AGENT", "Executed", "RunFailed", "execute", "placement"]


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
    inputs: Mapping[str, Path] | None = None,
    recovery: Recovery | None = None,
    record: RunRecord | None = None,
    finished: Callable[[RunFiles, Collection[str]], None] | None = None,
) -> Executed:
    """Run it once, in a directory of its own; files of earlier runs are removed first.

    `slots`: concurrent tasks per client node; `groups`: the group of each; `speeds`: compute speed of each
    (default: 1); `watched`: detect the death of the store's servers. Pre-existing files are copies of
    `inputs`, or else are written first with random bytes, each by a client that is not bound to read it, and
    dropped from caches, like the output of tasks unless `keep_cache`. Tasks with a command run it; the others
    execute their operations.

    RunFailed if a task fails, if as many storage servers died as there are copies, or after `timeout_s`;
    running tasks are killed. `recovery` permits further attempts and going on without failed tasks. With the
    journal of a `record`, the tasks in it are not repeated if their outputs are there. `finished` is called
    with the files of completed tasks, at the end and after a failure. `interrupted` receives the measurements
    if anything else ends the run (Ctrl-C).
    """
    _check(workload, slots)
    run = _Run(
        workload, store, keep_cache, speeds or {}, recovery, record or RunRecord(), inputs or {}
    )
    by = Scheduling(slots, groups, by_data, stagger_s, pack)
    try:
        with watched_servers(store, run.server_died) if watched else contextlib.nullcontext():
            run.to_its_end(by, time.monotonic() + timeout_s, heard)
        return run.finish(located, finished)
    except RunFailed:
        raise
    except (PenstockError, OSError) as error:
        run.after_failure(finished)
        raise RunFailed(str(error), run.result({})) from error
    except BaseException:
        if interrupted is not None:
            interrupted(run.result({}))
        raise
    finally:
        run.close()


def not_run_text(workload: Workload, run: Executed) -> str:
    """Error message of a run that went on without some tasks."""
    reasons = [
        why for why in run.troubles.not_run.values() if not why.startswith("needs the task ")
    ]
    text = f"{len(run.troubles.not_run)} of {len(workload.tasks)} tasks did not complete"
    if run.troubles.lost:
        text = f"lost files: {', '.join(run.troubles.lost[:10])}; {text}"
    return "; ".join([text, *dict.fromkeys(reasons)][:5])


@dataclass(frozen=True)
class Scheduling:
    """Parameters of the scheduler (`Scheduler`): slots and group of each client node, and its rules."""

    slots: Mapping[str, int]
    groups: Mapping[str, str]
    by_data: bool
    stagger_s: float
    pack: bool


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


class _Run:
    """Parts of one run, and what must be undone at its end."""

    def __init__(
        self,
        workload: Workload,
        store: Store,
        keep_cache: bool,
        speeds: Mapping[str, float],
        recovery: Recovery | None,
        record: RunRecord,
        inputs: Mapping[str, Path],
    ) -> None:
        self._workload = workload
        self._store = store
        self._record = record
        self._inputs = inputs
        self._tolerant = recovery is not None
        journal = record.journal
        self.crew = Crew(None if journal is None else journal.fd)
        self.files = RunFiles(workload, store)
        self._lines = TaskLines(
            self.files,
            store.spec.mount,
            keep_cache,
            speeds,
            record.checksums,
            journal is not None,
        )
        self.loop = Loop(workload, store, self.files, self.crew, self._lines, recovery, record)
        self.finished = False
        self.complete = False
        self._earlier = 0

    def to_its_end(
        self, by: Scheduling, until: float, heard: Callable[[int, int], None] | None
    ) -> None:
        """Prepare it, and run all tasks."""
        complete = self.prepare(until, heard)
        live = {n: s for n, s in by.slots.items() if n in self.crew.nodes or not self._tolerant}
        scheduler = Scheduler(
            self._workload,
            live,
            by.groups,
            by.by_data,
            by.stagger_s,
            by.pack,
            complete=set(complete.tasks),
        )
        if by.by_data:
            names = [f.name for f in self._workload.files if f.preloaded]
            scheduler.extents.update(self.files.located([*names, *complete.files]))
        self.loop.run(scheduler, until, heard)

    def finish(
        self, located: bool, finished: Callable[[RunFiles, Collection[str]], None] | None
    ) -> Executed:
        """The result of a run whose tasks have ended. RunFailed if some did not run."""
        self.finished = True
        if uses_set_xattr(self._workload):
            self.files.take_refusals()
        extents = self.files.located(self.existing()) if located else {}
        if finished is not None:
            finished(self.files, self.existing())
        result = self.result(extents)
        self.complete = not (result.troubles.not_run or result.troubles.lost)
        if not self.complete:
            raise RunFailed(not_run_text(self._workload, result), result)
        return result

    def prepare(self, until: float, heard: Callable[[int, int], None] | None) -> Complete:
        """Create the directory and the pre-existing files; returns the tasks that are complete already."""
        journal, complete = self._record.journal, Complete()
        nodes = self._store.cluster.nodes
        if journal is not None and "directory" in journal.head:
            self.files.again(journal.head["directory"], journal.path)
            kill_programs(nodes.values(), self.files.place)
            complete = remaining(self._workload, self.files, journal)
            self.loop.done.update(complete.tasks)
            self._earlier = len(complete.tasks)
            self.loop.begin_ns = journal.head["begin_ns"]
        else:
            name = self.files.create(None if journal is None else journal.path)
            if journal is not None:
                journal.note(directory=name, begin_ns=time.monotonic_ns(), store=self._store.name)
        self.crew.start((nodes[n] for n in self._store.roles.clients), tolerant=self._tolerant)
        absent = [f for f in self._workload.files if f.preloaded and f.name not in complete.inputs]
        self._copy([f.name for f in absent if f.name in self._inputs], heard)
        self._write([f for f in absent if f.name not in self._inputs], until)
        for running in self._store.cluster.nodes.values():
            running.drop_file_caches()
        return complete

    def _copy(self, names: Sequence[str], heard: Callable[[int, int], None] | None) -> None:
        """Copy inputs of programs into the store, verified; they are in the journal then."""
        if not names:
            return
        sources = {name: self._inputs[name] for name in names}
        staged = self.files.bring(sources, self.crew.nodes[0], heard or (lambda *_: None))
        if self._record.journal is not None:
            rows = [
                {"input": name, "size_bytes": size, "changed": changed, "sha256": sha256}
                for name, (size, changed, sha256) in staged.items()
            ]
            self._record.journal.append(*rows)

    def _write(self, files: Sequence[File], until: float) -> None:
        """Write pre-existing files with random bytes, one client after the other."""
        readers = self._readers()
        for number, file in enumerate(files):
            # a client may cache its writes despite advice to the kernel (ceph-fuse does)
            others = [n for n in self.crew.nodes if n not in readers.get(file.name, ())]
            names = others or self.crew.nodes
            node = names[number % len(names)]
            self.files.tag([file.name], node)
            size = file.size_bytes or self._workload.file_sizes.get(file.name, 0)
            task = Task(f"given {file.name}", (Operation("write", file.name, 0, size),))
            self.crew.send(node, self._lines.line(task, node, {}, keep_cache=False))
            answered = self.loop.answer(until)
            assert answered is not None
            if "lost" in answered[1]:
                raise PenstockError(f"the store lost {', '.join(answered[1]['lost'])}")
            if answered[1]["error"]:
                raise PenstockError(f"{answered[0]}: {file.name}: {answered[1]['error']}")

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
        self.crew.answers.put(("", {"lost": list(lost), "nodes": list(nodes)}))

    def existing(self) -> list[str]:
        """Files that exist now: all if every task is complete."""
        if not (self.loop.troubles.not_run or self.loop.troubles.lost):
            return list(self._workload.file_sizes)
        done = [self._workload.tasks[i] for i in self.loop.done]
        names = [f.name for f in self._workload.files if f.preloaded]
        names += [o.file for task in done for o in task.operations if o.op == "write" and o.file]
        lost = self.loop.troubles.lost
        return [name for name in dict.fromkeys(names) if name not in lost]

    def after_failure(self, finished: Callable[[RunFiles, Collection[str]], None] | None) -> None:
        """Have the results of completed tasks saved, if the store still answers."""
        self.loop.close()
        self.crew.close()
        if finished is None or not self.loop.done:
            return
        done = [self._workload.tasks[i] for i in self.loop.done]
        names = [o.file for task in done for o in task.operations if o.op == "write" and o.file]
        lost = self.loop.troubles.lost
        with contextlib.suppress(PenstockError, OSError):
            finished(self.files, [name for name in dict.fromkeys(names) if name not in lost])

    def result(self, extents: dict[str, list[Extent]]) -> Executed:
        """Tables of the completed tasks."""
        names = (
            {self.files.inside(name): name for name in self.files.paths} if self.loop.done else {}
        )
        answers = {}
        for number, answer in list(self.loop.done.items()):
            files = {names[p]: facts for p, facts in answer.get("outputs", {}).items() if facts}
            answers[number] = {**answer, "files": files}
        return executed(
            self._workload,
            answers,
            self.loop.begin_ns,
            extents=extents,
            tags=self.files.tags,
            troubles=self.loop.troubles,
            earlier=self._earlier,
        )

    def close(self) -> None:
        """Kill the processes on the nodes."""
        self.loop.close()
        self.crew.close()
        if not self.finished:
            self._store.release()  # cancel requests to a store that does not answer
        self.files.ended(complete=self.complete or self._record.journal is None)
