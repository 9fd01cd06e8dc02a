"""The agent that runs tasks on a client node: answers of finished, failed and killed tasks."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.emulate.cluster.cluster import RunningNode
from penstock.parts.stores import node_agent
from penstock.parts.stores.node_processes import MOST_OUTPUT, Output
from penstock.parts.stores.node_script import node_script
from penstock.parts.stores.workflow.execute import AGENT
from penstock.parts.stores.workflow.running.node_agents import Answers, NodeAgent

Agent = subprocess.Popen[str]


@pytest.fixture
def agent() -> Iterator[Agent]:
    argv = [sys.executable, "-I", "-u", "-c", node_script(AGENT)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()


def send(agent: Agent, name: str, *operations: dict[str, Any], **fields: Any) -> None:
    assert agent.stdin is not None
    line = {"task": name, "operations": operations, "keep_cache": True, **fields}
    agent.stdin.write(json.dumps(line) + "\n")
    agent.stdin.flush()


def answer(agent: Agent) -> dict[str, Any]:
    assert agent.stdout is not None
    return dict(json.loads(agent.stdout.readline()))


def compute(seconds: float) -> dict[str, Any]:
    return {"op": "compute", "seconds": seconds}


def child_of(pid: int) -> int:
    """The first process that a process has forked."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while not (pids := children.read_text().split()):
        pass
    return int(pids[0])


def test_the_answer_of_a_killed_task_names_the_signal(agent: Agent) -> None:
    send(agent, "long", compute(600))
    os.kill(child_of(agent.pid), signal.SIGKILL)
    reply = answer(agent)
    assert reply["task"] == "long"
    assert "was killed by signal 9 (SIGKILL)" in reply["error"]
    send(agent, "next", compute(0))  # the agent continues
    assert answer(agent)["error"] == ""


def test_failed_tasks_report_the_reason(agent: Agent, tmp_path: Path) -> None:
    missing = {"op": "read", "path": str(tmp_path / "none"), "offset_bytes": 0, "size_bytes": 1}
    send(agent, "reads", missing)
    assert "No such file" in answer(agent)["error"]
    send(agent, "odd", {"op": "compute"})
    assert answer(agent)["error"] == "KeyError: 'seconds'"


def test_the_launch_time_precedes_the_task(agent: Agent) -> None:
    send(agent, "late", compute(0.01), launch_s=0.2)
    late = answer(agent)
    assert late["started_ns"] - late["forked_ns"] >= 200_000_000
    send(agent, "later", compute(0.01), launch_s=600)
    send(agent, "soon", compute(0.01))  # does not wait for it
    assert answer(agent)["task"] == "soon"


def test_hints_are_set_by_the_task(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "f"
    attributes = {"user.penstock.DP": "local"}
    try:
        os.setxattr(tmp_path, "user.penstock.try", b"x")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    steps = (
        {"op": "set_xattr", "path": str(path), "attributes": attributes},
        {"op": "write", "path": str(path), "offset_bytes": 0, "size_bytes": 10},
    )
    send(agent, "tags", *steps)
    reply = answer(agent)
    assert reply["error"] == ""
    assert [row[0] for row in reply["operations"]] == [0, 1]
    assert os.getxattr(path, "user.penstock.DP") == b"local"
    assert path.stat().st_size == 10


def test_the_end_of_its_input_ends_the_agent(agent: Agent) -> None:
    send(agent, "long", compute(600))
    task = os.pidfd_open(child_of(agent.pid))
    assert agent.stdin is not None
    agent.stdin.close()
    assert agent.wait(timeout=60) == 0
    assert select.select([task], [], [], 60)[0], "the task continues"
    os.close(task)


class FarNode:
    """A node on a host whose clock is ahead of this host's clock."""

    name = "n-0"
    here = False
    ahead_ns = 10**12

    def enter(self, argv: Sequence[str]) -> list[str]:
        clock = f"import time; own = time.monotonic_ns; time.monotonic_ns = lambda: own() + {self.ahead_ns}"
        return [*argv[:-1], f"{clock}\n{argv[-1]}"]


def test_times_of_a_node_on_another_host_are_in_the_local_clock() -> None:
    answers: Answers = queue.Queue()
    far = NodeAgent(cast(RunningNode, FarNode()), answers)
    try:
        far.wait_ready()
        begin_ns = time.monotonic_ns()
        far.send({"task": "t", "operations": [compute(0.0)], "keep_cache": True})
        _, reply = answers.get(timeout=30)
        end_ns = time.monotonic_ns()
    finally:
        far.close()
    ((_, first_ns, last_ns),) = reply["operations"]
    times = [reply["forked_ns"], reply["started_ns"], first_ns, last_ns, reply["ended_ns"]]
    assert times == sorted(times)
    margin_ns = FarNode.ahead_ns // 100
    assert begin_ns - margin_ns < times[0] <= times[-1] < end_ns + margin_ns


def test_times_of_a_killed_task_are_in_the_local_clock(agent: Agent) -> None:
    ahead_ns = 10**12
    send(agent, "long", compute(600), clock_ns=ahead_ns)
    os.kill(child_of(agent.pid), signal.SIGKILL)
    reply = answer(agent)
    now_ns = time.monotonic_ns()
    assert now_ns - 2 * ahead_ns < reply["forked_ns"] <= reply["ended_ns"] <= now_ns - ahead_ns


def test_output_of_a_request_that_is_too_long_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agent, "MOST_OUTPUT", 12)
    assert not node_agent.run(["printf", "é" * 6], 10.0)["too_long"]
    # 7 characters, 14 bytes
    assert node_agent.run(["printf", "é" * 7], 10.0)["too_long"]


def test_character_at_the_border_of_both_halves_of_an_output_is_kept() -> None:
    reads, writes = os.pipe()
    text = "a" * (MOST_OUTPUT // 2 - 1) + "é" + "b"
    with open(writes, "wb") as pipe:
        pipe.write(text.encode())
    output = Output(reads)
    while output.take():
        pass
    os.close(reads)
    assert output.text() == text
