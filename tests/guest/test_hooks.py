"""Every kind of hook on the distribution's kernels: the calls of a known program, counted exactly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.guest import machine

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]

READS = 503 * 4
LOADS = ("fentry", "tp_btf", "raw_tp", "denied")
RUN = """modprobe ext4; mke2fs -q /dev/vdc >/dev/null; mkdir /mnt; mount /dev/vdc /mnt
export PYTHONHOME=/job/python PYTHONPATH=/job/python/packages
export LD_LIBRARY_PATH=/job/python/shared
{python} -S /job/job.py {loads}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return booted(tmp_path_factory.mktemp("hooks"), loads=(*LOADS, "nodes"))


def booted(work: Path, suite: str = "", loads: tuple[str, ...] = LOADS) -> dict[str, Any]:
    """Report of the job on `loads` with the kernel of this machine's Debian, or of another `suite`."""
    job = work / "job"
    job.mkdir()
    package = Path(penstock.__file__).parent
    machine.carry_python(job, (package / "host",))
    inside = job / "python" / "packages" / "penstock"
    inside.mkdir()
    shutil.move(inside.parent / "host", inside / "host")
    machine.carry_base(package, inside)
    native = Path(native_module())
    machine.carry_extension(job, native, inside)
    (inside / "__init__.py").write_text('"""The host part and the programs, alone."""\n')
    folder = Path(__file__).parent
    subprocess.run(
        ["cc", "-O2", "-pthread", "-o", job / "known_calls", folder / "known_calls.c"], check=True
    )
    shutil.copy(folder / "job_hooks.py", job / "job.py")
    python = os.path.realpath(sys.executable)
    (job / "run").write_text(RUN.format(python=Path(python).name, loads=" ".join(loads)))
    outcome = machine.run(
        job, ("bash", python), work / "out", timeout_s=500, one_thread=True, suite=suite
    )
    line = next((x for x in outcome.log.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, outcome.log + outcome.console
    answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return answer


def native_module() -> str:
    """Path of the native module."""
    from penstock import _native

    assert _native.__file__ is not None
    return _native.__file__


@pytest.mark.parametrize("kind", ["fentry", "tp_btf"])
def test_every_kind_of_hook_sees_every_call(report: dict[str, Any], kind: str) -> None:
    seen = report[kind]
    assert "error" not in seen, seen
    assert seen["status"] == 0
    assert seen["hooks"]["calls"]["state"] == "full"
    assert seen["hooks"]["calls"]["hook"] == kind
    assert seen["lost"] == 0
    assert (seen["reads"], seen["read_bytes"]) == (READS, READS * 4096)
    assert seen["in_order"]
    assert seen["writes"] == [[0, 64 * 4096, 64 * 4096], [8192, 100, 100], [16384, 1024, 1024]]
    # past the end: 0 bytes; into a bad pointer: EFAULT; by two vectors
    assert seen["odd"] == [[0, 10, -14], [512, 1024, 1024], [64 * 4096, 10, 0]]
    assert seen["latencies"]


def test_several_nodes_are_traced_where_all_controllers_are_unified(report: dict[str, Any]) -> None:
    seen = report["nodes"]
    assert "error" not in seen, seen
    assert seen["statuses"] == [0, 0, 0]
    assert seen["lost"] == 0
    assert seen["reads"] == dict.fromkeys(seen["nodes"], READS)


def test_counts_are_exact_without_entries(report: dict[str, Any]) -> None:
    seen = report["raw_tp"]
    assert "error" not in seen, seen
    assert seen["hooks"]["calls"]["hook"] == "raw_tp"
    rows = {direction: rest for direction, *rest in seen["counts"]}
    assert rows[0] == [READS + 3, 1, READS * 4096 + 1024 + 20, READS * 4096 + 1024]
    assert rows[1] == [3, 0, 64 * 4096 + 1124, 64 * 4096 + 1124]


def test_refused_hooks_are_replaced_and_reported(report: dict[str, Any]) -> None:
    seen = report["denied"]["hooks"]
    assert seen["calls"]["hook"] == "tp_btf"
    assert "fentry: EPERM (denied for a test)" in seen["calls"]["reason"]
    for kind in ("fentry", "denied"):
        hooks = report[kind]["hooks"]
        assert hooks["io_uring"]["state"] == "absent"
        assert hooks["io_uring"]["missing"] == "all of io_uring"
        assert "mapped files" in hooks["faults"]["missing"]


def test_a_planted_loss_is_reported(report: dict[str, Any]) -> None:
    seen = report["denied"]
    # every hundredth event of each of the two processors
    assert READS // 100 - 2 <= seen["lost"] <= READS // 100 + 2
    assert READS - seen["lost"] <= seen["reads"] < READS


@pytest.mark.parametrize("load", LOADS)
def test_every_source_balances(report: dict[str, Any], load: str) -> None:
    assert report[load]["balance"]["calls"]["seen"] >= READS
    for source, counts in report[load]["balance"].items():
        parts = counts["kept"] + counts["filtered"] + counts["lost"]
        assert counts["seen"] == parts, source


@pytest.mark.parametrize("load", LOADS)
def test_nothing_stays_loaded(report: dict[str, Any], load: str) -> None:
    assert report[load]["programs"] > 0
    assert report[load]["left"] == 0
