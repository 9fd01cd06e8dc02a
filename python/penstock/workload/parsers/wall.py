"""No parser: wall time of any command."""

from __future__ import annotations

from pathlib import Path

from penstock.workload.measured import JobSpec, Measured

RESPONSES: dict[str, str] = {"wall_s": "s"}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """Wall time of the command, seconds."""
    return {"wall_s": Measured(wall_s, "s")}


def operations(command: str) -> list[JobSpec] | None:
    """None: the program is unknown."""
    return None
