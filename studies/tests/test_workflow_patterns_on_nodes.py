"""The study of workflow patterns on a small MooseFS: effect of hints, and counts of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.parts.stores.engines.moosefs import MooseFS
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT
from penstock.platform.hosts import load_platform
from studies import workflow_patterns
from studies.patterns_study import runs
from studies.patterns_study.runs import Part
from studies.patterns_study.treatments import COPIES, QUICK, Ground, Treatment
from studies.stores import DEFAULT as MODEL
from studies.stores import models
from tests.integration.node_ground import NODES

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]

KIB, COUNT = 512, 4
FILE_BYTES = KIB * 1024


def test_hints_keep_the_files_of_a_pipeline_on_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = load_platform(runs.HERE / "cluster.platform.yaml")
    text = platform.with_values(models("moosefs")[MODEL]).to_yaml()
    monkeypatch.setattr(runs, "seeded", lambda *_: text)
    ground = Ground("moosefs", (COUNT,), (("pipeline", KIB), ("broadcast", KIB)))
    part = Part("moosefs", replace(QUICK, repeat=2, seeds=2, scaled=()))
    runs.measure(ground, part, lambda result: workflow_patterns.store_part(tmp_path, result))
    assert workflow_patterns.read_part(tmp_path / "moosefs.json") == part

    def last(store: str, pattern: str = "pipeline", copies: int = 0) -> runs.Run:
        treatment = Treatment("moosefs", COUNT, pattern, KIB, store, copies)
        return [run for run in part.runs if run.treatment == treatment][-1]

    # a chain of three tasks on each node; each reads a file and writes one
    moved = COUNT * 3 * 2 * FILE_BYTES
    assert last(DEFAULT).moved_bytes == last(AWARE).moved_bytes == moved
    # files of an input and three outputs
    assert last(AWARE).stored_bytes == COUNT * 4 * FILE_BYTES
    # an input is on its group's node; all other files are local
    assert last(AWARE).remote_bytes <= COUNT * FILE_BYTES
    # MooseFS places a new file on each node in turn, in random order: one run in 3,400 has as few
    # remote bytes by chance, both runs one time in 10 million
    default = [run for run in part.runs if run.treatment == last(DEFAULT).treatment]
    assert len(default) >= 2
    assert max(run.remote_bytes for run in default) > COUNT * FILE_BYTES
    assert set(last(AWARE).stages_s) == {"stage-1", "stage-2", "stage-3"}
    results = COUNT * (FILE_BYTES // 10)
    for copies in COPIES:
        assert last(AWARE, "broadcast", copies).stored_bytes == copies * FILE_BYTES + results
    for run in part.runs:
        assert run.energy_j > 0
        assert run.reason == "" or "busy" in run.reason
