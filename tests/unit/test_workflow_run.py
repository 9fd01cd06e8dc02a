"""The runner of workflows without a store: programs, journal, repeated tasks, retries, remaining time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.formats.wfformat_rules import FLAT
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.task import Command, File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.node_processes import MOST_OUTPUT
from penstock.parts.stores.node_script import node_script
from penstock.parts.stores.workflow.execute import AGENT
from penstock.parts.stores.workflow.hints import hints_of_graph
from penstock.parts.stores.workflow.options import RunOptions
from penstock.parts.stores.workflow.remaining import remaining_s
from penstock.parts.stores.workflow.running.journal import RunJournal
from penstock.parts.stores.workflow.running.programs import (
    emulated,
    inputs_on_host,
    runs_programs,
)
from penstock.parts.stores.workflow.running.recovery import Recovery
from penstock.parts.stores.workflow.running.resume import repeated
from penstock.parts.stores.workflow.running.run_files import RunFiles, outputs_of_one
from penstock.parts.stores.workflow.running.task_lines import log_name, save_texts
from penstock.parts.stores.workflow.schedule import Scheduler
from penstock.parts.stores.workflow.spread import difference_of, mean_of
from penstock.spec.store import Extent
from tests.support.waiting import wait_for_end


def steps(reads: tuple[str, ...], *writes: str) -> tuple[Operation, ...]:
    return (
        *(Operation("read", name, 0, 10) for name in reads),
        *(Operation("write", name, 0, 10) for name in writes),
    )


FLOW = Workload(
    "flow",
    (File("in", 10, preloaded=True),),
    (
        Task("a", steps(("in",), "x"), command=Command("sort", ("in", "-o", "x"))),
        Task("b", steps(("x",), "y"), command=Command("sort", ("x", "-o", "y"))),
        Task("c", steps(("x",), "z"), command=Command("no-such-program")),
        Task("d", steps(("y",), "e"), command=Command("/no/such/program")),
    ),
)


@pytest.mark.parametrize("version", ["1.2", "1.3", "1.4", "1.5", "1.6"])
def test_commands_of_each_version_are_read_and_written(version: str, tmp_path: Path) -> None:
    command = {"program": "sort", "arguments": ["-o", "b", "a"]}
    if version in FLAT:
        names = FLAT[version]
        files = [
            {"link": "input", "name": "a", names.size: 10},
            {"link": "output", "name": "b", names.size: 10},
        ]
        base = {"name": "t", "type": "compute", "parents": [], names.runtime: 1}
        workflow: dict[str, Any] = {names.tasks: [{**base, "files": files, "command": command}]}
    else:
        base = {"name": "t", "id": "t", "parents": [], "children": []}
        sizes = [{"id": name, "sizeInBytes": 10} for name in "ab"]
        tasks = [{**base, "inputFiles": ["a"], "outputFiles": ["b"]}]
        run = {"id": "t", "runtimeInSeconds": 1, "command": command}
        workflow = {
            "specification": {"tasks": tasks, "files": sizes},
            "execution": {"makespanInSeconds": 1, "executedAt": "2024-05-01", "tasks": [run]},
        }
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"name": "w", "schemaVersion": version, "workflow": workflow}))
    workload = read_workload(path)
    assert workload.tasks[0].command == Command("sort", ("-o", "b", "a"))
    native = tmp_path / "native.json"
    native.write_text(workload.to_json())
    assert read_workload(native) == workload


def test_invalid_commands_are_named(tmp_path: Path) -> None:
    tasks = [
        {"name": "t", "operations": [{"op": "compute", "seconds": 0}], "command": {"program": 3}}
    ]
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"schema": "penstock/workload/1", "name": "w", "tasks": tasks}))
    with pytest.raises(BadInput, match=r"found 3; expected the name of a program, of the task 't'"):
        read_workload(path)
    tasks[0]["command"] = {"program": "sort", "arguments": "-u"}
    path.write_text(json.dumps({"schema": "penstock/workload/1", "name": "w", "tasks": tasks}))
    with pytest.raises(BadInput, match=r"expected a list of texts as `arguments`"):
        read_workload(path)


def test_arguments_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    text = """
schema: penstock/workload/1
tasks:
  - {name: t, operations: [{op: compute, seconds: 0}], command: {program: sort, arguments: [ARGUMENTS]}}
