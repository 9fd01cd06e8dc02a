"""An emulated disk: started, learnt with `penstock learn`, and stopped, without knowledge of any program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

#: largest accepted deviation of the mean time in a disk while it is learnt, as for a run (fidelity)
TIME_LIMIT = 0.03


def penstock(*arguments: str | Path, quiet: bool = False) -> str:
    """stdout of a penstock command; raises PenstockError with its status."""
    line = [sys.executable, "-m", "penstock", *map(str, arguments)]
    result = subprocess.run(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else None, text=True
    )
    if result.returncode not in (0, 3):
        raise PenstockError(f"penstock {arguments[0]} ended with status {result.returncode}")
    return result.stdout


def run_study(study: Path, out: Path, options: Sequence[str]) -> None:
    """Execute `study` in `out`; a campaign that exists there continues.

    Raises PenstockError if it fails. A study that ends without a valid run counts as ended: its claims are
    not measured.
    """
    try:
        penstock("run", study, "-o", out, *options, *_resume(out))
    except PenstockError:
        if not (out / "runs.parquet").exists():
            raise


def _resume(out: Path) -> list[str]:
    """Option with which penstock continues the campaign in `out`; empty without one."""
    return ["--resume"] if (out / "campaign.json").exists() else []


def finish(study: Path, out: Path, options: Sequence[str] = (), *, quiet: bool = False) -> None:
    """Execute the missing runs of `study` in `out`; an interrupted campaign continues.

    A study that ends without a valid run counts as ended as well. Raises PenstockError if it did not end.
    """
    ended = out / "report.html"  # a finished campaign writes it last
    if ended.exists():
        return
    try:
        penstock("run", study, "-o", out, *options, *_resume(out), quiet=quiet)
    except PenstockError:
        if not ended.exists():
            raise


def learnt(
    name: str, profile: str, time_scale: float, out: Path, options: Sequence[str]
) -> dict[str, Any]:
    """Learn the disk `name` in `out`; return its fidelity: `time_ratio` is the time that its requests spent
    in it, divided by the specified time.

    An existing model is not learnt again. Raises PenstockError if a command fails.
    """
    served = out / "served.json"
    if not served.exists():
        ground = out.parent.parent / "disks" / name
        backing, mount = ground / "files", ground / "mount"
        for directory in (backing, mount):
            directory.mkdir(parents=True, exist_ok=True)
        up_options = ["--backing", backing, "--mount", mount, "--time-scale", str(time_scale)]
        penstock("disk", "up", profile, *up_options)
        try:
            penstock("learn", mount, "-o", out, *options, *_resume(out))
            (disk,) = json.loads(penstock("disk", "status", mount, "--json"))["disks"]
        finally:
            penstock("disk", "down", mount)
        stats = disk["stats"]
        requests = stats["reads"] + stats["writes"] + stats["flushes"]
        report = {"profile": profile, "time_scale": time_scale, "requests": requests}
        time = stats["delivered_time_ns"] / max(1, stats["asked_time_ns"])
        late = stats["late_count"] / max(1, requests)
        served.write_text(json.dumps({**report, "time_ratio": time, "late_share": late}))
    fidelity: dict[str, Any] = json.loads(served.read_text())
    return fidelity
