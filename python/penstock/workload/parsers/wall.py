"""No parser: the wall time of the command, whatever the program is."""

from __future__ import annotations

from pathlib import Path

from penstock.workload.measured import JobSpec, Measured

RESPONSES: dict[str, str] = {"wall_s": "s"}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """Wall time of the command, seconds."""
    return {"wall_s": Measured(wall_s, "s")}


def operations(command: str) -> list[JobSpec] | None:
    """None: nothing is known of the program."""
    return None
