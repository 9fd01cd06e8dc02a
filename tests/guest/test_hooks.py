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
def says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return booted(tmp_path_factory.mktemp("hooks"), loads=(*LOADS, "nodes"))


def booted(work: Path, suite: str = "", loads: tuple[str, ...] = LOADS) -> dict[str, Any]:
    """What the job says of `loads` on the kernel of this machine's Debian, or of another `suite`."""
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
    here = Path(__file__).parent
    subprocess.run(
        ["cc", "-O2", "-pthread", "-o", job / "known_calls", here / "known_calls.c"], check=True
    )
    shutil.copy(here / "job_hooks.py", job / "job.py")
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
    """Where the native module lies."""
    from penstock import _native

    assert _native.__file__ is not None
    return _native.__file__


@pytest.mark.parametrize("kind", ["fentry", "tp_btf"])
def test_every_kind_of_hook_sees_every_call(says: dict[str, Any], kind: str) -> None:
    seen = says[kind]
    assert "error" not in seen, seen
    assert seen["status"] == 0
    assert seen["hooks"]["calls"]["state"] == "full"
    assert seen["hooks"]["calls"]["hook"] == kind
    assert seen["lost"] == 0
    assert (seen["reads"], seen["read_bytes"]) == (READS, READS * 4096)
    assert seen["in_order"]
    assert seen["writes"] == [[0, 64 * 4096, 64 * 4096], [8192, 100, 100], [16384, 1024, 1024]]
    # past the end: nothing; into a bad pointer: EFAULT; by two vectors
    assert seen["odd"] == [[0, 10, -14], [512, 1024, 1024], [64 * 4096, 10, 0]]
    assert seen["latencies"]


def test_several_nodes_are_traced_where_all_controllers_are_unified(says: dict[str, Any]) -> None:
    seen = says["nodes"]
    assert "error" not in seen, seen
    assert seen["statuses"] == [0, 0, 0]
    assert seen["lost"] == 0
    assert seen["reads"] == dict.fromkeys(seen["nodes"], READS)


def test_counts_are_exact_without_entries(says: dict[str, Any]) -> None:
    seen = says["raw_tp"]
    assert "error" not in seen, seen
    assert seen["hooks"]["calls"]["hook"] == "raw_tp"
    rows = {direction: rest for direction, *rest in seen["counts"]}
    assert rows[0] == [READS + 3, 1, READS * 4096 + 1024 + 20, READS * 4096 + 1024]
    assert rows[1] == [3, 0, 64 * 4096 + 1124, 64 * 4096 + 1124]


def test_what_is_refused_gives_way_and_is_told(says: dict[str, Any]) -> None:
    seen = says["denied"]["hooks"]
    assert seen["calls"]["hook"] == "tp_btf"
    assert "fentry: EPERM (denied for a test)" in seen["calls"]["reason"]
    for kind in ("fentry", "denied"):
        hooks = says[kind]["hooks"]
        assert hooks["io_uring"]["state"] == "absent"
        assert hooks["io_uring"]["missing"] == "all of io_uring"
        assert "mapped files" in hooks["faults"]["missing"]


def test_a_planted_loss_shows(says: dict[str, Any]) -> None:
    seen = says["denied"]
    # every hundredth of each of the two processors
    assert READS // 100 - 2 <= seen["lost"] <= READS // 100 + 2
    assert READS - seen["lost"] <= seen["reads"] < READS


@pytest.mark.parametrize("load", LOADS)
def test_every_source_balances(says: dict[str, Any], load: str) -> None:
    assert says[load]["balance"]["calls"]["seen"] >= READS
    for source, counts in says[load]["balance"].items():
        parts = counts["kept"] + counts["filtered"] + counts["lost"]
        assert counts["seen"] == parts, source


@pytest.mark.parametrize("load", LOADS)
def test_nothing_stays_loaded(says: dict[str, Any], load: str) -> None:
    assert says[load]["programs"] > 0
    assert says[load]["left"] == 0
