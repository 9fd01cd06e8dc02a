"""Choice of nodes, hints of a graph, and the program that runs jobs in a node."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.parts.stores.node_processes import MOST_OUTPUT
from penstock.parts.stores.node_script import node_script
from penstock.parts.stores.snakemake.hint_choice import HintChoice
from penstock.parts.stores.snakemake.job_hints import GraphJob, tags_by_file
from penstock.parts.stores.snakemake.job_records import JobRecord, JobRecords
from penstock.parts.stores.snakemake.measured_jobs import (
    MeasuredJob,
    Measurements,
    earlier_jobs,
    measured,
)
from penstock.parts.stores.snakemake.node_client import AGENT
from penstock.parts.stores.snakemake.slots import Slots
from penstock.parts.stores.tags import Tagged
from penstock.platform.hosts import load_platform
from penstock.plugins import STORE_ENGINES
from penstock.spec.store import native, refused
from tests.support import commands
from tests.support.waiting import read_pid, wait_for_end

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGIN = """
import sys
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
registry = ExecutorPluginRegistry()
registry.collect_plugins()
print([o["cliarg"] for o in registry.get_plugin("penstock").get_settings_info()])
print([m for m in sys.modules if m.startswith("penstock") or m in ("pyarrow", "pydantic")])
"""


def test_snakemake_loads_the_plugin_and_little_of_penstock() -> None:
    result = commands.run(
        [sys.executable, "-c", PLUGIN], capture_output=True, text=True, check=True
    )
    options, modules = result.stdout.splitlines()
    assert "'--penstock-store'" in options
    assert "'--penstock-hints'" in options
    assert modules == "['penstock', 'penstock.errors']"


def test_every_package_is_in_the_wheel() -> None:
    root = Path(__file__).parents[2]
    packages = sorted(path.parent.name for path in root.glob("python/*/__init__.py"))
    configured = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["maturin"]
    assert sorted(configured["python-packages"]) == packages


def test_a_job_goes_to_the_node_with_most_of_its_bytes() -> None:
    slots = Slots({"a": 1, "b": 1, "c": 1})
    assert slots.take(1, {"b": 10, "c": 20}) == "c"
    assert slots.take(1, {"b": 10, "c": 20}) == "b"
    assert slots.take(1, {"b": 10, "c": 20}) == "a"
    assert slots.take(1, {}) is None
    slots.give_back("c", 1)
    assert slots.take(1, {"b": 10}) == "c"


def test_a_queue_goes_to_the_least_busy_node() -> None:
    slots = Slots({"a": 2, "b": 2}, by_data=False)
    nodes = [slots.take(1, {"a": 10}) for _ in range(5)]
    assert nodes == ["a", "b", "a", "b", None]


def test_threads_are_slots_at_most_those_of_a_node() -> None:
    slots = Slots({"a": 2, "b": 4})
    assert slots.take(8, {}) == "b"
    assert slots.take(2, {}) == "a"
    assert slots.take(1, {}) is None
    slots.give_back("b", 8)
    slots.drop("a")
    assert slots.nodes == ["b"]
    assert slots.take(4, {"a": 10}) == "b"


def test_hints_of_scatter_broadcast_and_gather() -> None:
    counts = [GraphJob(f"count-{n}", (f"part-{n}", "list"), (f"count-{n}",)) for n in range(4)]
    jobs = [
        GraphJob("split", ("text",), tuple(f"part-{n}" for n in range(4))),
        GraphJob("list", (), ("list",)),
        *counts,
        GraphJob("merge", tuple(f"count-{n}" for n in range(4)), ("result",)),
    ]
    tags = tags_by_file(jobs, 3)
    assert tags["part-0"] == {"DP": "local"}
    assert tags["list"] == {"Replication": "2"}
    assert tags["count-0"] == tags["count-3"] == {"DP": "collocation merge"}
    # a file from before the run, and a file without a reader
    assert "text" not in tags
    assert "result" not in tags


MIB = 1 << 20


def scattered(rule_of_parts: str = "split") -> list[GraphJob]:
    """One job writes parts, each of four jobs counts one, and one merges the counts."""
    parts, counts = ([f"/store/{kind}-{n}.txt" for n in range(4)] for kind in ("part", "count"))
    jobs = [GraphJob("split-1", ("/store/text",), tuple(parts), rule_of_parts, tuple(parts))]
    jobs += [
        GraphJob(f"count-{n}", (parts[n],), (counts[n],), "count", (counts[n],)) for n in range(4)
    ]
    return [*jobs, GraphJob("merge-6", tuple(counts), ("/store/sum",), "merge", ("/store/sum",))]


def measured_jobs(size_bytes: int) -> list[MeasuredJob]:
    """The jobs of an earlier run in other directories, so that means of rules apply."""
    return [
        MeasuredJob("split", 0.5, {"/store/old/part-0.txt": size_bytes}),
        MeasuredJob("count", 0.25, {"/store/old/count-0.txt": 100}),
        MeasuredJob("merge", 0.25, {"/store/old/sum": 100}),
    ]


def choice(size_bytes: int) -> HintChoice:
    changes = ["scheduler.kind=data_location"]
    platform = load_platform(EXAMPLES / "snakemake" / "cluster.yaml", changes)
    support = STORE_ENGINES.load("moosefs")().support()
    return HintChoice(platform, support, Path(".penstock"), measured_jobs(size_bytes))


def test_hints_are_chosen_by_their_predicted_gain() -> None:
    tags, reasons = choice(MIB).tags(scattered(), {"/store/text": 10}, [])
    assert tags["/store/part-0.txt"] == {"DP": "local"}
    assert reasons[0].startswith("hint DP=local for 4 files (split -> count, local): applied, pred")
    assert "/store/sum" not in tags
    # without bytes, nothing is gained
    tags, reasons = choice(0).tags(scattered(), {}, [])
    assert "/store/part-0.txt" not in tags
    assert "(split -> count, local): not applied, " in reasons[0]


def test_untaggable_outputs_get_no_hints() -> None:
    jobs = scattered()
    jobs[0] = replace(jobs[0], taggable=jobs[0].outputs[:3])
    tags, _ = choice(MIB).tags(jobs, {}, [])
    assert "/store/part-0.txt" in tags
    assert "/store/part-3.txt" not in tags


def test_rules_without_measurements_have_no_prediction() -> None:
    tags, reasons = choice(MIB).tags(scattered("divide"), {}, [])
    assert tags == {}
    (reason,) = reasons
    assert reason == "no hints: no run with records in .penstock has measured the rules divide"
    # the current run has measured it since
    recent = [MeasuredJob("divide", 0.5, {"/store/part-0.txt": MIB})]
    assert choice(MIB).tags(scattered("divide"), {}, recent)[0]
    # jobs that Snakemake runs itself have no records
    local = [replace(scattered("divide")[0], taggable=(), local=True), *scattered()[1:]]
    assert not choice(MIB).tags(local, {}, [])[1][0].startswith("no hints")


def test_measurements_are_those_of_the_same_files_else_means() -> None:
    jobs = [
        MeasuredJob("count", 1.0, {"a.txt": 10, "a.log": 0}),
        MeasuredJob("count", 2.0, {"a.txt": 30}),
        MeasuredJob("count", 6.0, {"b.txt": 80}),
    ]
    measurements = Measurements(jobs)
    same_file, other_file = (GraphJob("j", (), (f"{n}.txt",), "count") for n in "ac")
    assert (measurements.seconds(same_file), measurements.size_bytes(same_file, "a.txt")) == (
        2.0,
        30,
    )
    assert (measurements.seconds(other_file), measurements.size_bytes(other_file, "c.txt")) == (
        3.0,
        40,
    )
    assert measurements.size_bytes(other_file, "c.log") == 0
    assert measurements.size_bytes(other_file, "c.bam") is None


def test_jobs_of_earlier_runs_are_read_from_their_records(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "jobs-2026-01-01T000000-7.jsonl")
    good = JobRecord("a-1", "a", status=0, started_s=1.0, ended_s=3.5, outputs={"f": 7})
    records.add(good)
    records.add(replace(good, status=1))
    with records.path.open("a") as table:
        table.write('{"rule": "a", "status": 0, "started_s": 0, "ended_s": 1}\n[]\n7\n{"rule": "a')
    assert earlier_jobs(tmp_path) == [MeasuredJob("a", 2.5, {"f": 7})]
    assert measured(good) == MeasuredJob("a", 2.5, {"f": 7})


def test_the_summary_counts_bytes_and_hints(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "new" / "jobs.jsonl")
    with_tags = JobRecord(
        "a-1", "a", node="n", status=0, input_local_bytes=30, input_remote_bytes=10
    )
    with_tags.tags = [Tagged("f", "DP", "local", s) for s in (native(""), refused("no"))]
    records.add(with_tags)
    records.add(JobRecord("b-2", "b", node="m", status=3))
    line = records.summary()
    assert "2 jobs (1 failed) on 2 nodes" in line
    assert "75 % of 40 input bytes" in line
    assert "1 applied, 1 refused" in line
    rows = [json.loads(text) for text in records.path.read_text().splitlines()]
    assert [row["job"] for row in rows] == ["a-1", "b-2"]


class Agent:
    """The program of a node, started on this host."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-u", "-c", node_script(AGENT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def job(self, name: str, command: str, cwd: Path, **options: Any) -> None:
        defaults = {"env": {"PATH": "/usr/bin:/bin"}, "inputs": [], "wait_s": 5.0, "created": []}
        argv = ["/bin/sh", "-c", command]
        self.send(**{"job": name, "argv": argv, "cwd": str(cwd), **defaults, **options})

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def agent() -> Any:
    running = Agent()
    yield running
    running.end()


def test_status_output_and_times(agent: Agent, tmp_path: Path) -> None:
    agent.job("a", "pwd; echo wrong >&2; exit 3", tmp_path)
    line = agent.line()
    assert (line["job"], line["status"]) == ("a", 3)
    assert line["output"] == f"{tmp_path}\nwrong\n"
    assert line["started_ns"] <= line["ended_ns"]
    agent.send(job="b", argv=["/no/such"], cwd="/", env={}, inputs=[], wait_s=0, created=[])
    assert agent.line()["status"] == 126


def test_of_a_long_output_beginning_and_end_are_retained(agent: Agent, tmp_path: Path) -> None:
    agent.job("a", "echo first; yes | head -c 1000000; echo last >&2", tmp_path)
    line = agent.line()
    assert line["status"] == 0
    assert line["output"].startswith("first\ny\n")
    assert line["output"].endswith("y\nlast\n")
    assert f"\n[{1000011 - MOST_OUTPUT} bytes omitted]\n" in line["output"]
    assert len(line["output"]) < MOST_OUTPUT + 100
    agent.job("closes", "exec >&- 2>&-; cat", tmp_path)
    assert agent.line()["status"] != 0


def test_a_job_does_not_ignore_a_closed_pipe(agent: Agent, tmp_path: Path) -> None:
    agent.job("a", "yes | head -n 1", tmp_path)
    assert agent.line()["output"] == "y\n"


def test_an_input_that_comes_later_is_awaited(agent: Agent, tmp_path: Path) -> None:
    late = tmp_path / "late"
    agent.job("waits", "cat late", tmp_path, inputs=[str(late)], wait_s=60.0)
    agent.job("in vain", "true", tmp_path, inputs=[str(tmp_path / "never")], wait_s=0.1)
    line = agent.line()
    assert (line["job"], line["status"]) == ("in vain", 126)
    assert "never" in line["output"]
    (tmp_path / "early").write_text("here")
    (tmp_path / "early").rename(late)
    assert agent.line()["output"] == "here"


def test_a_file_that_a_job_did_not_write_is_removed(agent: Agent, tmp_path: Path) -> None:
    names = ("written", "touched", "idle")
    for name in names:
        (tmp_path / name).touch()
    created = [str(tmp_path / name) for name in names]
    agent.job("a", "echo x > written; sleep 0.01; touch touched", tmp_path, created=created)
    assert agent.line()["status"] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["touched", "written"]


def test_a_job_asks_for_its_hints(agent: Agent, tmp_path: Path) -> None:
    ask = "import os; fd = int(os.environ['PENSTOCK_HINTS_FD']); os.write(fd, b'?'); os.read(fd, 1)"
    agent.job("a", f'{sys.executable} -c "{ask}"; cat hint', tmp_path)
    assert agent.line() == {"job": "a", "hints": True}
    (tmp_path / "hint").write_text("set")
    agent.send(hinted="a", created=[])
    assert agent.line()["output"] == "set"


def test_all_processes_of_a_job_end_with_it(agent: Agent, tmp_path: Path) -> None:
    left, own = ("sh -c 'echo $$ > " + name + "; exec sleep 3600'" for name in ("left", "own"))
    agent.job("a", f"(setsid {left} &); {own}", tmp_path)
    pids = [read_pid(tmp_path / name) for name in ("left", "own")]
    agent.send(cancel="a")
    assert agent.line()["status"] == -9
    agent.end()
    for pid in pids:
        wait_for_end(pid)


@pytest.mark.parametrize("launcher", ["timeout 600", "setsid"])
def test_processes_that_left_the_group_of_a_job_end_with_it(
    agent: Agent, tmp_path: Path, launcher: str
) -> None:
    script = f"{launcher} sh -c 'echo $$ > pid; exec sleep 600' & while ! [ -s pid ]; do :; done"
    agent.job("a", script, tmp_path)
    assert agent.line()["status"] == 0
    wait_for_end(int((tmp_path / "pid").read_text()))
