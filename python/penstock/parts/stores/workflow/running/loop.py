"""Scheduling loop of a run: sends ready tasks to nodes, and handles their answers, failures, and deaths."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.running.journal import Row
from penstock.parts.stores.workflow.running.node_agents import Crew, kill_programs
from penstock.parts.stores.workflow.running.recovery import Recovery, RunRecord, Troubles
from penstock.parts.stores.workflow.running.run_files import (
    RunFiles,
    inputs_of,
    outputs_of,
    results_of,
)
from penstock.parts.stores.workflow.running.task_lines import TaskLines, save_texts
from penstock.parts.stores.workflow.schedule import Scheduler
from penstock.text import first_of, listed

#: tasks that are prepared, or whose files are located, concurrently
_TOGETHER = 8
#: files, and tasks, that an error message names
_NAMED = 10
#: attempts that failed with a node or server and count as no failure: a task may be what kills nodes
_MOST_EXCUSED = 3


@dataclass
class _Attempt:
    """A running attempt of a task."""

    host: str
    number: int
    begin_ns: int
    #: fields of its line that its answer repeats
    echo: Row
    #: its answer, while its files are located
    answer: Row | None = None


class Loop:
    """Runs the tasks of a workload on the nodes of a crew. `recovery` None: any failure is an error."""

    def __init__(
        self,
        workload: Workload,
        store: Store,
        files: RunFiles,
        crew: Crew,
        lines: TaskLines,
        recovery: Recovery | None,
        record: RunRecord,
    ) -> None:
        self._workload = workload
        self._store = store
        self._files = files
        self._crew = crew
        self._lines = lines
        self._recovery = recovery
        self._record = record
        self._pool = ThreadPoolExecutor(_TOGETHER)
        self._numbers = {task.name: i for i, task in enumerate(workload.tasks)}
        self._running: dict[int, _Attempt] = {}
        self._attempts: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._deaths: dict[int, int] = {}
        #: time of the last death of a node or server; tasks that began before it may fail because of it
        self._death_ns = 0
        self._scheduler: Scheduler
        self._until = 0.0
        #: answers of completed tasks, by number
        self.done: dict[int, Row] = {}
        self.begin_ns = time.monotonic_ns()
        self.troubles = Troubles()

    def run(
        self,
        scheduler: Scheduler,
        until: float,
        heard: Callable[[int, int], None] | None = None,
    ) -> None:
        """Schedule tasks until all have ended. PenstockError for a failure that is final."""
        self._scheduler, self._until = scheduler, until
        self.begin_ns = self.begin_ns if self.done else time.monotonic_ns()
        while not scheduler.finished:
            self._dispatch()
            wakes_s = scheduler.wakes_s
            if not self._running and wakes_s is None and not scheduler.finished:
                self._nothing_runs()
                continue
            wakes = None if wakes_s is None else self.begin_ns / 1e9 + wakes_s
            answered = self.answer(until, wakes)
            while answered is not None:
                self._handle(*answered)
                if heard is not None:
                    heard(len(self.done), len(self._workload.tasks))
                answered = self._waiting()

    def close(self) -> None:
        """Stop preparing tasks."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _nothing_runs(self) -> None:
        """Handle the case that no remaining task has a node."""
        why = "no task can run: a machine that is named is no client"
        if self.troubles.died:
            why = "no task can run: no node is left for it"
        if self._recovery is None or not self._recovery.keep_going:
            raise PenstockError(why)
        for number in range(len(self._workload.tasks)):
            if number not in self.done:
                self._skip(number, why)

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self.begin_ns) / 1e9

    def _dispatch(self) -> None:
        """Send the tasks that can start."""
        before_ns = time.monotonic_ns()
        started = self._scheduler.next((before_ns - self.begin_ns) / 1e9)
        decided_ns = time.monotonic_ns()
        for number, host in started:
            attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
            ready_s = self._scheduler.ready_s[number]
            echo = {
                "attempt": attempt,
                "host": host,
                "complete_ns": self.begin_ns + round(1e9 * ready_s),
                "ready_ns": before_ns,
                "decision_ns": (decided_ns - before_ns) // len(started),
                "tag_ns": 0,
            }
            self._running[number] = _Attempt(host, attempt, before_ns, echo)
            outputs = outputs_of(self._workload.tasks[number])
            if attempt > 1 or self._files.tagged(outputs):
                self._pool.submit(self._prepare, number, self._running[number])
            else:
                self._send(number, self._running[number])

    def _prepare(self, number: int, attempt: _Attempt) -> None:
        """Remove the outputs of an earlier attempt, apply the hints, then send the task."""
        task = self._workload.tasks[number]
        try:
            if attempt.number > 1:
                self._files.remove(self._files.removable(task), attempt.host)
            begin_ns = time.monotonic_ns()
            self._files.tag(outputs_of(task), attempt.host)
            attempt.echo["tag_ns"] = time.monotonic_ns() - begin_ns
        except Exception as error:  # of a pool thread: without an answer the run would wait
            self._put(number, attempt, str(error) or type(error).__name__)
            return
        self._send(number, attempt)

    def _send(self, number: int, attempt: _Attempt) -> None:
        task = self._workload.tasks[number]
        if self._running.get(number) is not attempt:
            return  # given up while it was prepared
        attempt.echo["sent_ns"] = time.monotonic_ns()
        try:
            self._crew.send(attempt.host, self._lines.line(task, attempt.host, attempt.echo))
        except Exception as error:
            self._put(number, attempt, str(error) or type(error).__name__)

    def _put(self, number: int, attempt: _Attempt, error: str) -> None:
        """Put an answer of our own into the queue."""
        row = {"task": self._workload.tasks[number].name, **attempt.echo, "error": error}
        self._crew.answers.put((attempt.host, row))

    def answer(self, until: float, wakes: float | None = None) -> tuple[str, Row] | None:
        """The next answer of a node; None at `wakes` (CLOCK_MONOTONIC, as `until`)."""
        while True:
            now = time.monotonic()
            if now >= until:
                raise PenstockError("the workflow took longer than it may (--timeout)")
            if wakes is not None and now >= wakes:
                return None
            remaining_s = min(until, wakes if wakes is not None else until) - now
            try:
                return self._crew.answers.get(timeout=min(remaining_s, 1.0))
            except queue.Empty:
                continue

    def _waiting(self) -> tuple[str, Row] | None:
        """An answer that is already there."""
        try:
            return self._crew.answers.get_nowait()
        except queue.Empty:
            return None

    def _handle(self, node: str, answer: Row) -> None:
        if "lost" in answer:
            self._server_died(answer["lost"], answer["nodes"])
            return
        if not answer["task"]:
            self._node_died(node, answer["error"])
            return
        number = self._numbers[answer["task"]]
        attempt = self._running.get(number)
        if attempt is None or answer.get("attempt") != attempt.number:
            return  # of an attempt that was given up
        if answer["error"]:
            if attempt.answer is not None and self._recovery is not None:
                self._complete(number, attempt, attempt.answer)  # only its place is unknown
                return
            save_texts(self._record.logs, answer)
            self._failed(number, attempt, answer["error"])
        elif "extents" in answer:
            self._scheduler.extents.update(answer["extents"])
            assert attempt.answer is not None
            self._complete(number, attempt, {**attempt.answer, "locate_ns": answer["locate_ns"]})
        else:
            answer["heard_ns"] = time.monotonic_ns()
            save_texts(self._record.logs, answer)
            if self._scheduler.by_data:
                attempt.answer = answer
                self._pool.submit(self._find, number, attempt)
            else:
                self._complete(number, attempt, answer)

    def _complete(self, number: int, attempt: _Attempt, answer: Row) -> None:
        del self._running[number]
        self.done[number] = answer
        self._scheduler.ended(number, attempt.host, self._now_s())

    def _find(self, number: int, attempt: _Attempt) -> None:
        """Locate a task's files in the store, from the node where it ran, as a separate answer."""
        task, begin_ns = self._workload.tasks[number], time.monotonic_ns()
        answer: Row = {"task": task.name, "attempt": attempt.number, "error": ""}
        try:
            answer["extents"] = self._files.locate(outputs_of(task), attempt.host)
            answer["locate_ns"] = time.monotonic_ns() - begin_ns
        except Exception as error:
            answer["error"] = f"where its files are: {error}"
        self._crew.answers.put((attempt.host, answer))

    # failures

    def _failed(self, number: int, attempt: _Attempt, error: str) -> None:
        """Schedule another attempt, or end the run, or go on without the task."""
        task = self._workload.tasks[number]
        text = f"task {task.name} on {attempt.host}: {error}"
        if self._recovery is None:
            raise PenstockError(text)
        deaths = self._deaths.get(number, 0)
        excused = attempt.begin_ns <= self._death_ns and deaths < _MOST_EXCUSED
        if excused:
            self._deaths[number] = deaths + 1
        else:
            self._failures[number] = self._failures.get(number, 0) + 1
        failures = self._failures.get(number, 0)
        self._noted(number, attempt, error)
        self._release(number)
        if excused or failures <= self._recovery.retries:
            now_s = self._now_s()
            wait_s = self._recovery.wait_s(1 if excused else failures)
            self._scheduler.again(number, now_s + wait_s, now_s)
            return
        if failures > 1:
            text += f" ({failures} attempts failed)"
        if not self._recovery.keep_going:
            raise PenstockError(text)
        self._skip(number, text)

    def _noted(self, number: int, attempt: _Attempt, error: str) -> None:
        row = {
            "task": self._workload.tasks[number].name,
            "attempt": attempt.number,
            "host": attempt.host,
            "begin_s": (attempt.begin_ns - self.begin_ns) / 1e9,
            "end_s": self._now_s(),
            "error": error,
        }
        self.troubles.attempts.append(row)
        if self._record.journal is not None:
            self._record.journal.append({"failed": row["task"], **row})

    def _release(self, number: int) -> None:
        """Free the slot of an attempt that has ended, or is given up."""
        self._scheduler.freed(self._running.pop(number).host)

    def _skip(self, number: int, why: str) -> None:
        """Do not run a task, nor those that need it."""
        name = self._workload.tasks[number].name
        for one in self._scheduler.skip(number):
            own = self._workload.tasks[one].name
            self.troubles.not_run[own] = why if one == number else f"needs the task {name}"

    def _node_died(self, node: str, error: str) -> None:
        """Run the tasks of a node elsewhere."""
        if self._recovery is None:
            raise PenstockError(f"{node}: {error}")
        if node not in self._crew.nodes:
            return
        self._death_ns = time.monotonic_ns()
        self.troubles.died.append(f"{node} (it gets no further tasks)")
        self._crew.lose(node)
        with contextlib.suppress(KeyError, OSError):
            kill_programs([self._store.cluster.nodes[node]], self._files.place)
        self._scheduler.lost(node)
        for number, attempt in list(self._running.items()):
            if attempt.host == node and attempt.answer is None:
                self._failed(number, attempt, error)
        if not self._crew.nodes:
            raise PenstockError(f"{node}: {error}; no node is left")
        self._store.cluster.refresh()

    # deaths of servers

    def _server_died(self, names: Sequence[str], nodes: Sequence[str]) -> None:
        """Go on if every file still has a copy and the store a manager; else end, or go on with the rest."""
        died = self.troubles.died
        died += [one for one in names if one not in died]
        self._death_ns = time.monotonic_ns()
        storage = {n for n in nodes if n in self._store.roles.storage}
        copies = [h.replicas for h in self._files.hints.values() if h is not None and h.replicas]
        least = min([int(self._store.spec.parameters.get("replicas", 1)), *copies])
        manager = bool(set(nodes) - storage)
        if len(storage) < least and not manager:
            return
        text = f"the store lost {', '.join(names)}: killed, or ended"
        if manager or self._recovery is None:
            copy = "the only copy" if least == 1 else f"all {least} copies"
            raise PenstockError(f"{text}; files may have {copy} there")
        self._store.cluster.refresh()
        lost = self.troubles.lost = self._lost_files(storage)
        named = f"lost files: {listed(first_of(lost, _NAMED))}" if lost else "no file is lost"
        if not self._recovery.keep_going:
            raise PenstockError(f"{text}; {named}")
        for number, attempt in list(self._running.items()):
            task = self._workload.tasks[number]
            if attempt.answer is None and self._files.lost(outputs_of(task), self._node, storage):
                self._cancel(number, attempt)
                self._failed(number, attempt, "a part of its output is lost")
        for number, task in enumerate(self._workload.tasks):
            gone = [name for name in inputs_of(task) if name in lost]
            if gone and number not in self.done:
                self._give_up(number)
                self._skip(number, f"its input {gone[0]} is lost")

    @property
    def _node(self) -> str:
        """A live client node."""
        return self._crew.nodes[0]

    def _lost_files(self, dead: Collection[str]) -> list[str]:
        """Files lost with these nodes' servers that remaining tasks read, or that are results."""
        written = {n for i in self.done for n in outputs_of(self._workload.tasks[i])}
        written |= {f.name for f in self._workload.files if f.preloaded}
        rest = [t for i, t in enumerate(self._workload.tasks) if i not in self.done]
        used = dict.fromkeys(name for task in rest for name in inputs_of(task))
        used |= dict.fromkeys(results_of(self._workload))
        return self._files.lost([name for name in used if name in written], self._node, dead)

    def _give_up(self, number: int) -> None:
        """Kill an attempt that runs."""
        attempt = self._running.get(number)
        if attempt is not None:
            self._cancel(number, attempt)
            self._release(number)

    def _cancel(self, number: int, attempt: _Attempt) -> None:
        with contextlib.suppress(PenstockError):
            self._crew.send(attempt.host, {"cancel": self._workload.tasks[number].name})
