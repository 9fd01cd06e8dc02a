"""A study whose programs write into a shared store, which each run starts on its nodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.node_ground import NODES
from tests.integration.test_run_nodes import Ground, leftovers, study
from tests.integration.test_run_nodes import ground as ground

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("mfsmaster"), reason="needs moosefs-master"),
]
STUDY = """\
penstock: 1
name: stored
question: How many copies does a file have?
factors: {copies: {levels: [1, 2]}}
design: {kind: full, replicates: 1}
platform:
  nodes:
    - {name: head}
    - {name: node, count: 2, disks: [{name: data, limits: {read: 400MB/s, write: 400MB/s}}]}
  network: {bandwidth: 400 Mbit/s}
  store: {engine: moosefs, manager: head, storage: node-*, clients: node-*, replicas: "{copies}"}
workload:
  command: >-
    df --output=source {store} | grep -q ^mfs &&
    dd if=/dev/urandom of={store}/file bs=1M count=8 conv=fsync &&
    for i in $(seq 80); do
    [ $(mfsfileinfo {store}/file | grep -c "copy ") -ge {copies} ] && break; sleep 0.5; done;
    mfsfileinfo {store}/file
  on: node-0
  timeout: 60s
responses: {wall: {from: wall_s, unit: s, better: lower}}
observers: {monitor: null}
"""


# MooseFS writes one copy if the other chunk server is slow to reply, and adds the second much later
@pytest.mark.timed
def test_a_study_writes_into_its_store_and_leaves_nothing_on_the_host(ground: Ground) -> None:
    path = study(ground, STUDY)
    out = ground.where / "out"
    result = ground.penstock("run", "--no-report", str(path), "-o", str(out), "--json")
    assert result.returncode in (0, 3), result.stderr
    copies = {}
    for run in Path(out, "runs").iterdir():
        manifest = json.loads((run / "manifest.json").read_text())
        copies[manifest["levels"]["copies"]] = (run / "stdout.txt").read_text().count("copy ")
    assert copies == {"1": 1, "2": 2}
    assert leftovers(ground) == {"mounts": [], "processes": [], "files": []}


def test_a_timeout_of_the_command_does_not_kill_daemons_of_the_store(ground: Ground) -> None:
    # a kill of the node's manager with the command would block the unmounting forever
    text = STUDY.replace("on: node-0", "on: head").replace("timeout: 60s", "timeout: 2s")
    command = text[text.index("  command: >-") : text.index("  on: head")]
    path = study(ground, text.replace(command, "  command: sleep 60\n"))
    out = ground.where / "out"
    result = ground.penstock("run", "--no-report", str(path), "-o", str(out), "--json")
    assert result.returncode == 1, result.stderr
    assert "took longer than 2 s" in result.stderr, result.stderr
    assert "unmounting" not in result.stderr
    assert leftovers(ground) == {"mounts": [], "processes": [], "files": []}
