"""The cells in the guest (tests/guest/machine.py): a Debian kernel with a unified hierarchy, under qemu."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from cells import Cell

import penstock
from penstock.errors import PenstockError
from penstock.parts.guests.guest_image import PATH
from tests.guest import machine

HERE = Path(__file__).parent
#: time of a cell on an emulated CPU, beyond its transfer [s]
OVERHEAD_S = 8.0


#: programs that are copied into the guest
PROGRAMS = ("bash", os.path.realpath(sys.executable), "fio", "mkfs.ext4")


def missing() -> str:
    """Programs that the guest needs and this host lacks; empty if there are none."""
    lacking = [*machine.missing(), *(p for p in PROGRAMS if not shutil.which(p, path=PATH))]
    return f"the guest needs {', '.join(lacking)}" if lacking else ""


def run(cells: list[Cell], out: Path, workers: int) -> str:
    """Boot, run the cells, return their output. PenstockError if the guest did not finish."""
    if lacking := missing():
        raise PenstockError(lacking)
    transfer_s = sum(c.bytes / c.limit_bps + OVERHEAD_S for c in cells) / workers
    with tempfile.TemporaryDirectory(prefix="penstock-guest-") as work:
        job = Path(work) / "job"
        job.mkdir()
        machine.carry_penstock(job, Path(penstock.__file__).parent)
        for name in ("cells.py", "throttled.py"):
            shutil.copy(HERE / name, job / name)
        (job / "cells.json").write_text(json.dumps([asdict(c) for c in cells]))
        python = machine.python_name()
        line = f"{python} -S /job/throttled.py cgroup2 /mnt/t /job/cells.json {workers}"
        setup = machine.RUN_PYTHON.format(python=python).replace(
            f"{python} -S /job/job.py", f"mkdir /mnt/t; {line}"
        )
        (job / "run").write_text(setup)
        outcome = machine.run(job, PROGRAMS, out, timeout_s=120 + 3 * transfer_s)
    if outcome.status != 0:
        raise PenstockError(f"the guest: {outcome.log[-1500:]}{outcome.console[-500:]}")
    return outcome.log
