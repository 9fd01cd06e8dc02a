"""Snakefiles on the nodes of a real store, through the executor plug-in of Snakemake.

The test that kills a node comes last, because it changes the store.
"""

from __future__ import annotations

import contextlib
import functools
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

import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts
from tests.integration.known_host import with_known_host
from tests.integration.node_ground import NODES
from tests.support import commands

pytestmark = NODES

EXAMPLES = Path(__file__).parents[2] / "examples" / "snakemake"
#: parallel runs of the suite have stores with other names
NAME = f"gt-sm-{os.getpid()}"
#: the example's cluster with two copies of each chunk, as one test kills a storage node
PLATFORM = (
    (EXAMPLES / "cluster.yaml")
    .read_text()
    .replace("name: words", f"name: {NAME}")
    .replace("{engine: moosefs}", "{engine: moosefs, replicas: 2}")
)
#: limit of any step on a busy host [s]
PATIENCE_S = 240.0


class StoreCluster:
    """A running store with its own state directory, and a directory of Snakefiles."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(with_known_host(where / "state")),
            "PENSTOCK_RUNTIME": str(where / "run"),
            "XDG_CACHE_HOME": str(where / "cache"),
        }
        (where / "cluster.yaml").write_text(PLATFORM)

    def run(self, *argv: str, status: int = 0, **options: Any) -> str:
        result = commands.run(
            [sys.executable, "-m", *argv],
            env=self.environment,
            cwd=self.where,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            **options,
        )
        assert result.returncode == status, result.stdout
        return result.stdout

    def arguments(self, snakefile: Path | str, directory: str, *options: str) -> list[str]:
        """Arguments of `python -m` that run a Snakefile in a directory of the store."""
        # a copy in `where`, as nodes do not see the host's /tmp
        file = self.where / f"{directory}.smk"
        file.write_text(snakefile if isinstance(snakefile, str) else snakefile.read_text())
        executor = ["--executor", "penstock", "--jobs", "6", "--directory", f"/store/{directory}"]
        return ["snakemake", "--snakefile", str(file), *executor, *options]

    def snakemake(
        self, snakefile: Path | str, directory: str, *options: str, status: int = 0
    ) -> str:
        return self.run(*self.arguments(snakefile, directory, *options), status=status)

    @functools.cached_property
    def store(self) -> Path:
        """The store as mounted by its first client, which no test kills."""
        return Path(f"/proc/{self.pid('node-0')}/root/store")

    def pid(self, node: str) -> int:
        """Process id of the first process of a node."""
        (cluster,) = json.loads(self.run("penstock", "nodes", "status", NAME, "--json"))["clusters"]
        (pid,) = (row["pid"] for row in cluster["nodes"] if row["name"] == node)
        return int(pid)

    def jobs(self, directory: str) -> list[dict[str, Any]]:
        """Records of all runs in a directory."""
        tables = sorted((self.store / directory / ".penstock").glob("jobs-*.jsonl"))
        return [json.loads(line) for table in tables for line in table.read_text().splitlines()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreCluster]:
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    created = StoreCluster(directory)
    created.run("penstock", "store", "up", "-p", "cluster.yaml")
    yield created
    undo(Journal(directory / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def words_output(cluster: StoreCluster) -> str:
    """The example, run in `words`: output of Snakemake."""
    return cluster.snakemake(EXAMPLES / "Snakefile", "words")


def files(top: Path) -> dict[str, bytes]:
    """Contents of the files below a directory, without those of Snakemake and Penstock."""
    paths = (p for p in top.rglob("*") if p.is_file() and ".snakemake" not in p.parts)
    results = (p for p in paths if ".penstock" not in p.parts)
    return {str(path.relative_to(top)): path.read_bytes() for path in results}


def host_state(cluster: StoreCluster) -> tuple[list[str], list[str], list[str]]:
    """Mounts at the paths of this test, open entries of the journal, and processes of the nodes."""
    points = [m.point for m in mounts() if m.point.startswith((str(cluster.where), "/store"))]
    entries = [e.id for e in Journal(cluster.where / "state" / "journal.jsonl").open_entries()]
    return points, entries, node_processes()


def node_processes() -> list[str]:
    """Process ids of the nodes."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"penstock-{NAME}-" in (process / "cgroup").read_text():
                pids.append(process.name)
    return sorted(pids)


