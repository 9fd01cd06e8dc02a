"""What another package adds, in a real study and a real trace; and our own rows by the same checks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import testing
from penstock.archive.runs import bundles
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.plugins import (
    DISK_BACKENDS,
    NODE_RUNTIMES,
    OBSERVERS,
    TRACE_EXPORTERS,
    TRACE_FINDINGS,
)
from penstock.spec.cluster import DiskSpec
from tests.support import commands

from .known_host import with_known_host
from .node_ground import NODES, Ground, one_ground
from .tracing import NEEDS_TRACER, trace

__all__ = ["one_ground"]  # a fixture

pytestmark = NODES
TOYS = Path(__file__).parents[1] / "plugins"
STUDY = """
penstock: 1
name: toys
question: Which toy is the fastest?
factors:
  size: {levels: [1, 2]}
  colour: {levels: [red, blue]}
design: {kind: {toy: {runs: 2}}, replicates: 2}
platform: {runtime: toy, nodes: [{name: n, disks: [{name: d, profile: service-5ms, backend: toy}]}]}
workload: {command: "echo {colour} > {n.d}/file && cat {n.d}/file && echo toy: {size}000", parser: toy}
observers: {monitor: null, toy: {file: /proc/uptime}}
responses: {toys: {from: toys, unit: 1/s, better: higher}}
"""


def with_toys(ground: Ground, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "penstock", *words]
    env = {**ground.environment, "PYTHONPATH": str(TOYS)}
    return commands.run(line, env=env, capture_output=True, text=True, timeout=120)


def test_a_study_on_one_node_with_a_toy_of_each_kind(ground: Ground) -> None:
    before = ground.seen()
    path = ground.where / "toys.study.yaml"
    path.write_text(STUDY)
    out = ground.where / "out"
    done = with_toys(ground, "run", "--no-report", str(path), "-o", str(out), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["planned_runs"], result["valid_runs"]) == (4, 4), result["left_out"]
    assert "toys" in result["answer"][0]
    codes = {f["code"]: f["statement"] for f in pq.read_table(out / "findings.parquet").to_pylist()}
    assert codes["toy-runs"] == "A toy counts 4 runs."
    assert pq.read_table(out / "toys.parquet").to_pylist() == [{"runs": 4}]
    for bundle in bundles(out):
        assert pq.read_table(bundle.path / "toys.parquet").num_rows == 1
        assert bundle.manifest["receipts"]["toy"] == {"observer": "toy"}
        (disk,) = bundle.manifest["place"]["disks"].values()
        assert disk["backend"] == "toy"
    with_toys(ground, "nodes", "down", "--all")
    assert ground.seen()["mounts"] == before["mounts"]


def test_a_study_in_a_place_of_another_package(ground: Ground) -> None:
    path = ground.where / "place.study.yaml"
    path.write_text(
        STUDY.replace("platform: {runtime: toy, ", "platform: {")
        .replace(", backend: toy", "")
        .replace("{kind: {toy: {runs: 2}}, replicates: 2}", "{kind: full}")
        .replace(", parser: toy}", ", parser: toy, env: {TOY_PLACE: '1'}}")
        .replace("{n.d}", "{d}")
    )
    out = ground.where / "out"
    done = with_toys(ground, "run", "--no-report", str(path), "-o", str(out), "--json")
    assert done.returncode == 0, done.stderr
    places = [bundle.manifest["place"] for bundle in bundles(out)]
    assert places
    assert all(place == {"toy": True} for place in places)


@pytest.fixture(autouse=True, scope="module")
def known_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """State directory of this module's tests, in which what is measured of a host is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE", str(with_known_host(tmp_path_factory.mktemp("known"))))
        yield


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("traced")
    line = ["dd", "if=/dev/zero", f"of={where / 'file'}", "bs=4k", "count=200", "oflag=dsync"]
    bundle = where / "bundle"
    trace(*line, options=("--mode", "trace", "-o", str(bundle)))
    return bundle


@pytest.mark.parametrize("form", sorted(TRACE_EXPORTERS))
@NEEDS_TRACER[1]
@NEEDS_TRACER[2]
def test_our_exporters_keep_to_the_protocol(form: str, traced: Path) -> None:
    testing.check_exporter(TRACE_EXPORTERS.load(form), traced)


@pytest.mark.parametrize("name", sorted(TRACE_FINDINGS))
@NEEDS_TRACER[1]
@NEEDS_TRACER[2]
def test_our_findings_keep_to_the_protocol(name: str, traced: Path) -> None:
    testing.check_finding(TRACE_FINDINGS.load(name), [traced])


def test_toys_of_a_trace(ground: Ground, traced: Path) -> None:
    target = ground.where / "out.toy"
    done = with_toys(ground, "export", str(traced), "toy", "-o", str(target), "--json")
    assert done.returncode == 0, done.stderr
    assert len(target.read_text().splitlines()) == json.loads(done.stdout)["events"]
    analysed = with_toys(ground, "analyse", str(traced), "--json")
    assert analysed.returncode == 0, analysed.stderr
    assert any(f["code"] == "toy-files" for f in json.loads(analysed.stdout)["findings"])


@pytest.mark.parametrize("name", OBSERVERS.own)
def test_our_observers_keep_to_the_protocol(name: str, tmp_path: Path) -> None:
    of: dict[str, dict[str, Any]] = {
        "monitor": {"interval_s": 0.1},
        "trace": {"mode": "pattern"},
        "collect": {"push": {"type": "influxdb"}},
    }
    settings = of[name]
    with create_run_cgroup("plugins", None, Journal(tmp_path / "journal.jsonl")) as group:
        testing.check_observer(OBSERVERS.load(name), settings, group)


def test_the_disk_server_keeps_to_the_protocol() -> None:
    testing.check_backend(DISK_BACKENDS.load("fuse"))


@pytest.mark.parametrize("name", sorted(NODE_RUNTIMES))
def test_our_runtimes_keep_to_the_protocol(name: str, ground: Ground) -> None:
    if lacking := NODE_RUNTIMES.load(name).missing():
        pytest.skip(lacking)
    before = ground.seen()
    testing.check_runtime(name)
    assert ground.seen()["mounts"] == before["mounts"]


def test_a_toy_makes_nodes(ground: Ground) -> None:
    code = "from penstock import testing; testing.check_runtime('toy')"
    line = [*commands.CODE, code]
    env = {**ground.environment, "PYTHONPATH": str(TOYS)}
    done = commands.run(line, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_back_end_that_leaves_its_mount_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOYS))
    from penstock_toy.backend import ToyBackend, ToyDisk  # type: ignore[import-not-found]

    testing.check_backend(ToyBackend, DiskSpec("d"))
    unmounts = ToyDisk.down
    left: list[Any] = []
    monkeypatch.setattr(ToyDisk, "down", lambda self: left.append(self) or self.stats())
    try:
        with pytest.raises((AssertionError, OSError)):
            testing.check_backend(ToyBackend, DiskSpec("d"))
    finally:
        for disk in left[:1]:
            place = disk.mount.parent
            unmounts(disk)
            shutil.rmtree(place, ignore_errors=True)
