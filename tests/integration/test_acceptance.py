"""An acceptance case of experiment monitoring: a minute at 100 Hz."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.archive.bundle import Bundle
from tests.support import commands

STEP_NS = 10_000_000

pytestmark = [pytest.mark.host, pytest.mark.long]


def test_a_minute_at_a_hundred_hertz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """Each interval of 10 ms has a sample or is counted as missed, ± 1.

    Lateness and processor time are printed; bench/sampler.py evaluates them.
    """
    for name in ("ARCHIVE", "STATE", "RUNTIME"):
        monkeypatch.setenv(f"PENSTOCK_{name}", str(tmp_path / name.lower()))
    (tmp_path / "runtime").mkdir()
    out = tmp_path / "bundle"
    command = [sys.executable, "-m", "penstock", "monitor", "run", "-i", "0.01", "-o", str(out)]
    result = commands.run(
        [*command, "--json", "--", "sleep", "60"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert result.returncode == 0, result.stderr
    receipt = json.loads(result.stdout)["receipt"]
    start_ns, duration_ns = receipt["start_ns"], receipt["end_ns"] - receipt["start_ns"]
    assert duration_ns >= 60 * 10**9
    assert abs(receipt["expected"] - duration_ns / STEP_NS) <= 1
    # steps of the samples' times: a step without a sample is counted as missed
    samples = Bundle.open(out).table("samples", ["t_ns", "source", "metric"]).to_pandas()
    sampler_rows = samples[(samples.source == "sampler") & (samples.metric == "lateness")]
    steps = np.unique((sampler_rows.t_ns.to_numpy() - start_ns) // STEP_NS)
    assert len(steps) == len(sampler_rows) == receipt["samples"]
    assert abs(len(steps) + receipt["missed"] - duration_ns / STEP_NS) <= 1
    inside = np.count_nonzero(steps < 6000)
    assert 6000 - inside <= receipt["missed"]
    core = receipt["cpu_ns"] / (receipt["end_ns"] - receipt["start_ns"])
    print(
        f"{receipt['samples']} samples, p99 {receipt['late_p99_ns'] / 1e6:.2f} ms, {core:.2%} of a core"
    )
    record_property("p99_ms", receipt["late_p99_ns"] / 1e6)
    record_property("core", core)