def test_results_equal_results_of_the_local_executor(
    cluster: StoreCluster, words_output: str
) -> None:
    local = ["--cores", "2", "--directory", str(cluster.where / "local")]
    cluster.run("snakemake", "--snakefile", str(EXAMPLES / "Snakefile"), *local)
    expected = files(cluster.where / "local")
    assert len(expected["results/words.tsv"]) > 1000
    assert files(cluster.store / "words") == expected
    jobs = {job["job"]: job for job in cluster.jobs("words")}
    assert len(jobs) == 11
    assert all(job["status"] == 0 for job in jobs.values())
    assert [job["rule"] for job in jobs.values() if not job["direct"]] == ["report"]
    for job in jobs.values():
        times = [job[key] for key in ("submitted_s", "sent_s", "started_s", "ended_s")]
        assert times == sorted(times)
    assert "11 jobs (0 failed)" in words_output


def test_a_run_leaves_nothing_on_the_host(cluster: StoreCluster) -> None:
    before = host_state(cluster)
    cluster.snakemake(
        EXAMPLES / "Snakefile", "plain", "--penstock-hints", "never", "--until", "split"
    )
    assert [job["tags"] for job in cluster.jobs("plain")] == [[], []]
    until = time.monotonic() + PATIENCE_S
    while any(set(now) - set(then) for now, then in zip(host_state(cluster), before, strict=True)):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not Path("/store").exists()


def test_hints_follow_from_the_graph(cluster: StoreCluster, words_output: str) -> None:
    tags = {
        t["path"].removeprefix("/store/words/"): t for j in cluster.jobs("words") for t in j["tags"]
    }
    assert {tag["how"] for tag in tags.values()} <= {"native", "emulated"}
    assert tags["parts/00.txt"]["value"] == "local"
    assert tags["data/short.txt"]["value"] == "3"
    assert tags["counts/00.tsv"]["value"].startswith("collocation merge-")
    # the input of a job without a shell command: its Snakemake removes outputs first
    assert tags["results/words.tsv"]["value"] == "local"
    jobs = cluster.jobs("words")
    counts = [job for job in jobs if job["rule"] == "count"]
    (merge,) = (job for job in jobs if job["rule"] == "merge")
    (split,) = (job for job in jobs if job["rule"] == "split")
    assert split["output_local_bytes"] > 0
    assert split["output_remote_bytes"] == 0
    # the counts are on one node, where their reader ran
    assert merge["input_local_bytes"] == sum(
        job["output_local_bytes"] + job["output_remote_bytes"] for job in counts
    )
    assert merge["input_remote_bytes"] == 0


def test_hints_are_chosen_by_measurements_of_an_earlier_run(cluster: StoreCluster) -> None:
    options = ["--penstock-hints", "auto", "--penstock-platform", "cluster.yaml"]
    printed = cluster.snakemake(EXAMPLES / "Snakefile", "chosen", *options)
    assert "penstock: no hints: no run with records in .penstock has measured the rules" in printed
    first = cluster.jobs("chosen")
    assert len(first) == 11
    assert not any(job["tags"] for job in first)
    assert {p: n for job in first for p, n in job["outputs"].items()} == {
        f"/store/chosen/{path}": len(content)
        for path, content in files(cluster.store / "chosen").items()
        if not path.startswith("logs/")
    }
    printed = cluster.snakemake(EXAMPLES / "Snakefile", "chosen", *options, "--forceall")
    tags = {t["path"]: t for job in cluster.jobs("chosen")[11:] for t in job["tags"]}
    for group, path in (
        ("split -> count, local", "parts/00.txt"),
        ("count -> merge, collocate", "counts/00.tsv"),
        ("short_words -> count, 3 copies", "data/short.txt"),
    ):
        (line,) = (line for line in printed.splitlines() if f"({group}): " in line)
        assert line.startswith("penstock: hint ")
        assert (f"/store/chosen/{path}" in tags) == ("): applied, " in line)


def test_a_choice_of_hints_needs_a_platform(cluster: StoreCluster) -> None:
    printed = cluster.snakemake(FAILING, "unplanned", "--penstock-hints", "auto", status=1)
    assert "--penstock-hints auto: found no platform file; expected that of the store" in printed
    assert "Traceback" not in printed


FAILING = """
rule all:
    input: "good", "bad", "empty"
rule good:
    output: "good"
    shell: "echo good > {output}"
rule twice:
    output: "bad"
    retries: 1
    shell: "echo try >> tries; [ $(wc -l < tries) = 2 ] && echo done > {output}"
rule nothing:
    output: "part"
    shell: "true"
rule empty:
    input: "part"
    output: "empty"
    shell: "cp {input} {output}"
"""


