"""Workflows on a real store: files of users, hints, and the end of a run after a kill.

The test that kills a server comes last, because it changes the store.
"""

from __future__ import annotations

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
from typing import Any, TypeVar

import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.parts.stores.engines.moosefs import MooseFS
from tests.integration.node_ground import NODES
from tests.support import commands

T = TypeVar("T")

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]

#: parallel runs of the suite have stores with other names
NAME = f"gt-wf-{os.getpid()}"
PLATFORM = f"""
penstock_platform: 1
name: {NAME}
hosts:
  - {{group: head, count: 1, roles: [manager], manager: {{service: 0.5ms}}}}
  - group: node
    count: 3
    roles: [storage, client]
    storage: {{read: 1ms, write: 1ms}}
    disks: [{{name: store, limits: {{read: 400MB/s, write: 400MB/s}}}}]
network: {{bandwidth: 1 Gbit/s, loopback: 1 GB/s, subnet: 10.94.0.0/24}}
store: {{engine: moosefs, keep: [results/*]}}
"""
#: limit of any step on a busy host [s]
PATIENCE_S = 240.0


class StoreCluster:
    """A running store with its own state directory."""

    def __init__(self, where: Path) -> None:
        self.where = where
        directories = {
            "PENSTOCK_STATE": str(where / "state"),
            "PENSTOCK_RUNTIME": str(where / "run"),
        }
        self.environment = {**os.environ, **directories}
        (where / "p.yaml").write_text(PLATFORM)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return commands.popen(
            [sys.executable, "-m", "penstock", *arguments],
            env=self.environment,
            cwd=self.where,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def penstock(self, *arguments: str, status: int = 0) -> str:
        return output_of(self.start(*arguments), status)

    def run(self, name: str, tasks: list[dict[str, Any]], files: list[dict[str, Any]]) -> list[str]:
        """Arguments that run a workflow."""
        values = {"schema": "penstock/workload/1", "name": name, "files": files, "tasks": tasks}
        (self.where / f"{name}.json").write_text(json.dumps(values))
        return ["workflow", "run", f"{name}.json", "-p", "p.yaml", "--no-predict"]

    @property
    def store(self) -> Path:
        """The store as mounted in node-0."""
        pid = next(iter(processes("node-0")))
        return Path(f"/proc/{pid}/root/store")


def output_of(child: subprocess.Popen[str], status: int) -> str:
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == status, out + err
    return out + err


def processes(node: str) -> dict[int, str]:
    """Command names of the processes of a node, by process id."""
    names = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"penstock-{NAME}-{node}-" in (process / "cgroup").read_text():
                names[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:
            continue
    assert names
    return names


def await_result(condition: Callable[[], T | None], child: subprocess.Popen[str]) -> T:
    until = time.monotonic() + PATIENCE_S
    while (result := condition()) is None:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreCluster]:
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    created = StoreCluster(directory)
    created.penstock("store", "up", "-p", "p.yaml")
    yield created
    undo(Journal(directory / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(directory)


def write(name: str, size: int = 1000) -> dict[str, Any]:
    return {"op": "write", "file": name, "size_bytes": size}


def test_only_files_of_runs_are_removed(cluster: StoreCluster) -> None:
    store = cluster.store
    (store / "workflow-notes.txt").write_text("precious")
    (store / "workflow-results").mkdir()
    (store / "workflow-results" / "x").write_text("r")
    arguments = cluster.run(
        "tiny", [{"name": "t", "operations": [write("d/a")]}], [{"name": "d/a"}]
    )
    before = set(os.listdir(store))
    cluster.penstock(*arguments)
    (first,) = set(os.listdir(store)) - before
    assert (store / first / "d" / "a").stat().st_size == 1000
    (store / first / "mine").write_text("put there by the user")
    cluster.penstock(*arguments)
    (second,) = set(os.listdir(store)) - before - {first}
    assert os.listdir(store / first) == ["mine"]  # files of the run are removed
    cluster.penstock(*arguments)
    assert second not in os.listdir(store)
    assert (store / "workflow-notes.txt").read_text() == "precious"
    assert (store / "workflow-results" / "x").read_text() == "r"


def test_a_file_is_on_the_host_of_its_hint(cluster: StoreCluster) -> None:
    files = [
        {"name": "f", "hints": {"host": "node-2"}},
        {"name": "g", "hints": {"placement": "host", "host": "node-1"}},
        {"name": "h", "hints": {"chunk_bytes": 65536}},
    ]
    task = {"name": "t", "machine": "node-0", "operations": [write(f["name"]) for f in files]}
    summary = json.loads(cluster.penstock(*cluster.run("hosts", [task], files), "--json"))
    placed = {name: extents[0]["hosts"] for name, extents in summary["placement"].items()}
    assert (placed["f"], placed["g"]) == (["node-2"], ["node-1"])
    assert [refusal.partition(":")[0] for refusal in summary["refused"]] == ["h"]


def test_a_kill_of_a_task_ends_the_run(cluster: StoreCluster) -> None:
    tasks = [
        {"name": "first", "machine": "node-0", "operations": [write("a")]},
        {
            "name": "long",
            "machine": "node-1",
            "operations": [write("b"), {"op": "compute", "seconds": 3600}],
        },
    ]
    store, idle = cluster.store, processes("node-1")
    before = set(os.listdir(store))
    child = cluster.start(*cluster.run("kill", tasks, []), "-o", "out")

    def computing() -> int | None:
        runs = [name for name in set(os.listdir(store)) - before if (store / name / "b").exists()]
        started = sorted(set(processes("node-1")) - set(idle))
        return started[-1] if runs else None

    os.kill(await_result(computing, child), signal.SIGKILL)
    output = output_of(child, 1)
    assert "task long on node-1: its process" in output
    assert "killed by signal 9 (SIGKILL)" in output
    result = json.loads((cluster.where / "out" / "result.json").read_text())
    assert "task long on node-1" in result["error"]
    assert (cluster.where / "out" / "broken" / "workflow_tasks.parquet").exists()


def test_a_kill_of_the_server_of_the_only_copy_ends_the_run(cluster: StoreCluster) -> None:
    tasks = [
        {"name": "t", "operations": [write("a"), {"op": "compute", "seconds": 3600}]},
    ]
    store = cluster.store
    before = set(os.listdir(store))
    child = cluster.start(*cluster.run("server", tasks, []))

    def writing() -> bool | None:
        runs = set(os.listdir(store)) - before
        return any((store / run / "a").exists() for run in runs) or None

    await_result(writing, child)
    (server,) = (pid for pid, name in processes("node-2").items() if name == "mfschunkserver")
    os.kill(server, signal.SIGKILL)
    output = output_of(child, 1)
    assert "the store lost node-2: mfschunkserver" in output
    # files with a single copy are incomplete
    assert "servers are down: node-2" in cluster.penstock(
        *cluster.run("after", tasks[:1], []), status=1
    )
