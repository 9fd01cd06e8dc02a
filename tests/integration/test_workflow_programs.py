"""Workflows of real programs on a real store: results, retries, resuming, failures, deaths of servers.

Tests that kill servers come last, because they change the store.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.parts.stores.engines.moosefs import MooseFS
from tests.integration.node_ground import NODES
from tests.support import commands

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]

#: parallel runs of the suite have stores with other names
NAME = f"gt-wp-{os.getpid()}"
PLATFORM = f"""
penstock_platform: 1
name: {NAME}
hosts:
  - {{group: head, count: 1, roles: [manager], manager: {{service: 0.5ms}}}}
  - group: node
    count: 4
    roles: [storage, client]
    storage: {{read: 1ms, write: 1ms}}
    disks: [{{name: store, size: 160MiB, limits: {{read: 400MB/s, write: 400MB/s}}}}]
network: {{bandwidth: 1 Gbit/s, loopback: 1 GB/s, subnet: 10.93.0.0/24}}
store: {{engine: moosefs, replicas: 2}}
"""
PATIENCE_S = 240.0
WIDTH = 3
#: start of every script: write a line for each start of the task
COUNT = 'echo "$PENSTOCK_NODE" >> "ran.$PENSTOCK_TASK"; '


class Ground:
    """A running store with its own state directory."""

    def __init__(self, where: Path) -> None:
        self.where = where
        directories = {
            "PENSTOCK_STATE": str(where / "state"),
            "PENSTOCK_RUNTIME": str(where / "run"),
        }
        self.environment = {**os.environ, **directories}
        (where / "p.yaml").write_text(PLATFORM)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return commands.popen(
            [sys.executable, "-m", "penstock", *argv],
            env=self.environment,
            cwd=self.where,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def penstock(self, *argv: str, status: int = 0) -> str:
        child = self.start(*argv)
        out, err = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == status, out + err
        return out + err

    def workflow(
        self, name: str, tasks: list[dict[str, Any]], **files: dict[str, Any]
    ) -> list[str]:
        """Command line that runs tasks."""
        rows = [{"name": key.replace("__", "."), **values} for key, values in files.items()]
        values = {"schema": "penstock/workload/1", "name": name, "files": rows, "tasks": tasks}
        (self.where / f"{name}.json").write_text(json.dumps(values))
        return ["workflow", "run", f"{name}.json", "-p", "p.yaml", "--no-predict", "-o", name]

    def run_directory(self, out: str) -> Path:
        """Directory of a run in the store, as mounted in a node."""
        lines = (self.where / out / "journal.jsonl").read_text().splitlines()
        (name,) = [row["head"]["directory"] for row in map(json.loads, lines) if "head" in row]
        pid = next(iter(processes("node-0")))
        return Path(f"/proc/{pid}/root/store/{name}")

    def tasks(self, out: str) -> dict[str, dict[str, Any]]:
        rows = pq.read_table(self.where / out / "0" / "workflow_tasks.parquet").to_pylist()
        return {row["task"]: row for row in rows}


def processes(node: str) -> dict[int, str]:
    """Command names of the processes of a node, by process id."""
    by_pid = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"penstock-{NAME}-{node}-" in (process / "cgroup").read_text():
                by_pid[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:
            continue
    assert by_pid
    return by_pid


def await_condition(condition: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def task(name: str, script: str, reads: tuple[str, ...] = (), writes: str = "") -> dict[str, Any]:
    """A task that runs a shell script."""
    operations: list[dict[str, Any]] = [
        {"op": "read", "file": file, "size_bytes": 1} for file in reads
    ]
    operations += [{"op": "write", "file": writes, "size_bytes": 1}] if writes else []
    operations = operations or [{"op": "compute", "seconds": 0}]
    command = {"program": "sh", "arguments": ["-c", COUNT + script]}
    return {"name": name, "command": command, "operations": operations}


def chain(pause_s: float = 0.0) -> list[dict[str, Any]]:
    """Sort and compress each file of words, and merge all."""
    tasks = []
    for i in range(WIDTH):
        script = f"sleep {pause_s}; sort words-{i} > sorted-{i}"
        tasks.append(task(f"sort-{i}", script, (f"words-{i}",), f"sorted-{i}"))
        script = f"sleep {pause_s}; gzip -n -c sorted-{i} > {i}.gz"
        tasks.append(task(f"zip-{i}", script, (f"sorted-{i}",), f"{i}.gz"))
    inputs = tuple(f"sorted-{i}" for i in range(WIDTH))
    tasks.append(task("merge", f"sort -m {' '.join(inputs)} > all", inputs, "all"))
    return tasks


def words(i: int) -> list[str]:
    return [str((i * 7919 + k * 104729) % 100003) for k in range(5000)]


def check_results(results: Path) -> None:
    """Check the results of the chain and their manifest."""
    for i in range(WIDTH):
        lines = gzip.decompress((results / f"{i}.gz").read_bytes()).decode().split()
        assert lines == sorted(words(i))
    everything = [word for i in range(WIDTH) for word in words(i)]
    assert (results / "all").read_text().split() == sorted(everything)
    rows = dict(
        reversed(line.split("  ")) for line in (results / "SHA256SUMS").read_text().splitlines()
    )
    assert rows.keys() == {"all", *(f"{i}.gz" for i in range(WIDTH))}
    for name, sha256 in rows.items():
        assert hashlib.sha256((results / name).read_bytes()).hexdigest() == sha256


INPUTS = {f"words-{i}": {"size_bytes": 30000, "preloaded": True} for i in range(WIDTH)}


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    created = Ground(directory)
    for i in range(WIDTH):
        (directory / f"words-{i}").write_text("\n".join(words(i)) + "\n")
    created.penstock("store", "up", "-p", "p.yaml")
    yield created
    undo(Journal(directory / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(directory)


def test_programs_run_on_nodes_and_results_are_copied(ground: Ground) -> None:
    tasks = chain()
    tasks[0]["command"]["arguments"][1] += "; echo done; head -c 300000 /dev/zero >&2"
    document = json.loads(ground.penstock(*ground.workflow("plain", tasks, **INPUTS), "--json"))
    check_results(ground.where / "plain" / "results")
    assert "sort-0" in (ground.where / "plain" / "result.html").read_text()
    assert len(document["results"]) == WIDTH + 1
    rows = ground.tasks("plain")
    assert {row["attempt"] for row in rows.values()} == {1}
    assert rows["merge"]["ready_s"] >= max(rows[f"sort-{i}"]["end_s"] for i in range(WIDTH))
    assert all(row["start_s"] - row["ready_s"] >= row["launch_s"] > 0 for row in rows.values())
    assert len({row["host"] for row in rows.values()}) > 1
    logs = ground.where / "plain" / "logs"
    assert (logs / "sort-0.out").read_text() == "done\n"
    assert 60_000 < (logs / "sort-0.err").stat().st_size < 70_000  # its beginning and its end


def test_a_failed_attempt_is_repeated_without_its_output(ground: Ground) -> None:
    script = 'ls part; echo x > part; test "$PENSTOCK_ATTEMPT" = 3'
    tasks = [task("odd", script, writes="part"), task("odd.2", "echo other >&2")]
    argv = ground.workflow("again", tasks)
    document = json.loads(
        ground.penstock(*argv, "--retries", "2", "--retry-delay", "0.05", "--json")
    )
    assert [row["attempt"] for row in document["attempts"]] == [1, 2]
    assert ground.tasks("again")["odd"]["attempt"] == 3
    logs = ground.where / "again" / "logs"
    names = {"odd.err", "odd.err.2", "odd.err.3"}
    assert {path.name for path in logs.iterdir()} == {*names, "odd.2.err"}
    assert all("No such file" in (logs / name).read_text() for name in names)
    # without another attempt: one error, with the message of the program
    tasks = [task("odd", "echo no disk today >&2; exit 7", writes="part")]
    message = ground.penstock(*ground.workflow("once", tasks), status=1)
    assert "task odd on node-" in message
    assert "sh: ended with status 7: no disk today" in message


def test_keep_going_runs_the_other_tasks(ground: Ground) -> None:
    tasks = [*chain(), task("bad", "exit 1", writes="x"), task("next", "true", ("x",), "y")]
    argv = ground.workflow("going", tasks, **INPUTS)
    message = ground.penstock(*argv, "--keep-going", status=1)
    assert f"2 of {len(tasks)} tasks did not complete" in message
    check_results(ground.where / "going" / "results")
    document = json.loads((ground.where / "going" / "result.json").read_text())
    assert document["not_run"].keys() == {"bad", "next"}


def test_a_killed_run_is_resumed_without_repeating_tasks(ground: Ground) -> None:
    child = ground.start(*ground.workflow("killed", chain(0.4), **INPUTS))
    journal = ground.where / "killed" / "journal.jsonl"
    await_condition(lambda: journal.exists() and '"task": "sort-' in journal.read_text(), child)
    child.send_signal(signal.SIGKILL)
    child.wait()
    (ground.where / "killed.json").rename(ground.where / "moved.json")
    assert "moved" not in ground.penstock("workflow", "run", "--resume", "killed", status=2)
    (ground.where / "moved.json").rename(ground.where / "killed.json")
    before = {
        json.loads(row)["task"] for row in journal.read_text().splitlines() if '"task"' in row
    }
    text = ground.penstock("workflow", "run", "--resume", "killed")
    check_results(ground.where / "killed" / "results")
    assert " tasks were complete before" in text
    directory = ground.run_directory("killed")
    starts = {p.name[4:]: len(p.read_text().split()) for p in directory.glob("ran.*")}
    assert {starts[name] for name in before} == {1}
    assert starts.keys() == {row["name"] for row in chain()}


def test_a_task_whose_output_is_a_link_is_not_repeated(ground: Ground) -> None:
    script = 'mkdir -p data; echo x > data/x; ln -s "$PWD/data/x" link'
    script_of_use = "test -e go && cat link > data/y && ln -s data/y result"
    use = task("use", script_of_use, ("link",), "result")
    argv = ground.workflow("links", [task("link", script, writes="link"), use])
    ground.penstock(*argv, status=1)
    directory = ground.run_directory("links")
    (directory / "go").touch()
    assert "1 of 2 tasks were complete before" in ground.penstock(
        "workflow", "run", "--resume", "links"
    )
    assert (ground.where / "links" / "results" / "result").read_text() == "x\n"
    assert len((directory / "ran.link").read_text().split()) == 1


def test_a_write_without_space_is_one_clear_error_and_keeps_results(ground: Ground) -> None:
    # /dev/full fails at once like a full store (MooseFS retries for two minutes)
    tasks = [
        task("apart", "echo done > result", writes="result"),
        task(
            "large", "echo half > large; sleep 1; head -c 9 /dev/zero > /dev/full", writes="large"
        ),
    ]
    message = ground.penstock(*ground.workflow("full", tasks), status=1)
    assert "task large on node-" in message
    assert "No space left on device" in message
    assert "Traceback" not in message
    results = ground.where / "full" / "results"
    assert (results / "result").read_text() == "done\n"
    assert {p.name for p in results.iterdir()} == {"result", "SHA256SUMS"}
    assert not (ground.run_directory("full") / "large").exists()


def test_with_two_copies_a_run_survives_the_death_of_a_server(ground: Ground) -> None:
    child = ground.start(*ground.workflow("copies", chain(1.0), **INPUTS))
    journal = ground.where / "copies" / "journal.jsonl"
    await_condition(lambda: journal.exists() and '"task": "sort-' in journal.read_text(), child)
    (server,) = (pid for pid, name in processes("node-3").items() if name == "mfschunkserver")
    os.kill(server, signal.SIGKILL)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, out + err
    check_results(ground.where / "copies" / "results")


def test_with_one_copy_lost_files_are_named_and_created_again(ground: Ground) -> None:
    tasks = [
        task("first", "echo a > a", writes="a"),
        task("other", "echo b > b", writes="b"),
        task("join", "sleep 200; cat a b > c", ("a", "b"), "c"),  # killed when a is lost
        task("apart", "sleep 3; cat b > d", ("b",), "d"),
    ]
    files = {
        "a": {"hints": {"placement": "host", "host": "node-2", "replicas": 1}},
        "b": {"hints": {"placement": "host", "host": "node-1", "replicas": 1}},
    }
    child = ground.start(*ground.workflow("lost", tasks, **files), "--keep-going")
    journal = ground.where / "lost" / "journal.jsonl"

    def both_written() -> bool:
        text = journal.read_text() if journal.exists() else ""
        return all(f'"task": "{name}"' in text for name in ("first", "other"))

    await_condition(both_written, child)
    (server,) = (pid for pid, name in processes("node-2").items() if name == "mfschunkserver")
    os.kill(server, signal.SIGKILL)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 1, out + err
    assert "lost files: a" in out + err
    document = json.loads((ground.where / "lost" / "result.json").read_text())
    assert document["lost"] == ["a"]
    assert document["not_run"].keys() == {"join"}
    assert (ground.where / "lost" / "results" / "d").read_text() == "b\n"
