"""The straggler of a study on several nodes: named if the tables show it, with the planted cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from penstock.analyse.findings.findings import Finding, findings
from penstock.analyse.outcome import Outcome
from penstock.report.nodes import nodes

SECOND = 10**9
MIB = 1 << 20
STUDY = """penstock: 1
name: three
factors: {slow: {levels: [max, 3 MB/s]}}
platform:
  nodes:
    - {name: n1, disks: [{name: d, profile: hdd-7200}]}
    - {name: n2, disks: [{name: d, profile: hdd-7200, limits: {read: "{slow}"}}]}
    - {name: n3, cpus: 0.5, disks: [{name: d, profile: hdd-7200}]}
"""


def write_runs(
    path: Path,
    *runs: dict[str, tuple[float, float, int]],
    wall_s: float = 10.0,
    profiles: dict[str, str] | None = None,
    cpu: dict[str, float] | None = None,
) -> Path:
    """Runs of one treatment; by node: seconds at work, MiB and requests of its disk."""
    path.mkdir()
    (path / "study.yaml").write_text(STUDY)
    rows = [{"run_id": f"r{n:03}", "treatment_id": "t01"} for n in range(1, len(runs) + 1)]
    plan = [row | {"levels": {"slow": "3 MB/s"}} for row in rows]
    (path / "plan.json").write_text(
        json.dumps({"rows": plan, "factors": [{"name": "slow", "levels": ["max", "3 MB/s"]}]})
    )
    pd.DataFrame([row | {"valid": True, "slow": "3 MB/s"} for row in rows]).to_parquet(
        path / "runs.parquet"
    )
    for row, loads in zip(rows, runs, strict=True):
        bundle = path / "runs" / row["run_id"]
        bundle.mkdir(parents=True)
        disks = {f"{n}.d": {"profile": (profiles or {}).get(n, "hdd-7200")} for n in loads}
        manifest = {
            "times": {"start_ns": 0, "end_ns": round(wall_s * SECOND)},
            "disks": disks,
            "receipts": {"monitor": {"cpus": 2}},
        }
        (bundle / "manifest.json").write_text(json.dumps(manifest))
        stats: list[dict[str, Any]] = []
        requests = []
        for node, (busy_s, mib, count) in loads.items():
            values = {"busy_ns": busy_s * SECOND, "read_bytes": mib * MIB, "written_bytes": 0}
            values |= {"reads": count, "writes": 0}
            stats += [{"disk_id": f"{node}.d", "metric": m, "value": v} for m, v in values.items()]
            requests.append({"disk_id": f"{node}.d", "done_ns": round(busy_s * SECOND)})
        pd.DataFrame(stats).to_parquet(bundle / "disk_stats.parquet")
        pd.DataFrame(requests).to_parquet(bundle / "device_requests.parquet")
        if cpu:
            busy = [
                {"t_ns": SECOND, "kind": "cgroup_cpu", "entity": n, "metric": m, "value": value}
                for n, v in cpu.items()
                for m, value in (("busy", v), ("cores", v / 50))
            ]
            pd.DataFrame(busy).to_parquet(bundle / "utilisation.parquet")
    return path


def stragglers(path: Path) -> list[Finding]:
    return [f for f in findings(path) if f.code.startswith("straggler")]


def test_the_control_group_of_the_run_is_no_second_node(tmp_path: Path) -> None:
    assert stragglers(write_runs(tmp_path / "o", {"n1": (9.0, 20, 160)}, cpu={"run": 5.0})) == []


FAIR = {"n1": (1.0, 20, 160), "n2": (1.0, 20, 160), "n3": (1.0, 20, 160)}


def test_a_slow_disk_is_named_with_its_limit(tmp_path: Path) -> None:
    runs = [FAIR | {"n2": (8.0, 20, 160)}, FAIR | {"n2": (7.0, 20, 160)}]
    (finding,) = stragglers(write_runs(tmp_path / "o", *runs))
    assert finding.code == "straggler"
    assert finding.evidence["node"] == "n2"
    assert "n2 is the straggler with 3 MB/s slow (2 of 2 runs)" in finding.statement
    assert "8.0 times as long" in finding.statement
    assert "done 7 s after the other disks" in finding.statement
    assert "it is 8.0 times as slow (its limits are read 3 MB/s)" in finding.statement
    assert "as much to serve" not in finding.statement
    tables = nodes(Outcome.read(tmp_path / "o"))
    assert tables is not None
    assert tables["stragglers"] is not None
    assert [row["cells"][-1] for row in tables["stragglers"]["rows"]] == ["n2, 8.0×", "n2, 7.0×"]


def test_more_load_is_distinguished_from_a_slower_disk(tmp_path: Path) -> None:
    (finding,) = stragglers(write_runs(tmp_path / "o", FAIR | {"n1": (6.0, 120, 960)}))
    assert "n1 is the straggler" in finding.statement
    assert "it has 6.0 times as much to serve" in finding.statement
    assert "as slow" not in finding.statement


def test_another_profile_and_smaller_requests_are_reported(tmp_path: Path) -> None:
    (finding,) = stragglers(
        write_runs(tmp_path / "a", FAIR | {"n3": (6.0, 20, 160)}, profiles={"n3": "worn"})
    )
    assert "(its profile is worn, theirs hdd-7200)" in finding.statement
    (finding,) = stragglers(write_runs(tmp_path / "b", FAIR | {"n3": (6.0, 20, 5120)}))
    assert "its requests are of 4 KiB in the mean, theirs of 128 KiB" in finding.statement
    (finding,) = stragglers(write_runs(tmp_path / "c", FAIR | {"n3": (6.0, 20, 160)}))
    assert "why is in none of the run's tables" in finding.statement


def test_processor_use_is_a_share_of_the_limit_of_the_node(tmp_path: Path) -> None:
    # 22.5 % of two processors are 90 % of the half that n3 has
    (finding,) = stragglers(
        write_runs(tmp_path / "o", FAIR, cpu={"n1": 10.0, "n2": 12.0, "n3": 22.5})
    )
    assert "n3 is the straggler" in finding.statement
    assert "its processors are busy for 90 % of the run" in finding.statement


@pytest.mark.parametrize(
    "loads",
    [
        FAIR,
        FAIR | {"n1": (7.0, 20, 160), "n2": (8.0, 20, 160)},  # two equally slow
        FAIR | {"n1": (4.0, 80, 640)},  # not at work for half of the run
    ],
)
def test_no_straggler_is_named_without_a_clear_one(tmp_path: Path, loads: Any) -> None:
    (finding,) = stragglers(write_runs(tmp_path / "o", loads))
    assert finding.code == "straggler-none"
    assert "no node limits the run" in finding.statement


def test_no_straggler_is_named_if_runs_differ(tmp_path: Path) -> None:
    runs = [FAIR | {n: (8.0, 20, 160)} for n in ("n1", "n2")]
    (finding,) = stragglers(write_runs(tmp_path / "o", *runs))
    assert finding.code == "straggler-none"


def test_no_finding_for_one_node_or_without_tables(tmp_path: Path) -> None:
    assert stragglers(write_runs(tmp_path / "a", {"n1": (8.0, 20, 160)})) == []
    path = write_runs(tmp_path / "b", FAIR)
    (path / "runs" / "r001" / "disk_stats.parquet").unlink()
    assert stragglers(path) == []
