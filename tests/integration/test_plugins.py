"""Plug-ins of another package in a real study and trace; the same checks of the built-in ones."""

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


def with_toys(ground: Ground, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "penstock", *arguments]
    env = {**ground.environment, "PYTHONPATH": str(TOYS)}
    return commands.run(argv, env=env, capture_output=True, text=True, timeout=120)


def test_a_study_on_one_node_with_a_toy_of_each_kind(ground: Ground) -> None:
    before = ground.host_objects()
    path = ground.where / "toys.study.yaml"
    path.write_text(STUDY)
    out = ground.where / "out"
    run = with_toys(ground, "run", "--no-report", str(path), "-o", str(out), "--json")
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert (summary["planned_runs"], summary["valid_runs"]) == (4, 4), summary["left_out"]
    assert "toys" in summary["answer"][0]
    codes = {f["code"]: f["statement"] for f in pq.read_table(out / "findings.parquet").to_pylist()}
    assert codes["toy-runs"] == "A toy counts 4 runs."
    assert pq.read_table(out / "toys.parquet").to_pylist() == [{"runs": 4}]
    for bundle in bundles(out):
        assert pq.read_table(bundle.path / "toys.parquet").num_rows == 1
        assert bundle.manifest["receipts"]["toy"] == {"observer": "toy"}
        (disk,) = bundle.manifest["place"]["disks"].values()
        assert disk["backend"] == "toy"
    with_toys(ground, "nodes", "down", "--all")
    assert ground.host_objects()["mounts"] == before["mounts"]


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
    run = with_toys(ground, "run", "--no-report", str(path), "-o", str(out), "--json")
    assert run.returncode == 0, run.stderr
    places = [bundle.manifest["place"] for bundle in bundles(out)]
    assert places
    assert all(place == {"toy": True} for place in places)


@pytest.fixture(autouse=True, scope="module")
def known_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a state directory with recorded measurements of the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE", str(with_known_host(tmp_path_factory.mktemp("known"))))
        yield


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traced")
    argv = ["dd", "if=/dev/zero", f"of={directory / 'file'}", "bs=4k", "count=200", "oflag=dsync"]
    bundle = directory / "bundle"
    trace(*argv, options=("--mode", "trace", "-o", str(bundle)))
    return bundle


@pytest.mark.parametrize("form", sorted(TRACE_EXPORTERS))
@NEEDS_TRACER[1]
@NEEDS_TRACER[2]
def test_built_in_exporters_follow_the_protocol(form: str, traced: Path) -> None:
    testing.check_exporter(TRACE_EXPORTERS.load(form), traced)


@pytest.mark.parametrize("name", sorted(TRACE_FINDINGS))
@NEEDS_TRACER[1]
@NEEDS_TRACER[2]
def test_built_in_findings_follow_the_protocol(name: str, traced: Path) -> None:
    testing.check_finding(TRACE_FINDINGS.load(name), [traced])


def test_toys_export_and_analyse_a_trace(ground: Ground, traced: Path) -> None:
    target = ground.where / "out.toy"
    exported = with_toys(ground, "export", str(traced), "toy", "-o", str(target), "--json")
    assert exported.returncode == 0, exported.stderr
    assert len(target.read_text().splitlines()) == json.loads(exported.stdout)["events"]
    analysed = with_toys(ground, "analyse", str(traced), "--json")
    assert analysed.returncode == 0, analysed.stderr
    assert any(f["code"] == "toy-files" for f in json.loads(analysed.stdout)["findings"])


@pytest.mark.parametrize("name", OBSERVERS.own)
def test_built_in_observers_follow_the_protocol(name: str, tmp_path: Path) -> None:
    settings_of: dict[str, dict[str, Any]] = {
        "monitor": {"interval_s": 0.1},
        "trace": {"mode": "pattern"},
        "collect": {"push": {"type": "influxdb"}},
    }
    settings = settings_of[name]
    with create_run_cgroup("plugins", None, Journal(tmp_path / "journal.jsonl")) as group:
        testing.check_observer(OBSERVERS.load(name), settings, group)


def test_the_disk_server_follows_the_protocol() -> None:
    testing.check_backend(DISK_BACKENDS.load("fuse"))


@pytest.mark.parametrize("name", sorted(NODE_RUNTIMES))
def test_built_in_runtimes_follow_the_protocol(name: str, ground: Ground) -> None:
    if lacking := NODE_RUNTIMES.load(name).missing():
        pytest.skip(lacking)
    before = ground.host_objects()
    testing.check_runtime(name)
    assert ground.host_objects()["mounts"] == before["mounts"]


def test_a_toy_runtime_follows_the_protocol(ground: Ground) -> None:
    code = "from penstock import testing; testing.check_runtime('toy')"
    argv = [*commands.CODE, code]
    env = {**ground.environment, "PYTHONPATH": str(TOYS)}
    result = commands.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_check_detects_a_back_end_that_leaves_its_mount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TOYS))
    from penstock_toy.backend import ToyBackend, ToyDisk  # type: ignore[import-not-found]

    testing.check_backend(ToyBackend, DiskSpec("d"))
    unmounts = ToyDisk.down
    mounted: list[Any] = []
    monkeypatch.setattr(ToyDisk, "down", lambda self: mounted.append(self) or self.stats())
    try:
        with pytest.raises((AssertionError, OSError)):
            testing.check_backend(ToyBackend, DiskSpec("d"))
    finally:
        for disk in mounted[:1]:
            directory = disk.mount.parent
            unmounts(disk)
            shutil.rmtree(directory, ignore_errors=True)
