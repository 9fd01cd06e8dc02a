"""`penstock explore --confirm` on a store: both placements, predicted and measured."""

from __future__ import annotations

import json
import sys
import time

import pytest

from penstock.parts.prediction.exploration.confirmation.confirm import RUNS
from penstock.parts.prediction.workloads.synthetic import Shape, pipeline
from penstock.parts.stores.engines.moosefs import MooseFS
from tests.integration.node_ground import NODES, Ground, one_ground  # noqa: F401 (fixture)
from tests.support import commands

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MooseFS().missing()), reason=MooseFS().missing() or "MooseFS"),
]

PLATFORM = """
penstock_platform: 1
name: gt-confirm
hosts:
  - {group: head, count: 1, roles: [manager], manager: {service: 0.5ms}}
  - group: node
    count: 2
    roles: [storage, client]
    storage: {read: 1ms, write: 1ms}
    disks: [{name: store, limits: {read: 40MB/s, write: 40MB/s}}]
network: {bandwidth: 40 Mbit/s, loopback: 1 GB/s, subnet: 10.97.0.0/24}
store: {engine: moosefs}
"""


def test_placements_are_measured_once_and_the_store_is_removed(ground: Ground) -> None:
    workflow = pipeline(Shape(width=2, file_bytes=1 << 20, compute_s=0.1), stages=2)
    (ground.where / "w.json").write_text(json.dumps(workflow.to_dict()))
    (ground.where / "p.yaml").write_text(PLATFORM)
    argv = ["explore", "w.json", "-p", "p.yaml", "--vary", "placement=default,workflow-aware"]
    argv += ["--objective", "time", "--seeds", "5", "--confirm", "2", "--repeat", "1"]
    documents = []
    for resume in ([], ["--resume"]):
        result = commands.run(
            [sys.executable, "-m", "penstock", *argv, "-o", "out", "--json", *resume],
            env=ground.environment,
            cwd=ground.where,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert result.returncode == 0, result.stderr
        documents.append(json.loads(result.stdout))
    rows = documents[0]["confirmed"]["rows"]
    assert {row["levels"]["placement"] for row in rows} == {"default", "workflow-aware"}
    assert [row["error"] for row in rows] == ["", ""]
    # a stage computes 0.1 s, whatever the store does
    assert all(row["measured_s"] > 0.2 for row in rows)
    assert documents[0]["confirmed"]["tau"] in (-1.0, 1.0)
    assert documents[1]["confirmed"]["rows"] == rows
    assert len((ground.where / "out" / RUNS).read_text().splitlines()) == 2
    page = (ground.where / "out" / "exploration.html").read_text()
    assert "Predicted and measured" in page
    until = time.monotonic() + 60  # interfaces disappear shortly after their namespace
    kinds = ("processes", "links", "tokens")
    while (
        any((remaining := ground.host_objects())[kind] for kind in kinds)
        and time.monotonic() < until
    ):
        time.sleep(0.1)
    assert [remaining[kind] for kind in kinds] == [[], [], []]
