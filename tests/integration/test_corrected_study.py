"""A study with failed runs is corrected and resumed in its directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.test_run_changes import manifests, run

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
]

STUDY = """
penstock: 1
name: corrected
question: Which is faster?
factors: {n: {levels: [1, 2]}}
design: {kind: full, replicates: 1}
platform: {nodes: [{name: n}]}
workload: {command: COMMAND, timeout: 30s, expected: 1s}
responses: {t: {from: wall_s, unit: s, better: lower}}
observers: {monitor: null}
settle: {resident_at_most: null}
"""


def test_a_corrected_study_is_resumed(tmp_path: Path) -> None:
    path, out = tmp_path / "corrected.study.yaml", tmp_path / "out"
    path.write_text(STUDY.replace("COMMAND", "'no-such-program {n}'"))
    failed = run(tmp_path, "run", "--no-report", str(path), "-o", str(out))
    assert failed.returncode == 1
    assert "continue with --resume" in failed.stderr
    path.write_text(STUDY.replace("COMMAND", "'sleep 0.{n}'"))
    resumed = run(tmp_path, "run", "--no-report", str(path), "-o", str(out), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "repeating what is not valid: r001" in resumed.stderr
    runs = manifests(out)
    assert {name: m["valid"] for name, m in runs.items()} == {
        "r001": True,
        "r001.attempt1": False,
        "r002": True,
    }
    # valid runs must not change
    path.write_text(STUDY.replace("COMMAND", "'sleep 0.0{n}'"))
    refused = run(tmp_path, "run", "--no-report", str(path), "-o", str(out), "--resume")
    assert refused.returncode == 2
    assert "the study has changed in what alters valid runs" in refused.stderr
    assert manifests(out) == runs
