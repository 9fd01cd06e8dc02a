"""grep on two emulated disks, predicted by models trained without it: a small version of studies/blackbox.py.

The tests compare ratios: the time of the task to the time at the delivered rate of its disk, and predictions
to measurements. On a host too busy for the disks the tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.known_host import with_known_host
from tests.support.environment import environment_in

STUDIES = Path(__file__).parents[2] / "studies"
#: accepted ratios of prediction to measurement, and of measurement to the time at the disk's rate
BAND = (0.6, 1.6)

pytestmark = [
    pytest.mark.timed,
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio"),
]

Answer = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Answer]:
    """Function that runs `studies/blackbox.py --quick` with more options in one directory."""
    directory = tmp_path_factory.mktemp("blackbox")
    with_known_host(directory / "state")
    environment = environment_in(directory)

    def run(*options: str) -> Answer:
        command = [sys.executable, str(STUDIES / "blackbox.py"), "--quick", "--json"]
        result = subprocess.run(
            [*command, "-o", str(directory / "out"), *options],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode == 1 and (
            "no valid run" in result.stderr or "too busy" in result.stderr
        ):
            pytest.skip("busy host: every run is invalid")
        assert result.returncode in (0, 3), result.stderr
        return result.returncode, json.loads(result.stdout)

    return run


@pytest.fixture(scope="module")
def answer(study: Callable[..., Answer]) -> dict[str, Any]:
    return study()[1]


def test_grep_is_predicted_by_models_trained_without_it(answer: dict[str, Any]) -> None:
    fixed = [r for r in answer["runs"] if r["program"] == "grep-fixed"]
    if not fixed:
        pytest.skip("busy host: no valid run of grep with a fixed string")
    for run in fixed:
        by_rate = run["moved"]["size"] / run["delivered_bps"]
        assert BAND[0] < run["time_s"] / by_rate < BAND[1], run
        assert BAND[0] < run["storage_s"] / run["time_s"] < BAND[1], run
        assert run["storage_s"] <= run["whole_s"], run


def test_the_slower_disk_is_predicted_and_measured_slower(answer: dict[str, Any]) -> None:
    """Mytilinis 2015: predictions preserve the trend between storages."""
    compared = 0
    for size in ("16MiB", "24MiB"):
        runs = [r for r in answer["runs"] if (r["program"], r["size"]) == ("grep-fixed", size)]
        by_disk = {r["disk"]: r for r in runs}
        if len(by_disk) == 2:
            compared += 1
            for metric in ("time_s", "storage_s"):
                assert by_disk["sd-card"][metric] > 1.3 * by_disk["hdd-7200"][metric], (
                    size,
                    metric,
                )
    if not compared:
        pytest.skip("busy host: no size was measured on both")


def test_planted_models_of_the_other_disk_are_detected(
    study: Callable[..., Answer], answer: dict[str, Any]
) -> None:
    if not any(r["program"] == "grep-fixed" for r in answer["runs"]):
        pytest.skip("busy host: no valid run of grep with a fixed string")
    status, swapped = study("--compare", "--swap")
    assert status == 3
    (claim,) = [c for c in swapped["claims"] if c["wording"].startswith("grep-fixed: at least")]
    assert claim["result"] in ("not met", "not measured")
    if not claim["missing"]:
        assert claim["result"] == "not met"
    assert len(swapped["runs"]) == len(answer["runs"])
