"""Workflows on a real store: files of users, hints, and how a run ends when something dies.

The server that is killed comes last: the store is not the same afterwards.
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

NAME = "gt-wf"
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
#: longest that anything here may take on a host that is busy [s]
PATIENCE_S = 240.0


class Here:
    """A store that is up, with a state of its own."""

    def __init__(self, where: Path) -> None:
        self.where = where
        own = {"PENSTOCK_STATE": str(where / "state"), "PENSTOCK_RUNTIME": str(where / "run")}
        self.environment = {**os.environ, **own}
        (where / "p.yaml").write_text(PLATFORM)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return commands.popen(
            [sys.executable, "-m", "penstock", *words],
            env=self.environment,
            cwd=self.where,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def penstock(self, *words: str, status: int = 0) -> str:
        return ended(self.begin(*words), status)

    def run(self, name: str, tasks: list[dict[str, Any]], files: list[dict[str, Any]]) -> list[str]:
        """Words that run a workflow."""
        values = {"schema": "penstock/workload/1", "name": name, "files": files, "tasks": tasks}
        (self.where / f"{name}.json").write_text(json.dumps(values))
        return ["workflow", "run", f"{name}.json", "-p", "p.yaml", "--no-predict"]

    @property
    def store(self) -> Path:
        """The store as node-0 sees it."""
        pid = next(iter(processes("node-0")))
        return Path(f"/proc/{pid}/root/store")


def ended(child: subprocess.Popen[str], status: int) -> str:
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == status, out + err
    return out + err


def processes(node: str) -> dict[int, str]:
    """Processes of a node by pid: the name of their command."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"penstock-{NAME}-{node}-" in (process / "cgroup").read_text():
                found[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:
            continue
    assert found
    return found


def awaited(what: Callable[[], T | None], child: subprocess.Popen[str]) -> T:
    until = time.monotonic() + PATIENCE_S
    while (found := what()) is None:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    made = Here(where)
    made.penstock("store", "up", "-p", "p.yaml")
    yield made
    undo(Journal(where / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(where)


def write(name: str, size: int = 1000) -> dict[str, Any]:
    return {"op": "write", "file": name, "size_bytes": size}


def test_only_what_runs_created_is_removed(here: Here) -> None:
    store = here.store
    (store / "workflow-notes.txt").write_text("precious")
    (store / "workflow-results").mkdir()
    (store / "workflow-results" / "x").write_text("r")
    words = here.run("tiny", [{"name": "t", "operations": [write("d/a")]}], [{"name": "d/a"}])
    before = set(os.listdir(store))
    here.penstock(*words)
    (first,) = set(os.listdir(store)) - before
    assert (store / first / "d" / "a").stat().st_size == 1000
    (store / first / "mine").write_text("put there by the user")
    here.penstock(*words)
    (second,) = set(os.listdir(store)) - before - {first}
    assert os.listdir(store / first) == ["mine"]  # its own files are gone
    here.penstock(*words)
    assert second not in os.listdir(store)
    assert (store / "workflow-notes.txt").read_text() == "precious"
    assert (store / "workflow-results" / "x").read_text() == "r"


def test_a_file_goes_to_the_host_of_its_hint(here: Here) -> None:
    files = [
        {"name": "f", "hints": {"host": "node-2"}},
        {"name": "g", "hints": {"placement": "host", "host": "node-1"}},
        {"name": "h", "hints": {"chunk_bytes": 65536}},
    ]
    task = {"name": "t", "machine": "node-0", "operations": [write(f["name"]) for f in files]}
    said = json.loads(here.penstock(*here.run("hosts", [task], files), "--json"))
    placed = {name: extents[0]["hosts"] for name, extents in said["placement"].items()}
    assert (placed["f"], placed["g"]) == (["node-2"], ["node-1"])
    assert [one.partition(":")[0] for one in said["refused"]] == ["h"]


def test_a_task_whose_process_is_killed_ends_the_run(here: Here) -> None:
    tasks = [
        {"name": "first", "machine": "node-0", "operations": [write("a")]},
        {
            "name": "long",
            "machine": "node-1",
            "operations": [write("b"), {"op": "compute", "seconds": 3600}],
        },
    ]
    store, idle = here.store, processes("node-1")
    before = set(os.listdir(store))
    child = here.begin(*here.run("kill", tasks, []), "-o", "out")

    def computing() -> int | None:
        made = [one for one in set(os.listdir(store)) - before if (store / one / "b").exists()]
        own = sorted(set(processes("node-1")) - set(idle))
        return own[-1] if made else None

    os.kill(awaited(computing, child), signal.SIGKILL)
    said = ended(child, 1)
    assert "task long on node-1: its process" in said
    assert "killed by signal 9 (SIGKILL)" in said
    kept = json.loads((here.where / "out" / "result.json").read_text())
    assert "task long on node-1" in kept["error"]
    assert (here.where / "out" / "broken" / "workflow_tasks.parquet").exists()


def test_a_killed_server_of_the_only_copy_ends_the_run(here: Here) -> None:
    tasks = [
        {"name": "t", "operations": [write("a"), {"op": "compute", "seconds": 3600}]},
    ]
    store = here.store
    before = set(os.listdir(store))
    child = here.begin(*here.run("server", tasks, []))

    def writing() -> bool | None:
        made = set(os.listdir(store)) - before
        return any((store / one / "a").exists() for one in made) or None

    awaited(writing, child)
    (server,) = (pid for pid, name in processes("node-2").items() if name == "mfschunkserver")
    os.kill(server, signal.SIGKILL)
    said = ended(child, 1)
    assert "the store lost node-2: mfschunkserver" in said
    # what has only one copy cannot be complete any more
    assert "servers are down: node-2" in here.penstock(*here.run("after", tasks[:1], []), status=1)
