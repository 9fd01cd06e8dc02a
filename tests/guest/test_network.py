"""Links on a kernel with netem: requested, reported and measured values; the relay on an older kernel."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pyroute2
import pytest

import penstock
from tests.guest import machine
from tests.integration.net_ground import has_share

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]
N = 1000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("guest")
    job = work / "job"
    job.mkdir()
    package = Path(penstock.__file__).parent
    machine.carry_penstock(job, package)
    packages = job / "python" / "packages"
    shutil.copytree(Path(pyroute2.__file__).parent, packages / "pyroute2")
    machine.carry_extension(job, package / "_native.abi3.so", packages / "penstock")
    shutil.copy(Path(__file__).parent / "job_network.py", job / "job.py")
    shutil.copy(Path(__file__).parents[1] / "integration" / "net_ground.py", job)
    modules = "modprobe veth; modprobe bridge; modprobe sch_netem; modprobe sch_tbf\n"
    run = machine.RUN_PYTHON.format(python=machine.python_name())
    (job / "run").write_text(modules + run)
    programs = ("bash", "unshare", os.path.realpath(sys.executable))
    outcome = machine.run(job, programs, work / "out", timeout_s=540)
    line = next((x for x in outcome.log.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, outcome.log + outcome.console[-3000:]
    answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return answer


def test_netem_is_detected_and_used(report: dict[str, Any]) -> None:
    assert report["offers"] == {"bandwidth": True, "netem": True, "relay": True, "why": {}}
    assert (report["auto"]["engine"], report["relay"]["engine"]) == ("bridge", "relay")
    assert report["left"] == 0


@pytest.mark.parametrize("engine", ["auto", "relay"])
def test_delays_apply_in_both_directions(report: dict[str, Any], engine: str) -> None:
    seen = report[engine]
    assert 0.150 <= min(seen["rtt_s"]) < 0.180, seen["rtt_s"]  # the guest's processor is software
    first, then = seen["at_first"], seen["after_two"]
    assert (first["delay"]["mean_s"], first["in_delay"]["mean_s"]) == (0.1, 0.05)
    assert (first["out_bps"], then["out_bps"]) == (1e6, 2e6)
    assert (then["delay"]["mean_s"], then["in_delay"]["mean_s"]) == (0.1, 0.0)
    assert all(v in (None, 0.0) for k, v in seen["at_last"].items() if "delay" not in k)


@pytest.mark.parametrize("engine", ["auto", "relay"])
def test_shares_agree_with_the_request(report: dict[str, Any], engine: str) -> None:
    assert has_share(N - report[engine]["arrived"], N, 0.2), report[engine]["arrived"]
    assert not has_share(N - report[engine]["arrived"], N, 0.4)  # planted, 8 sd apart
    assert has_share(report[engine]["twice"] - N, N, 0.3), report[engine]["twice"]


#: interquartile ranges of the distributions with a jitter of 20 ms
@pytest.mark.parametrize(
    ("name", "range_s"), [("uniform", 0.0200), ("normal", 0.0270), ("pareto", 0.0172)]
)
def test_jitter_has_the_requested_distribution(
    report: dict[str, Any], name: str, range_s: float
) -> None:
    assert report["auto"][name] == {"mean_s": 0.06, "jitter_s": 0.02, "distribution": name}
    times = report["auto"][f"{name}_s"]
    # includes delays of the guest, which a busy host prolongs; late replies do not move the quartiles
    low, median, high = statistics.quantiles(times[name], n=4)
    guest_low, _, guest_high = statistics.quantiles(times["constant"], n=4)
    assert 0.045 < median < 0.150, times
    assert 0.5 * range_s < high - low < 1.5 * range_s + (guest_high - guest_low), times
