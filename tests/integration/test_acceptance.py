"""An acceptance case of experiment monitoring: a minute at 100 Hz."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.archive.bundle import Bundle

pytestmark = [pytest.mark.host, pytest.mark.long, pytest.mark.flaky(reruns=0)]


def test_a_minute_at_a_hundred_hertz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """6,000 samples, or the ones missed are counted; how late and how dear they were is printed."""
    for name in ("ARCHIVE", "STATE", "RUNTIME"):
        monkeypatch.setenv(f"PENSTOCK_{name}", str(tmp_path / name.lower()))
    (tmp_path / "runtime").mkdir()
    out = tmp_path / "bundle"
    line = [sys.executable, "-m", "penstock", "monitor", "run", "-i", "0.01", "-o", str(out)]
    done = subprocess.run(
        [*line, "--json", "--", "sleep", "60"], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    receipt = json.loads(done.stdout)["receipt"]
    assert abs(receipt["expected"] - 6000) <= 60
    # every one that was due was made, or is known to be missing
    assert abs(receipt["samples"] + receipt["missed"] - receipt["expected"]) <= 1
    times = np.unique(Bundle.open(out).table("samples", ["t_ns"])["t_ns"].to_numpy())
    assert abs(len(times) - receipt["samples"]) <= receipt["between"] + 1
    core = receipt["cpu_ns"] / (receipt["end_ns"] - receipt["start_ns"])
    print(
        f"{receipt['samples']} samples, p99 {receipt['late_p99_ns'] / 1e6:.2f} ms, {core:.2%} of a core"
    )
    record_property("p99_ms", receipt["late_p99_ns"] / 1e6)
    record_property("core", core)
