"""The published NFS study in a guest, at its quick size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.guest import machine
from tests.support.environment import environment_in

ROOT = Path(__file__).parents[2]
#: programs that the NFS study copies into the guest, and their Debian packages
NFS = machine.missing() or [
    p for p in ("mount.nfs", "rpc.nfsd", "rpcbind") if not any(
        (Path(d) / p).exists() for d in ("/sbin", "/usr/sbin")
    )
]  # fmt: skip
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups"),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path)


@pytest.mark.skipif(bool(NFS), reason=f"the study needs {NFS} (Debian: nfs-kernel-server)")
def test_the_eight_runs_of_the_published_nfs_study(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    line = [sys.executable, ROOT / "studies" / "nfs_wan.py", "--quick", "--json", "-o", tmp_path]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 3, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert document["runs"]["eight"]["valid"] == 8
    assert all(document["planted"].values())
    results = {c["of"]: c["result"] for c in document["claims"]}
    assert results.pop("point 11") == "met"
    assert set(results.values()) == {
        "not measured"
    }  # eight runs do not measure claims on the full design
    out = tmp_path / "nfs-wan-eight-quick"
    runs = pd.read_parquet(out / "runs.parquet").set_index("run_id")
    trips = {}
    for run_id, row in runs.iterrows():
        place = out / "runs" / str(run_id)
        output = json.loads((place / "stdout.txt").read_text())
        assert output["write"] == pytest.approx(row["write"], rel=1e-3)
        trip_ms = float((place / "hook-verify.txt").read_text())
        trips.setdefault(row["latency"], []).append(trip_ms)
    # netem: at least twice the one-way delay, which a link without netem would not reach
    assert min(trips["remote"]) >= 2 * 13.9
    assert max(trips["local"]) < 13.9
    # a run that the host disturbed is repeated, and loses its place in the order
    attempts = [p for p in ("r001.attempt1", "r001") if (out / "runs" / p).exists()]
    first = json.loads((out / "runs" / attempts[0] / "manifest.json").read_text())
    assert first["actions"] == ["redeploy", "reformat", "restart", "remount"]
    assert first["place"]["guest"]["kernel"]
    second = json.loads((out / "runs" / "r002" / "manifest.json").read_text())
    assert second["actions"] == []  # no factor requires an action
