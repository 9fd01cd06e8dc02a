"""An emulated disk compared with a file system of the host: the same random operations on both.

PENSTOCK_DISK_OPERATIONS sets the number of operations of each seed (1,000,000 take some minutes),
PENSTOCK_DISK_SEEDS the seeds, such as `7` or `7,8`. A failure reports its seed, which reproduces it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.disk_bench import (  # noqa: F401 - fixtures
    BOTH_TRANSPORTS,
    HOST,
    Bench,
    each_transport,
    flat,
    one_bench,
)

pytestmark = [
    *HOST,
    BOTH_TRANSPORTS,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed"),
]
SOURCE = Path(__file__).with_name("two_directories.c")
OPERATIONS = int(os.environ.get("PENSTOCK_DISK_OPERATIONS", "15000"))
#: the default seeds have found errors
SEEDS = os.environ.get("PENSTOCK_DISK_SEEDS", "1,2,3").split(",")


@pytest.fixture(scope="module", name="program")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bin") / "two_directories"
    subprocess.run(["cc", "-O2", "-w", "-o", program, SOURCE], check=True)
    return program


def compare(
    bench: Bench, program: Path, operations: int, seed: str
) -> subprocess.CompletedProcess[str]:
    """Run the operations on the disk and on a reference directory."""
    reference = bench.base / "reference"
    reference.mkdir()
    argv = [program, bench.mount, reference, str(operations), seed]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60 + operations / 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_have_the_same_effects_and_results_as_on_the_host(
    bench: Bench, program: Path, seed: str
):
    # little memory for dirty pages, so that they are written back during the test
    bench.up(flat(0.0), memory_bytes=1)
    result = compare(bench, program, OPERATIONS, seed)
    print(result.stdout)
    assert result.returncode == 0, f"seed {seed}:\n{result.stderr}"
    bench.server.remove("d")
    argv = ["diff", "-r", bench.backing, bench.base / "reference"]
    assert subprocess.run(argv, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize("mode", ["torn", "zero", "flip"])
def test_a_disk_that_loses_a_byte_is_detected(bench: Bench, program: Path, mode: str):
    """Planted: one write in a thousand is reported as complete and is not."""
    fault = {"op": "write", "mode": mode, "probability": 0.001}
    bench.up(flat(0.0), memory_bytes=1, patch={"faults": [fault]})
    result = compare(bench, program, 100_000, "1")
    assert result.returncode == 1
    assert "differs: " in result.stderr


def test_a_disk_that_fails_a_call_is_detected(bench: Bench, program: Path):
    fault = {"op": "flush", "error": "EIO", "probability": 0.001}
    bench.up(flat(0.0), memory_bytes=1, patch={"faults": [fault]})
    result = compare(bench, program, 100_000, "2")
    assert result.returncode == 1
    assert "reference 0" in result.stderr or "pwritev2: -5" in result.stderr
