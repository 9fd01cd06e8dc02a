"""A parser: the number after `toy:` in what a program prints."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured

RESPONSES = {"toys": "1/s"}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """Toys per second."""
    found = re.search(r"^toy: (\d+)$", stdout, re.MULTILINE)
    if found is None:
        raise PenstockError("the program printed no line `toy: NUMBER`")
    return {"toys": Measured(int(found[1]) / wall_s, "1/s")}


def operations(command: str) -> list[JobSpec] | None:
    """Nobody knows what a toy does."""
    return None
