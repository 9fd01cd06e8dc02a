"""Studies with responses from the trace, and with filters and layers of the tracer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles
from tests.integration.tracing import NEEDS_TRACER, known_cost, penstock
from tests.support.environment import environment_in

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER
#: prime numbers of requests
READS, FLUSHES = 1009, 7
PROGRAM = f"""
import os, random, sys
place, order = sys.argv[1:]
numbers = list(range({READS}))
if order == "random":
    random.Random(5).shuffle(numbers)
table = os.open(place + "/t.wt", os.O_RDONLY)
for number in numbers:
    os.pread(table, 4096, number * 4096)
log = os.open(place + "/t.log", os.O_CREAT | os.O_WRONLY)
for _ in range({FLUSHES}):
    os.write(log, bytes(512)); os.fsync(log)
"""
STUDY = f"""penstock: 1
name: order
question: Does the order of the reads differ?
factors: {{order: {{levels: [consecutive, random]}}}}
design: {{kind: full, replicates: 1}}
platform: {{nodes: [{{name: n, disks: [{{name: data, directory: PLACE}}]}}]}}
workload:
  prepare: head -c {READS * 4096} /dev/zero > {{data}}/t.wt
  mutates: true
  command: PYTHON PROGRAM {{data}} {{order}}
responses:
  consecutive: {{from: {{trace: consecutive_share, file: t.wt}}, unit: '%', better: higher}}
  reads: {{from: {{trace: requests, file: t.wt, direction: read}}, unit: '1', better: lower}}
MORE
observers: {{monitor: null, trace: TRACE}}
"""


def run(directory: Path, tracer: str, responses: str = "") -> list[Bundle]:
    """Bundles of the runs with consecutive and random order."""
    (directory / "program.py").write_text(PROGRAM)
    (directory / "place").mkdir()
    text = STUDY.replace("PLACE", str(directory / "place")).replace("TRACE", tracer)
    text = text.replace("PYTHON PROGRAM", f"{sys.executable} {directory / 'program.py'}")
    (directory / "order.study.yaml").write_text(text.replace("MORE", responses))
    environment = environment_in(directory) | {"PENSTOCK_STATE": os.environ["PENSTOCK_STATE"]}
    arguments = ("run", directory / "order.study.yaml", "-o", directory / "out", "--no-report")
    penstock(*arguments, env=environment)
    runs = {bundle.manifest["levels"]["order"]: bundle for bundle in bundles(directory / "out")}
    assert all(bundle.manifest["valid"] for bundle in runs.values())
    return [runs["consecutive"], runs["random"]]


def paths(bundle: Bundle) -> set[str]:
    """Names of the accessed files."""
    return {path.rpartition("/")[2] for path in bundle.table("patterns")["path"].to_pylist()}


def test_the_order_of_reads_is_a_response(tmp_path: Path) -> None:
    consecutive, shuffled = run(tmp_path, "{mode: pattern, endings: [.wt]}")
    orders = [b.manifest["responses"]["consecutive"]["value"] for b in (consecutive, shuffled)]
    assert orders[0] > 99
    assert orders[1] < 5
    for bundle in (consecutive, shuffled):
        assert bundle.manifest["responses"]["reads"]["value"] == READS
        assert bundle.manifest["filters"] == {"endings": [".wt"]}
        assert paths(bundle) == {"t.wt"}


def test_layers_and_flushes_are_recorded(tmp_path: Path) -> None:
    responses = (
        "  flushes: {from: {trace: flushes, file: t.log}, unit: '1', better: lower}\n"
        "  slowest: {from: {trace: p99_latency, file: t.wt}, unit: ms, better: lower}"
    )
    runs = run(tmp_path, "{mode: trace, layers: true}", responses)
    for bundle in runs:
        assert bundle.manifest["responses"]["flushes"]["value"] == FLUSHES
        assert bundle.manifest["responses"]["slowest"]["value"] > 0
        assert "filters" not in bundle.manifest
        assert {"t.wt", "t.log"} <= paths(bundle)
        assert {"cache_use", "residency", "extents"} <= set(bundle.tables)
        layers = bundle.manifest["receipts"]["trace"]["layers"]
        assert layers["lost"] == 0
