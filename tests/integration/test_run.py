"""`penstock run` with a real fio on an emulated disk: killed, undone, resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles
from penstock.archive.schemas import TABLES
from penstock.archive.schemas.table import BUNDLE_KEYS
from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.storage.mounts import mounts
from tests.integration.known_host import with_known_host
from tests.support import commands
from tests.support.environment import environment_in
from tests.support.waiting import until

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio"),
]

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
STUDY = """
penstock: 1
name: tiny
question: Does it run?
factors:
  pattern:    {levels: {sequential: read, random: randread}}
  block_size: {levels: {4KiB: 4k, 64KiB: 64k}, unit: B}
design: {kind: full, replicates: 1, seed: 3}
platform:
  nodes:
    - name: node1
      memory: 128MiB
      disks: [{name: data, profile: rate-20mib, size: 16MiB}]
workload:
  prepare: fio --name=lay --filename={data}/f --rw=write --bs=1M --size=8M --output=/dev/null
  mutates: false
  command: >
    fio --name=a --filename={data}/f --rw={pattern} --bs={block_size} --direct=1 --size=8M --runtime=1
    --time_based --output-format=json+ --output={run_dir}/fio.json
  timeout: 20s
  parser: fio
responses:
  bandwidth: {from: read_bandwidth, unit: MiB/s, better: higher}
observers:
  monitor: {interval: 100ms}
"""
#: no repetition of runs whose disk a busy host disturbed
ONCE = "retry: {disk: 0}\n"
TRACED = STUDY + "  trace: {mode: trace}\n" + ONCE
#: three runs: one finished before the kill, one interrupted, one not started
SHORT = STUDY.replace("  pattern:    {levels: {sequential: read, random: randread}}\n", "").replace(
    "64KiB: 64k", "16KiB: 16k, 64KiB: 64k"
)
SHORT = SHORT.replace("{pattern}", "read")


def held(text: str, run_id: str) -> str:
    """The study with a command that waits in one run while there is no file `go`, at most 15 s."""
    waits = "touch {study_dir}/held; while [ ! -e {study_dir}/go ]; do sleep 0.1; done"
    return text.replace(
        "{run_dir}/fio.json",
        f"{{run_dir}}/fio.json && case {{run_dir}} in *{run_id}*) timeout 15 sh -c '{waits}';; esac",
    )


PLAIN = """
penstock: 1
name: plain
question: What becomes of a command?
factors:
  word: {levels: [one, two]}
  more: {levels: [a, b]}
design: {kind: full, replicates: 1, seed: 3}
platform:
  nodes:
    - name: node1
      disks: [{name: data, profile: rate-20mib, size: 1MiB}]
workload:
  prepare: echo prepared > {data}/f; echo made >> PREPARED
  mutates: true
  command: COMMAND
  timeout: 8s
responses:
  time: {from: wall_s, unit: s, better: lower}
