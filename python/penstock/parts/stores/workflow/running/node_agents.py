"""Processes on client nodes that run tasks (`agent.py`), and their answers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import members
from penstock.host.probe.clock_offset import Exchange, offset_of
from penstock.parts.stores.node_processes import has_variable, kill
from penstock.parts.stores.node_script import node_script
from penstock.parts.stores.workflow.running.journal import Row

AGENT = Path(__file__).parents[1] / "agent.py"
#: longest wait for an agent to start, and to end [s]
_READY_WITHIN_S, _LEAVE_WITHIN_S = 30.0, 15.0
#: comparisons of the clock of a node on another host
_EXCHANGES = 16
#: node and answer; an answer without a task is about the node, one with `lost` about servers
Answers = queue.Queue[tuple[str, Row]]


class NodeAgent:
    """Process on one node that runs its tasks. `journal`: the file to which it appends completed ones."""

    def __init__(self, node: RunningNode, answers: Answers, journal: int | None = None) -> None:
        self._name = node.name
        self._here = node.here
        #: clock of the node − ours [ns]
        self._clock_ns = 0
        self._pings = queue.SimpleQueue[tuple[int, int]]()
        self._closed = False
        argv = [sys.executable, "-I", "-u", "-c", node_script(AGENT)]
        self._process = subprocess.Popen(
            node.enter(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=journal,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._write({"ping": True})
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: Answers) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):  # the agent died while writing
                break
            answer = json.loads(line)
            if "ping" in answer:
                self._pings.put((answer["now_ns"], time.monotonic_ns()))
                self._ready.set()
            else:
                answers.put((self._name, answer))
        self._ready.set()
        if not self._closed:
            how = "the process that starts its tasks has died; its tasks died with it"
            answers.put((self._name, {"task": "", "error": how}))

    def wait_ready(self) -> None:
        """Wait until it accepts tasks, or has died; compare its clock if it is on another host."""
        self._ready.wait(_READY_WITHIN_S)
        if not self._here and self._process.poll() is None:
            try:
                self._clock_ns = offset_of(self._exchanges()).offset_ns
            except (queue.Empty, OSError):
                if self._process.poll() is None:
                    raise PenstockError(f"{self._name}: its clock cannot be compared") from None

    def _exchanges(self) -> list[Exchange]:
        self._pings.get(timeout=_READY_WITHIN_S)  # of the start
        exchanges = []
        for _ in range(_EXCHANGES):
            before_ns = time.monotonic_ns()
            self._write({"ping": True})
            exchanges.append(Exchange(before_ns, *self._pings.get(timeout=_READY_WITHIN_S)))
        return exchanges

    def send(self, line: Row) -> None:
        """Send a task."""
        self._write({**line, "clock_ns": self._clock_ns} if self._clock_ns else line)

    def _write(self, line: Row) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write((json.dumps(line) + "\n").encode())
            self._process.stdin.flush()

    def leave(self) -> None:
        """No more tasks; the agent kills those that still run."""
        self._closed = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """Wait until it has ended."""
        self.leave()
        try:
            self._process.wait(_LEAVE_WITHIN_S)
        except subprocess.TimeoutExpired:  # the agent is a child of `penstock-enter`, in its group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def kill_programs(nodes: Iterable[RunningNode], place: str) -> None:
    """Kill the programs of a run on nodes whose agent has died; `place` is the run's directory."""
    mark = f"PENSTOCK_RUN={place}".encode()
    for node in nodes:
        for _ in range(100):  # a program may fork meanwhile
            others = members(node.cgroup.paths.values()) - {node.pid}
            marked = [pid for pid in others if has_variable(pid, mark)]
            if not marked:
                break
            for pid in marked:
                kill(pid)
            time.sleep(0.01)


class Crew:
    """The agents of a run by node, and the queue of their answers."""

    def __init__(self, journal: int | None = None) -> None:
        self.answers: Answers = queue.Queue()
        self._agents: dict[str, NodeAgent] = {}
        self._journal = journal

    def start(self, nodes: Iterable[RunningNode], *, tolerant: bool) -> None:
        """Start an agent on every node; `tolerant`: not on those that are down, if any is up."""
        problem: PenstockError | None = None
        for node in nodes:
            try:
                self._agents[node.name] = NodeAgent(node, self.answers, self._journal)
            except PenstockError as error:
                problem = error
                if not tolerant:
                    raise
        if not self._agents and problem is not None:
            raise problem
        for agent in self._agents.values():
            agent.wait_ready()

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes with an agent."""
        return list(self._agents)

    def send(self, node: str, line: Row) -> None:
        """Send a line to a node. PenstockError if its agent is gone."""
        try:
            self._agents[node].send(line)
        except (KeyError, OSError, ValueError):
            raise PenstockError("the process that starts its tasks is gone") from None

    def lose(self, node: str) -> None:
        """Forget the agent of a dead node."""
        agent = self._agents.pop(node, None)
        if agent is not None:
            agent.leave()

    def close(self) -> None:
        """Kill the processes on the nodes."""
        for agent in self._agents.values():
            agent.leave()
        for agent in self._agents.values():
            agent.close()
