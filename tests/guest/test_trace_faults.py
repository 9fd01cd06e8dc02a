"""Faults of mapped files by fentry, on a distribution kernel without tracepoints in the page cache."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.guest import machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]

RUN = """modprobe ext4; mke2fs -t ext4 /dev/vdc >/dev/null || mke2fs /dev/vdc > /dev/null; mkdir /mnt; mount /dev/vdc /mnt
export PYTHONHOME=/job/python PYTHONPATH=/job/python/packages
export LD_LIBRARY_PATH=/job/python/shared
{python} -S /job/job.py
"""  # noqa: E501


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("guest")
    job = work / "job"
    job.mkdir()
    package = Path(penstock.__file__).parent
    machine.carry_python(job, (package / "host",))
    inside = job / "python" / "packages"
    (inside / "penstock").mkdir()
    shutil.move(inside / "host", inside / "penstock" / "host")
    for name in ("errors.py", "_native.abi3.so"):
        shutil.copy(package / name, inside / "penstock")
    (inside / "penstock" / "__init__.py").write_text('"""What the tracer needs."""\n')
    shutil.copy(Path(__file__).parent / "job_trace_faults.py", job / "job.py")
    (job / "run").write_text(RUN.format(python=Path(os.path.realpath(sys.executable)).name))
    outcome = machine.run(job, ("bash", os.path.realpath(sys.executable)), work / "out", 300)
    line = next((x for x in outcome.log.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, outcome.log + outcome.console
    answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return answer


def test_functions_are_hooked(says: dict[str, Any]) -> None:
    assert says["hooks"]["hook"] == "fentry"
    assert says["hooks"]["state"] == "full"


def test_ta_10_pages_are_exact(says: dict[str, Any]) -> None:
    told = says["told"]
    assert says["written"] == told["written"]
    assert set(says["read"]) <= set(told["read"])
    assert set(told["read"]) <= {*says["read"], *says["around"], *says["written"]}
    assert says["latencies"] > 0
    assert says["lost"] == 0
    assert says["balanced"]


def test_coverage_of_what_was_mapped(says: dict[str, Any]) -> None:
    seen = {*says["read"], *says["around"], *says["written"]}
    present = set(says["present"])
    assert {*says["told"]["read"], *says["told"]["written"]} <= present
    assert len(present & seen) >= 0.99 * len(present)


def test_nothing_is_left(says: dict[str, Any]) -> None:
    assert says["journal"] == 0
