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
    """A sample for each hundredth of a second that it lasted, ± 1, or it is counted as missed.

    How late and how dear they were is printed; bench/sampler.py judges it.
    """
    for name in ("ARCHIVE", "STATE", "RUNTIME"):
        monkeypatch.setenv(f"PENSTOCK_{name}", str(tmp_path / name.lower()))
    (tmp_path / "runtime").mkdir()
    out = tmp_path / "bundle"
    line = [sys.executable, "-m", "penstock", "monitor", "run", "-i", "0.01", "-o", str(out)]
    done = commands.run(
        [*line, "--json", "--", "sleep", "60"], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    receipt = json.loads(done.stdout)["receipt"]
    start_ns, lasted_ns = receipt["start_ns"], receipt["end_ns"] - receipt["start_ns"]
    assert lasted_ns >= 60 * 10**9
    assert abs(receipt["expected"] - lasted_ns / STEP_NS) <= 1
    # by the samples' own times: those deadlines that have none are the ones that were counted
    samples = Bundle.open(out).table("samples", ["t_ns", "source", "metric"]).to_pandas()
    own = samples[(samples.source == "sampler") & (samples.metric == "lateness")]
    made = np.unique((own.t_ns.to_numpy() - start_ns) // STEP_NS)
    assert len(made) == len(own) == receipt["samples"]
    assert abs(len(made) + receipt["missed"] - lasted_ns / STEP_NS) <= 1
    inside = np.count_nonzero(made < 6000)
    assert 6000 - inside <= receipt["missed"]
    core = receipt["cpu_ns"] / (receipt["end_ns"] - receipt["start_ns"])
    print(
        f"{receipt['samples']} samples, p99 {receipt['late_p99_ns'] / 1e6:.2f} ms, {core:.2%} of a core"
    )
    record_property("p99_ms", receipt["late_p99_ns"] / 1e6)
    record_property("core", core)
