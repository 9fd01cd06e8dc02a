"""Disks that no command of a study uses, and hosts without a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import _build
from penstock.study.load import read_study
from penstock.study.unused import unused_disks

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.study.yaml"))
TEXT = """penstock: 1
name: s
question: Which?
factors: {memory: {levels: [64MiB, 128MiB]}}
design: {kind: full}
platform:
  nodes:
    - {name: n, memory: "{memory}", disks: [{name: data, profile: hdd-7200}, {name: log, profile: hdd-7200}]}
workload: {WORKLOAD}
responses: {t: {from: wall_s, unit: s, better: lower}}
"""


def warnings_of(workload: str) -> list[str]:
    return unused_disks(read_study(TEXT.replace("{WORKLOAD}", workload).encode(), Path("s.yaml")))


def test_unused_disks_cause_a_warning() -> None:
    (text,) = warnings_of("{command: 'true'}")
    assert text.startswith("the disks data and log are not used: no command")
    (text,) = warnings_of("{command: 'dd of={data}/x'}")
    assert text.startswith(
        "the disk log is not used: no command, directory or variable of the workload"
    )


@pytest.mark.parametrize(
    "workload",
    [
        "{command: 'db {data} {log}'}",
        "{command: 'db {n.log}', directory: '{data}'}",
        "{command: db, env: {LOG: '{log}', DATA: '{data}'}}",
        "{command: db, prepare: 'cp x {data}', services: [{name: d, command: 'daemon {log}'}]}",
    ],
)
def test_used_disks_cause_no_warning(workload: str) -> None:
    assert warnings_of(workload) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_use_their_disks(path: Path) -> None:
    assert unused_disks(read_study(path.read_bytes(), path)) == []


def test_the_plan_warns(tmp_path: Path) -> None:
    file = tmp_path / "s.study.yaml"
    file.write_text(TEXT.replace("{WORKLOAD}", "{command: 'true'}"))
    result = CliRunner().invoke(_build(), ["plan", str(file), "--json"])
    assert "the disks data and log are not used" in " ".join(json.loads(result.stdout)["warnings"])


@pytest.mark.parametrize(("replicates", "idle"), [(1, "b and c"), (2, "c"), (3, "")])
def test_the_plan_warns_of_hosts_without_a_pass(tmp_path: Path, replicates: int, idle: str) -> None:
    file = tmp_path / "s.study.yaml"
    text = TEXT.replace("{WORKLOAD}", "{command: 'true {data} {log}'}")
    text = text.replace("{kind: full}", f"{{kind: full, replicates: {replicates}}}")
    workers = "[{name: a}, {name: b, ssh: b}, {name: c, ssh: c}]"
    file.write_text(f"{text}hosts: {{listen: 192.0.2.1, workers: {workers}}}\n")
    result = CliRunner().invoke(_build(), ["plan", str(file), "--json"])
    warnings = [w for w in json.loads(result.stdout)["warnings"] if "will make no run" in w]
    assert [w.partition(" will")[0] for w in warnings] == ([idle] if idle else [])
