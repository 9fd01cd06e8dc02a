"""A parser: the number after `toy:` in the output of a program."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured

RESPONSES = {"toys": "1/s"}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """Toys per second."""
    match = re.search(r"^toy: (\d+)$", stdout, re.MULTILINE)
    if match is None:
        raise PenstockError("the program printed no line `toy: NUMBER`")
    return {"toys": Measured(int(match[1]) / wall_s, "1/s")}


def operations(command: str) -> list[JobSpec] | None:
    """Return None: the operations of the command are unknown."""
    return None