observers: {monitor: null}
retry: {disk: 0}
"""


@dataclass
class Ground:
    """A directory with a state, a study file and an archive of its own."""

    where: Path
    environment: dict[str, str]

    @property
    def out(self) -> Path:
        return self.where / "out"

    def study(self, text: str) -> Path:
        path = self.where / "tiny.study.yaml"
        path.write_text(text)
        return path

    def penstock(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        argv = [*PENSTOCK, *map(str, arguments)]
        return commands.run(argv, env=self.environment, capture_output=True, text=True)

    def run(self, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.penstock("run", self.study(text), "-o", self.out, "--no-report", *arguments)

    def start(self, text: str, *arguments: str) -> subprocess.Popen[str]:
        argv = [*PENSTOCK, "run", str(self.study(text)), "-o", str(self.out), *arguments]
        return commands.popen(
            argv,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def await_held(self) -> None:
        """Wait until the command of a run of a `held` study waits."""
        until((self.where / "held").exists)

    def leftovers(self) -> dict[str, list[str]]:
        """Objects on the host that belong to this state."""
        journal = Journal(self.where / "state" / "journal.jsonl")
        mounted = [m.point for m in mounts() if str(self.where) in m.point]
        layout = hierarchies()
        roots = {*layout.v1.values(), *([layout.unified] if layout.unified else [])}
        tokens = {t for e in journal.open_entries() for t in [e.token]}
        groups = [str(p) for r in roots for p in r.glob("penstock-*") if _names_run(p, tokens)]
        processes = []
        for pid in os.listdir("/proc"):
            if pid.isdigit() and int(pid) != os.getpid():
                try:
                    environment = Path(f"/proc/{pid}/environ").read_bytes()
                    command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if f"PENSTOCK_STATE={self.where}".encode() in environment:
                    processes.append(command_line.decode(errors="replace"))
        return {
            "mounts": mounted,
            "groups": groups,
            "processes": processes,
            "journal": [f"{e.kind} {e.target}" for e in journal.open_entries()],
            "runtime": [str(p) for p in (self.where / "run").glob("*") if p.is_dir()],
        }


def _names_run(path: Path, tokens: set[str]) -> bool:
    return any(token in path.name for token in tokens)


NOTHING: dict[str, list[str]] = {
    "mounts": [],
    "groups": [],
    "processes": [],
    "journal": [],
    "runtime": [],
}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    with_known_host(tmp_path / "state")
    environment = environment_in(tmp_path)
    return Ground(tmp_path, environment)


def frame(path: Path) -> pd.DataFrame:
    return pq.read_table(path).to_pandas()


def manifest_times(out: Path) -> dict[str, int]:
    """Modification time of the manifest of each run."""
    return {
        b.manifest["run_id"]: (b.path / "manifest.json").stat().st_mtime_ns for b in bundles(out)
    }


@pytest.mark.timeout(180)
def test_a_study_writes_tables_and_leaves_nothing_on_the_host(ground: Ground) -> None:
    result = ground.run(TRACED, "--json")
    assert result.returncode in (0, 1), result.stderr  # 1: a busy host made every run invalid
    assert "measuring the cost of tracing" not in result.stderr  # the state has a measurement
    summary: dict[str, Any] = json.loads(result.stdout)
    assert summary["planned_runs"] == summary["runs"] == 4
    runs = frame(ground.out / "runs.parquet")
    assert set(runs["pattern"]) == {"sequential", "random"}
    assert (runs["state"] == "finished").all()
    assert (runs["bandwidth"] < 20.5).all()  # the disk's 20 MiB/s, however busy the host
    assert runs["bandwidth"].notna().all()
    for bundle in bundles(ground.out):
        check_bundle(bundle)
    assert ground.leftovers() == NOTHING
    assert not (ground.out / "work").exists()

    analysed = ground.penstock("analyse", ground.out, "--json")
    assert json.loads(analysed.stdout)["runs"] == 4
    assert (ground.out / "report.html").is_file()
    refused = ground.run(TRACED)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr

    listing = ground.penstock("ls", "--json")
    (study,) = json.loads(listing.stdout)["studies"]
    assert (study["runs"], study["state"]) == (4, "finished")
    assert ground.penstock("rm", ground.out, "--yes").returncode == 0
    assert not ground.out.exists()
    assert json.loads(ground.penstock("ls", "--json").stdout)["studies"] == []


def check_bundle(bundle: Bundle) -> None:
    """Compare tables and columns with the schemas, and traced bytes with bytes of the disk."""
    assert {"clocks", "phases", "io_events", "files", "patterns", "samples", "utilisation"} <= set(
        bundle.tables
    )
    for name in bundle.tables:
        schema = TABLES[name]
        documented = {c.name for c in (*BUNDLE_KEYS, *schema.columns)}
        columns = bundle.table(name).column_names
        if schema.open_columns is None:
            assert set(columns) <= documented, f"{name}: {set(columns) - documented}"
        missing = {c.name for c in schema.columns} - set(columns)
        assert not missing, f"{name} lacks {missing}"
    manifest = bundle.manifest
    assert manifest["resident_share"] == {"node1.data": 0.0}
    assert manifest["losses"]["trace"] == 0
    events = bundle.table("io_events").to_pandas()
    files = bundle.table("files").to_pandas()
    on_disk = files[files["disk_id"] == "node1.data"]
    assert len(on_disk) == 1
    traced = events[events["file_id"] == on_disk["file_id"].iloc[0]]
    served = bundle.table("device_requests").to_pandas()
    reads = served[served["op"] == "read"]
    assert traced["done_bytes"].sum() == reads["size_bytes"].sum() > 0
    phases = bundle.table("phases").to_pandas().set_index("phase_id")
    workload = phases.loc["workload"]
    assert workload["start_ns"] <= traced["t_ns"].min() < workload["end_ns"]


@pytest.mark.timeout(240)
def test_a_killed_campaign_is_undone_and_resumed(ground: Ground) -> None:
    text = held(SHORT, "r002")
    conductor = ground.start(text)
    ground.await_held()
    os.kill(conductor.pid, signal.SIGKILL)
    conductor.communicate()
    before = manifest_times(ground.out)
    assert set(before) == {"r001"}
    assert ground.leftovers()["journal"] != []  # otherwise there is nothing to undo

    assert ground.penstock("undo", "--json").returncode == 0
    assert ground.leftovers() == NOTHING
    assert ground.penstock("undo").returncode == 0  # a second undo succeeds too

    (ground.where / "go").touch()
    result = ground.run(text, "--resume", "--json")
    assert result.returncode in (0, 1), result.stderr
    summary = json.loads(result.stdout)
    assert summary["runs"] == 3
    after = manifest_times(ground.out)
    first = Bundle.open(ground.out / "runs" / "r001").manifest
    if first["attempt"] == 1:  # valid at first, so not repeated
        assert after["r001"] == before["r001"]
    second = Bundle.open(ground.out / "runs" / "r002").manifest
    assert second["attempt"] >= 2  # the interrupted attempt counts
    assert ground.leftovers() == NOTHING

    invalid = {
        b.manifest["run_id"] for b in bundles(ground.out) if b.manifest.get("repeatable", False)
    }
    summary = json.loads(ground.run(text, "--resume", "--json").stdout)
    assert summary["runs_made_now"] == len(invalid)  # runs that the host made invalid are repeated
    untouched = {r: v for r, v in manifest_times(ground.out).items() if r not in invalid}
    assert untouched == {r: v for r, v in after.items() if r not in invalid}
    after = manifest_times(ground.out)

    changed = text.replace("--runtime=1", "--runtime=2")
    refused = ground.run(changed, "--resume")
    assert refused.returncode == 2
    assert "command: was" in refused.stderr
    assert manifest_times(ground.out) == after


@pytest.mark.timeout(120)
def test_the_next_run_undoes_a_killed_run(ground: Ground) -> None:
    text = held(SHORT, "r001") + ONCE
    conductor = ground.start(text)
    ground.await_held()
    os.kill(conductor.pid, signal.SIGKILL)
    conductor.communicate()
    (ground.where / "go").touch()
    result = ground.run(text, "--resume", "--json")
    assert json.loads(result.stdout)["runs"] == 3
    assert "put back from an earlier run" in result.stderr
    assert ground.leftovers() == NOTHING


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_finished_runs_and_restores_the_host(
    ground: Ground, number: signal.Signals
) -> None:
    conductor = ground.start(held(SHORT, "r002"), "--json")
    ground.await_held()
    os.kill(conductor.pid, number)
    out, err = conductor.communicate(timeout=60)
    assert conductor.returncode == 130, err
    assert json.loads(out)["state"] == "stopped"
    assert set(manifest_times(ground.out)) == {"r001"}
    assert (ground.out / "runs.parquet").exists()
    assert ground.leftovers() == NOTHING
    (study,) = json.loads(ground.penstock("ls", "--json").stdout)["studies"]
    assert study["state"] == "stopped"


@pytest.mark.timeout(120)
def test_failed_runs_are_stored_with_their_messages(ground: Ground) -> None:
    text = PLAIN.replace(
        "COMMAND", "true {more}; echo went wrong >&2; test {word} = one || exit 7; sleep 60"
    )
    text = text.replace("PREPARED", str(ground.where / "made"))
    result = ground.run(text, "--json", "--keep-going")
    assert result.returncode == 1
    assert "no valid run" in result.stderr
    runs = frame(ground.out / "runs.parquet").set_index("word")
    assert set(runs.loc["two", "state"]) == {"failed"}
    assert set(runs.loc["one", "state"]) == {"timed-out"}
    assert runs.loc["two", "reason"].str.contains("status 7: went wrong").all()
    for bundle in bundles(ground.out):
        assert (bundle.path / "stderr.txt").read_text() == "went wrong\n"
    assert ground.leftovers() == NOTHING
    resumed = ground.run(text, "--resume", "--json", "--keep-going")
    assert json.loads(resumed.stdout)["runs_made_now"] == 0


@pytest.mark.timeout(120)
def test_a_failed_first_run_stops_the_campaign_and_is_repeated_on_resume(
    ground: Ground,
) -> None:
    repaired = ground.where / "mended"
    command = (
        f"true {{more}}; test {{word}} = one || test -e {repaired} || (echo bad luck >&2; exit 7)"
    )
    text = PLAIN.replace("COMMAND", command).replace("timeout: 8s", "timeout: 20s")
    text = text.replace("PREPARED", str(ground.where / "made"))
    result = ground.run(text, "--json")
    assert result.returncode == 1
    summary = json.loads(result.stdout)
    assert summary["state"] == "stopped"
    assert "status 7: bad luck" in summary["stopped_because"]
    assert "word two" in summary["stopped_because"]
    assert "--resume" in result.stderr
    states = {b.manifest["run_id"]: b.manifest["state"] for b in bundles(ground.out)}
    (failed,) = (run_id for run_id, state in states.items() if state == "failed")
    assert ground.leftovers() == NOTHING
    repaired.touch()
    result = ground.run(text, "--resume", "--json")
    assert result.returncode in (0, 1), result.stderr
    summary = json.loads(result.stdout)
    assert (summary["state"], summary["stopped_because"]) == ("finished", None)
    by_run = {b.manifest["run_id"]: b.manifest for b in bundles(ground.out)}
    assert {m["state"] for m in by_run.values()} == {"finished"}
    assert by_run[failed]["attempt"] == 2
    attempts = frame(ground.out / "attempts.parquet")
    assert sorted(attempts[attempts["run_id"] == failed]["state"]) == ["failed", "finished"]


@pytest.mark.timeout(120)
def test_each_run_gets_the_prepared_data_unchanged(ground: Ground) -> None:
    command = (
        "': {more}; test \"$(cat {data}/f)\" = prepared && echo {word} > {data}/f && sync {data}/f'"
    )
    text = PLAIN.replace("COMMAND", command)
    result = ground.run(text.replace("PREPARED", str(ground.where / "made")), "--json")
    runs = frame(ground.out / "runs.parquet")
    assert (runs["state"] == "finished").all(), (runs["reason"].tolist(), result.stderr)
    assert (ground.where / "made").read_text() == "made\n"


@pytest.mark.timeout(120)
def test_a_command_that_changes_shared_data_makes_runs_invalid(ground: Ground) -> None:
    text = PLAIN.replace("COMMAND", "': {more}; test {word} = one || echo more >> {data}/f'")
    text = text.replace("mutates: true", "mutates: false")
    result = ground.run(text.replace("PREPARED", str(ground.where / "made")), "--json")
    runs = frame(ground.out / "runs.parquet").set_index("word")
    assert not runs.loc["two", "valid"].any(), result.stderr
    assert runs.loc["two", "reason"].str.contains("mutates: true").all()
    assert not runs.loc["one", "reason"].str.contains("mutates").any()


@pytest.mark.timeout(60)
def test_a_failed_preparation_stops_the_campaign_with_its_message(ground: Ground) -> None:
    text = PLAIN.replace("COMMAND", "'true {word} {more}'").replace(
        "echo made >> PREPARED", "echo no >&2; exit 3"
    )
    result = ground.run(text, "--json")
    assert result.returncode == 1
    assert "preparation ended with status 3: no" in result.stderr
    assert bundles(ground.out) == []
    assert ground.leftovers() == NOTHING


@pytest.mark.timeout(60)
def test_an_invalid_study_changes_nothing(ground: Ground) -> None:
    result = ground.run(STUDY.replace("rate-20mib", "no-such-disk"))
    assert result.returncode == 2
    assert not ground.out.exists()
    assert not (ground.where / "state" / "journal.jsonl").exists()