"""
    path = tmp_path / "w.yaml"
    for argument, shown in (("true", "true"), ("1.10", "1.1")):
        path.write_text(text.replace("ARGUMENTS", f"-k, {argument}"))
        with pytest.raises(BadInput, match=rf":4:\d+: found {shown}; expected a text in quotes"):
            read_workload(path)
    path.write_text(text.replace("ARGUMENTS", "-k, 2, '1.10', 'true'"))
    command = read_workload(path).tasks[0].command
    assert command is not None
    assert command.arguments == ("-k", "2", "1.10", "true")


def test_all_absent_programs_and_inputs_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        inputs_on_host(FLOW, tmp_path)
    programs, inputs, rest = str(error.value).splitlines()
    assert "found 2 programs of 2 tasks that are not installed" in programs
    assert "no-such-program and /no/such/program" in programs
    assert f"found 1 of 1 input files not in {tmp_path}: in; expected" in inputs
    assert "`penstock predict`" in rest
    assert "--emulate" in rest
    (tmp_path / "in").write_text("x")
    installed = replace(FLOW, tasks=FLOW.tasks[:2])
    assert inputs_on_host(installed, tmp_path) == {"in": tmp_path / "in"}
    assert not runs_programs(emulated(FLOW))
    assert inputs_on_host(emulated(FLOW), Path("/nowhere")) == {}


def test_a_journal_has_the_completed_tasks(tmp_path: Path) -> None:
    journal = RunJournal.create(tmp_path, {"workflow": "w"})
    journal.note(directory="workflow-1")
    journal.append({"task": "a", "outputs": {}, "error": ""}, {"failed": "b", "error": "no"})
    journal.append({"input": "in", "size_bytes": 3, "changed": "1.0"})
    os.write(
        journal.fd, b'penstock: a message\n{"task": "c", "err'
    )  # as after the kill of a process
    with pytest.raises(BadInput, match="found an earlier run; expected another directory"):
        RunJournal.create(tmp_path, {})
    journal.close()
    again = RunJournal.reopen(tmp_path)
    assert (again.head["workflow"], again.head["directory"]) == ("w", "workflow-1")
    assert again.tasks.keys() == {"a"}
    assert again.inputs == {"in": (3, "1.0")}
    assert again.path.stat().st_mode & 0o777 == 0o600
    again.close()
    (tmp_path / "journal.jsonl").write_text('{"task": "a"}\n')
    with pytest.raises(BadInput, match="found no head"):
        RunJournal.reopen(tmp_path)
    with pytest.raises(BadInput, match=r"found no journal\.jsonl"):
        RunJournal.reopen(tmp_path / "nothing")


def test_a_journal_waits_for_the_processes_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.parts.stores.workflow.running.journal._FREE_WITHIN_S", 0.2)
    journal = RunJournal.create(tmp_path, {})
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stderr=journal.fd) as process:
        journal.close()
        with pytest.raises(PenstockError, match="still runs"):
            RunJournal.reopen(tmp_path)
        process.communicate()
    RunJournal.reopen(tmp_path).close()


def test_only_tasks_with_needed_outputs_are_repeated() -> None:
    completed: dict[int, dict[str, Any]] = {0: {}, 1: {}, 2: {}}
    everything = {"in", "x", "y", "z"}
    assert repeated(FLOW, completed, everything).keys() == {0, 1, 2}
    # x is needed by no remaining task; y is, and x by the task that creates y again
    assert repeated(FLOW, completed, everything - {"x"}).keys() == {0, 1, 2}
    assert repeated(FLOW, completed, everything - {"x", "y"}).keys() == {2}
    assert repeated(FLOW, completed, everything - {"z"}).keys() == {0, 1}  # a result


def test_complete_lost_and_skipped_tasks_are_not_scheduled() -> None:
    queue = Scheduler(FLOW, {"n-0": 1, "n-1": 1}, {}, by_data=False, complete={0})
    assert queue.next() == [(1, "n-0"), (2, "n-1")]
    queue.lost("n-0")
    queue.freed("n-0")
    queue.again(1, 2.0, 1.0)
    assert queue.next(1.0) == []
    assert queue.wakes_s == 2.0
    assert queue.next(2.0) == []  # n-1 is busy
    queue.ended(2, "n-1", 2.0)
    assert queue.next(3.0) == [(1, "n-1")]
    assert queue.ready_s[1] == 2.0
    assert queue.skip(1) == [1, 3]
    assert queue.skip(3) == []
    assert queue.finished


def three_tasks() -> Workload:
    """A task, and two that read its output."""
    tasks = (
        Task("t1", steps((), "a")),
        Task("t2", steps(("a",), "b")),
        Task("t3", steps(("a",), "c")),
    )
    return Workload("three", (), tasks)


def test_a_complete_task_does_not_start_when_its_predecessor_is_repeated() -> None:
    queue = Scheduler(three_tasks(), {"n": 2}, {}, by_data=False, complete={1})
    assert queue.next() == [(0, "n")]
    queue.ended(0, "n")
    assert queue.next() == [(2, "n")]
    assert not queue.finished  # t3 still runs
    queue.ended(2, "n")
    assert queue.finished


def test_a_complete_task_is_not_skipped_with_its_predecessor() -> None:
    queue = Scheduler(three_tasks(), {"n": 2}, {}, by_data=False, complete={1})
    queue.next()
    queue.freed("n")
    assert queue.skip(0) == [0, 2]
    assert queue.finished


def test_only_outputs_of_a_single_writer_may_be_removed() -> None:
    parts = (Task("p", steps((), "shared", "own")), Task("q", steps((), "shared", "in")))
    flow = Workload("parts", (File("in", 10, preloaded=True),), parts)
    assert outputs_of_one(flow) == {"own"}
    # q needs the part that p has written, and writes another part
    assert repeated(flow, {0: {}}, {"own", "in"}).keys() == set()


def test_a_run_that_had_no_directory_yet_can_be_started_again(tmp_path: Path) -> None:
    RunJournal.create(tmp_path, {"attempt": 1}).close()
    journal = RunJournal.create(tmp_path, {"attempt": 2})
    assert journal.head["attempt"] == 2
    journal.close()


def test_an_entry_after_a_partial_one_counts(tmp_path: Path) -> None:
    journal = RunJournal.create(tmp_path, {})
    journal.note(directory="workflow-1")
    os.write(journal.fd, b'{"task": "x", "err')  # the disk was full
    journal.append({"task": "y", "outputs": {}, "error": ""})
    journal.close()
    again = RunJournal.reopen(tmp_path)
    assert again.tasks.keys() == {"y"}
    again.close()


@pytest.mark.parametrize("timeout_s", [float("nan"), -1.0, 0.0, float("inf")])
def test_time_limits_are_checked(timeout_s: float) -> None:
    with pytest.raises(BadInput, match="--timeout: found"):
        RunOptions(timeout_s=timeout_s).check()


def test_waits_between_attempts_double_up_to_a_limit() -> None:
    recovery = Recovery(5, 0.5, 3.0)
    assert [recovery.wait_s(n) for n in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Recovery(10**6, 1.0).wait_s(10**6) == 60.0


def test_the_remaining_time_follows_the_pace() -> None:
    assert remaining_s(10.0, 0, 5) is None
    assert remaining_s(10.0, 2, 6) == 30.0
    assert remaining_s(10.0, 0, 5, 40.0) == 30.0
    assert remaining_s(10.0, 5, 5, 40.0) == 0.5 * 10.0 + 0.5 * 30.0
    assert remaining_s(50.0, 9, 1, 40.0) == pytest.approx(0.9 * 50 / 9)


def test_parts_of_a_file_are_scattered() -> None:
    size = 2 * 4096
    readers = tuple(Task(f"r{i}", (Operation("read", "f", i * size, size),)) for i in range(3))
    writer = Task("w", (Operation("write", "f", 0, 3 * size),))
    flow = Workload("parts", (), (writer, *readers))
    assert hints_of_graph(flow, 4, 4096)["f"].scatter == 2
    assert hints_of_graph(flow, 4, 3000)["f"].scatter is None
    assert hints_of_graph(flow, 4)["f"].replicas == 2


def test_options_survive_a_journal() -> None:
    options = RunOptions(
        "moosefs", hints="auto", inputs=Path("/in"), recovery=Recovery(3, 0.1, keep_going=True)
    )
    assert RunOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    with pytest.raises(BadInput, match="expected file, never, always or auto"):
        RunOptions(hints="some").check()


def test_intervals_of_means_and_differences() -> None:
    assert mean_of([3.0]).low is None
    spread = mean_of([1.0, 2.0, 3.0])
    assert (spread.mean, spread.low) == (2.0, pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-3))
    gain = difference_of([10.0, 11.0, 12.0], [1.0, 2.0, 3.0])
    assert gain.mean == 9.0
    assert gain.low == pytest.approx(9 - 2.7764 * (2 / 3) ** 0.5, abs=1e-3)


def test_names_of_logs_are_distinct_and_plain() -> None:
    assert log_name("sort_1") == "sort_1"
    assert log_name(log_name("a/b")) != log_name("a/b")
    assert log_name("a/b") != log_name("a_b")
    assert "/" not in log_name("../../x")
    assert log_name("..").startswith("_")
    assert len(log_name("x" * 5000)) < 200


def test_attempts_of_tasks_have_logs_of_their_own(tmp_path: Path) -> None:
    attempts = [("a", 1), ("a", 2), ("a.2", 1), ("a.out", 2)]
    for task, attempt in attempts:
        text = f"{task} {attempt}"
        save_texts(tmp_path / "logs", {"task": task, "attempt": attempt, "stdout": text})
    texts = [path.read_text() for path in (tmp_path / "logs").iterdir()]
    assert sorted(texts) == sorted(f"{task} {attempt}" for task, attempt in attempts)


def agent_answer(
    tmp_path: Path, script: str, *, read_journal: bool = True, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """Response of an agent to a script, and the lines of its journal."""
    journal = tmp_path / "journal"
    line = {
        "task": "t",
        "echo": {"attempt": 1},
        "argv": ["sh", "-c", script],
        "cwd": str(tmp_path),
        "env": {"PENSTOCK_TASK": "t"},
        "outputs": [str(tmp_path / "deep" / "out")],
        "partial": [str(tmp_path / "deep" / "out")],
        "keep_cache": True,
        "journal": True,
        **options,
    }
    argv = [sys.executable, "-I", "-u", "-c", node_script(AGENT)]
    with journal.open("a") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        process.communicate()
    return answer, journal.read_text().splitlines() if read_journal else []


def test_a_program_has_its_answer_and_its_entry(tmp_path: Path) -> None:
    script = 'echo "$PENSTOCK_TASK" > deep/out; echo text; echo trouble >&2'
    answer, lines = agent_answer(tmp_path, script, checksums=True)
    assert (answer["error"], answer["status"], answer["attempt"]) == ("", 0, 1)
    assert (answer["stdout"], answer["stderr"]) == ("text\n", "trouble\n")
    size, _, sha256 = answer["outputs"][str(tmp_path / "deep" / "out")]
    assert (size, len(sha256)) == (2, 64)
    assert answer["forked_ns"] < answer["started_ns"] < answer["ended_ns"] <= answer["stored_ns"]
    (entry,) = map(json.loads, lines)
    assert (entry["task"], entry["outputs"]) == ("t", answer["outputs"])
    assert "stdout" not in entry


def test_a_failed_program_leaves_no_output_and_no_entry(tmp_path: Path) -> None:
    answer, lines = agent_answer(tmp_path, "echo half > deep/out; echo why >&2; exit 3")
    assert answer["error"] == "sh: ended with status 3: why"
    assert not (tmp_path / "deep" / "out").exists()
    assert lines == []
    answer, _ = agent_answer(tmp_path, "kill -9 $$")
    assert answer["error"] == "sh: killed by signal 9 (SIGKILL)"
    answer, _ = agent_answer(tmp_path, "true")
    assert answer["error"] == "sh ended with status 0, without its output deep/out"
    answer, _ = agent_answer(tmp_path, "", argv=["no-such-program"])
    assert answer["error"] == "no-such-program: No such file or directory"


def test_of_long_outputs_beginning_and_end_are_retained(tmp_path: Path) -> None:
    script = "echo first; yes | head -c 1000000; echo last; yes | head -c 9 >&2; echo > deep/out"
    answer, _ = agent_answer(tmp_path, script)
    assert answer["stdout"].startswith("first\ny\n")
    assert answer["stdout"].endswith("y\nlast\n")
    assert f"\n[{1000011 - MOST_OUTPUT} bytes omitted]\n" in answer["stdout"]
    assert answer["stderr"] == "y\n" * 4 + "y"


def test_processes_that_a_program_leaves_are_killed(tmp_path: Path) -> None:
    answer, _ = agent_answer(tmp_path, "sleep 600 & echo $! > deep/out")
    assert answer["error"] == ""
    wait_for_end(int((tmp_path / "deep" / "out").read_text()))


@pytest.mark.parametrize("launcher", ["timeout 600", "setsid"])
def test_processes_that_left_the_group_of_a_program_are_killed(
    tmp_path: Path, launcher: str
) -> None:
    script = f"{launcher} sh -c 'echo $$ > deep/out; exec sleep 600' & while ! [ -s deep/out ]; do :; done"
    answer, _ = agent_answer(tmp_path, script)
    assert answer["error"] == ""
    wait_for_end(int((tmp_path / "deep" / "out").read_text()))


def test_an_output_is_a_regular_file(tmp_path: Path) -> None:
    answer, lines = agent_answer(tmp_path, "mkfifo deep/out")
    assert "found no regular file; expected one as an output" in answer["error"]
    assert lines == []


def test_an_output_may_be_a_link_to_a_file_in_the_store(tmp_path: Path) -> None:
    answer, _ = agent_answer(tmp_path, "echo text > data; ln -s ../data deep/out")
    assert answer["error"] == ""
    assert answer["outputs"][str(tmp_path / "deep" / "out")][0] == 5
    answer, _ = agent_answer(tmp_path, "ln -sf nothing deep/out")
    assert answer["error"] == "sh ended with status 0, without its output deep/out"
    answer, _ = agent_answer(tmp_path, "ln -sf /proc/self/status deep/out")
    assert "found a link to /proc/" in answer["error"]
    assert "expected a file in the store" in answer["error"]


def test_a_full_journal_is_an_error_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "journal").symlink_to("/dev/full")
    answer = agent_answer(tmp_path, "echo x > deep/out", read_journal=False)[0]
    assert "its entry in the journal: " in answer["error"]


def test_a_copy_on_a_dead_server_is_lost_before_the_engine_misses_it() -> None:
    extents = {
        "run/x": [Extent(0, 6, ("n-1",)), Extent(6, 4, ("n-1", "n-2"))],
        "run/y": [Extent(0, 10, ("n-2", "n-1"))],
        "run/z": [Extent(0, 10, ())],
    }
    store: Any = SimpleNamespace(
        inside=lambda path: path,
        locate=lambda path, node: extents[path],
        files=lambda node: SimpleNamespace(kind=lambda path: ("file", 10)),
    )
    files = RunFiles(FLOW, store)
    files._folder = SimpleNamespace(name="run")
    assert files.lost(("x", "y", "z")) == ["z"]
    assert files.lost(("x", "y", "z"), dead={"n-1"}) == ["x", "z"]
    assert files.lost(("x", "y", "z"), dead={"n-1", "n-2"}) == ["x", "y", "z"]
