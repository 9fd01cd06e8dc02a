"""pgbench."""

from __future__ import annotations

from pathlib import Path

from penstock.workload.measured import JobSpec, Measured

RESPONSES: dict[str, str] = {"tps": "1/s"}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """TODO."""
    raise NotImplementedError


def operations(command: str) -> list[JobSpec] | None:
    """TODO."""
    return None