def test_snakemake_sees_a_failed_job(cluster: StoreCluster) -> None:
    printed = cluster.snakemake(FAILING, "failing", "--keep-going", "--latency-wait", "1", status=1)
    directory = cluster.store / "failing"
    assert (directory / "bad").read_text() == "done\n"
    assert (directory / "good").read_text() == "good\n"
    assert "its process ended with status 1" in printed
    # a job that writes nothing has no output, although the file with hints existed before
    assert "MissingOutputException" in printed
    assert "rule nothing" in printed
    assert not (directory / "part").exists()
    assert [j["status"] for j in cluster.jobs("failing") if j["rule"] == "twice"] == [1, 0]


LONG = """
rule all:
    input: "slow"
rule slow:
    output: "slow"
    shell: "echo begun > begun; (setsid sleep {pause}) & sleep {pause}; echo done > {{output}}"
"""


def processes(command: str) -> list[int]:
    """Process ids with this command line."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (
                (process / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
        except OSError:
            continue
        if command_line == command:
            pids.append(int(process.name))
    return pids


def await_result(condition: Callable[[], Any], child: subprocess.Popen[str]) -> Any:
    until = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_jobs_end_with_the_run(cluster: StoreCluster, number: signal.Signals) -> None:
    pause = f"36{number.value:02}.{os.getpid()}"
    argv = cluster.arguments(LONG.format(pause=pause), f"long-{number.name}")
    child = commands.popen(
        [sys.executable, "-m", *argv],
        env=cluster.environment,
        cwd=cluster.where,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    await_result(lambda: len(processes(f"sleep {pause}")) == 2, child)
    child.send_signal(number)
    child.communicate(timeout=PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while processes(f"sleep {pause}"):
        assert time.monotonic() < until
        time.sleep(0.05)
    # the next run completes the outputs
    text = LONG.format(pause="0.1")
    if number == signal.SIGKILL:
        cluster.snakemake(text, f"long-{number.name}", "--unlock")
    cluster.snakemake(text, f"long-{number.name}", "--rerun-incomplete")
    assert (cluster.store / f"long-{number.name}" / "slow").read_text() == "done\n"


def test_a_directory_outside_of_the_store_is_refused(cluster: StoreCluster) -> None:
    argv = ["--executor", "penstock", "--jobs", "1", "--directory", str(cluster.where / "outside")]
    printed = cluster.run("snakemake", "--snakefile", str(EXAMPLES / "Snakefile"), *argv, status=1)
    assert "expected a directory of the store, such as /store/run" in printed
    assert "Traceback" not in printed


def test_a_dry_run_finds_the_results_in_the_store(cluster: StoreCluster, words_output: str) -> None:
    dry = ["-n", "--snakefile", str(EXAMPLES / "Snakefile"), "--directory", "/store/words"]
    printed = cluster.run(
        "snakemake_executor_plugin_penstock", sys.executable, "-m", "snakemake", *dry
    )
    assert "Nothing to be done" in printed


DYING = """
rule all:
    input: expand("out/{n}", n=range(3))
rule one:
    output: "out/{n}"
    retries: 2
    shell:
        "echo begun > begun-{wildcards.n}-$HOSTNAME; until [ -e go ]; do sleep 0.1; done; "
        "echo $HOSTNAME > {output}"
"""


def test_a_job_of_a_dead_node_runs_on_another(cluster: StoreCluster) -> None:
    argv = cluster.arguments(DYING, "dying", "--penstock-slots", "3", "--penstock-hints", "never")
    child = commands.popen(
        [sys.executable, "-m", *argv, "--penstock-scheduler", "workqueue"],
        env=cluster.environment,
        cwd=cluster.where,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    directory = cluster.store / "dying"
    await_result(lambda: len(list(directory.glob("begun-*"))) == 3, child)
    (victim,) = {p.name.split("-", 2)[2] for p in directory.glob("begun-*")} - {"node-0", "node-1"}
    os.kill(cluster.pid(victim), signal.SIGKILL)
    await_result(lambda: len(list(directory.glob("begun-*"))) == 4, child)
    (directory / "go").touch()
    printed, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, printed
    assert f"node {victim} has died" in printed
    hosts = {p.read_text().strip() for p in (directory / "out").iterdir()}
    assert hosts == {"node-0", "node-1"}
