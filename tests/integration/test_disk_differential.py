"""An emulated disk beside the host's own file system: two processes do the same to the files of both.

PENSTOCK_DISK_OPERATIONS sets how many random operations are done with each seed (1,000,000 take some
minutes), PENSTOCK_DISK_SEEDS with which seeds, such as `7` or `7,8`. A failure names its seed, with which
it comes again.
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
#: those that have found something
SEEDS = os.environ.get("PENSTOCK_DISK_SEEDS", "1,2,3").split(",")


@pytest.fixture(scope="module", name="program")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bin") / "two_directories"
    subprocess.run(["cc", "-O2", "-w", "-o", program, SOURCE], check=True)
    return program


def compared(
    bench: Bench, program: Path, operations: int, seed: str
) -> subprocess.CompletedProcess[str]:
    """Does so many operations to the disk and to a directory beside it."""
    reference = bench.base / "reference"
    reference.mkdir()
    words = [program, bench.mount, reference, str(operations), seed]
    return subprocess.run(words, capture_output=True, text=True, timeout=60 + operations / 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_does_and_says_what_it_does_beside(bench: Bench, program: Path, seed: str):
    bench.up(
        flat(0.0), memory_bytes=1
    )  # little room for dirty pages: they are written back meanwhile
    done = compared(bench, program, OPERATIONS, seed)
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    bench.server.remove("d")
    words = ["diff", "-r", bench.backing, bench.base / "reference"]
    assert subprocess.run(words, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize("mode", ["torn", "zero", "flip"])
def test_a_disk_that_loses_a_byte_is_found(bench: Bench, program: Path, mode: str):
    """Planted: one write in a thousand, of which the disk says that it is done, does not arrive whole."""
    fault = {"op": "write", "mode": mode, "probability": 0.001}
    bench.up(flat(0.0), memory_bytes=1, patch={"faults": [fault]})
    done = compared(bench, program, 100_000, "1")
    assert done.returncode == 1
    assert "differs: " in done.stderr


def test_a_disk_that_fails_a_call_is_found(bench: Bench, program: Path):
    fault = {"op": "flush", "error": "EIO", "probability": 0.001}
    bench.up(flat(0.0), memory_bytes=1, patch={"faults": [fault]})
    done = compared(bench, program, 100_000, "2")
    assert done.returncode == 1
    assert "reference 0" in done.stderr or "pwritev2: -5" in done.stderr
