"""Small versions of the studies on nodes with different disks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from penstock.archive.bundle import Bundle
from tests.support import commands

STUDIES = Path(__file__).parents[2] / "studies"
pytestmark = [
    pytest.mark.timed,
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and control groups"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
]
BLOCKS, BLOCK_BYTES = 18, 400_000
LIMITS_BPS = {"fast": 8e6, "slow": 4e6}

STUDY = """
penstock: 1
name: job
question: Does a job take what its disks let through?
factors:
  limit: {{levels: {{fast: 8 MB/s, slow: 4 MB/s}}}}
design: {{kind: full, replicates: 1}}
platform:
  nodes:
    - {{name: head}}
    - name: n
      count: 3
      disks:
        - name: data
          profile: sata-ssd
          time_scale: 4
          size: 64MiB
          limits: {{read: "{{limit}}", write: "{{limit}}"}}
workload:
  prepare: >
    {{python}} {{study_dir}}/heterogeneous/job.py make {blocks} {block_bytes} 2 7
    {{n-0.data}} {{n-1.data}} {{n-2.data}}
  services:
    - name: work
      on: "n-*"
      command: >
        {{python}} {{study_dir}}/heterogeneous/job.py work --reduce n-0,n-2
        {{node}} {{data}} head n-0 n-1 n-2
      ready: {{port: 21301}}
  on: head
  command: >
    {{python}} {{study_dir}}/heterogeneous/job.py run --reduce n-0,n-2
    --out {{run_dir}}/job.json n-0 n-1 n-2
  expected: 5s
  timeout: 60s
responses:
  time: {{from: {{regex: 'seconds: ([0-9.]+)'}}, unit: s, better: lower}}
observers: {{monitor: null}}
"""


def least_s(requests: pd.DataFrame, stages: dict[str, list[int]], bps: float) -> float:
    """Lower bound of the time of all stages on disks with a limit of `bps` [s]."""
    total_s = 0.0
    for begin, end in stages.values():
        served = requests[(requests["done_ns"] > begin) & (requests["done_ns"] <= end)]
        sizes = served.groupby([served["disk_id"].astype(str), served["op"].astype(str)])[
            "size_bytes"
        ]
        total_s += float(sizes.sum().max()) / bps
    return total_s


def test_a_job_takes_the_time_of_its_limited_disks(tmp_path: Path) -> None:
    shutil.copytree(STUDIES / "heterogeneous", tmp_path / "heterogeneous")
    study = tmp_path / "job.study.yaml"
    study.write_text(STUDY.format(blocks=BLOCKS, block_bytes=BLOCK_BYTES))
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "penstock", "run", "--no-report", str(study), "-o", str(out)]
    result = commands.run(argv, capture_output=True, text=True, timeout=200)
    assert (out / "runs.parquet").exists(), result.stderr
    sums = set()
    for row in pd.read_parquet(out / "runs.parquet").to_dict("records"):
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        assert bundle.manifest["exit_status"] == 0, row["reason"]
        report = json.loads((bundle.path / "workload" / "job.json").read_text())
        sums.add(report["checksum"])
        assert report["records"] == BLOCKS * BLOCK_BYTES // 100
        assert sum(t["kind"] == "map" for t in report["tasks"]) == BLOCKS
        assert report["last_reducer"] in ("n-0", "n-2")
        requests = bundle.table("device_requests").to_pandas()
        # the disks, not a cache, read all input and wrote all output
        size = requests.groupby(requests["op"].astype(str))["size_bytes"].sum()
        assert size["write"] >= 0.99 * 2 * BLOCKS * BLOCK_BYTES
        assert size["read"] >= 0.99 * 2 * BLOCKS * BLOCK_BYTES
        limit = LIMITS_BPS[str(row["limit"])]
        # a disk never exceeds its limit; it reaches the limit only in runs with a valid certificate
        assert report["seconds"] >= 0.95 * least_s(requests, report["stages"], limit)
        if row["valid"]:
            assert report["seconds"] <= 3 * least_s(requests, report["stages"], limit)
            # planted: disks with a quarter of the limit are slower
            assert report["seconds"] < 0.95 * least_s(requests, report["stages"], limit / 4)
    assert len(sums) == 1


def test_clients_that_measure_avoid_the_slow_replica(tmp_path: Path) -> None:
    argv = [sys.executable, str(STUDIES / "load_balance.py"), "--quick", "--invalid", "--json"]
    result = commands.run(
        [*argv, "-o", str(tmp_path / "out")], capture_output=True, text=True, timeout=200
    )
    assert result.stdout, result.stderr
    claims = {c["wording"]: c for c in json.loads(result.stdout)["claims"]}
    # on a busy host no run is valid; `relaxed` evaluates invalid runs, too
    for wording, claim in claims.items():
        if wording.startswith(("s-0 slow", "s-0 fast", "blind")):
            assert claim["relaxed"]["result"] == "met", claim
