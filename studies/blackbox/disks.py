"""A disk put up, learnt with `penstock learn` and taken down again; nothing here knows any program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

#: largest share of late replies of a disk that is believed while it is learnt, as of a run (fidelity)
LATE_LIMIT = 0.05


def penstock(*words: str | Path, quiet: bool = False) -> str:
    """stdout of a penstock command; raises PenstockError with its status."""
    line = [sys.executable, "-m", "penstock", *map(str, words)]
    done = subprocess.run(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else None, text=True
    )
    if done.returncode not in (0, 3):
        raise PenstockError(f"penstock {words[0]} ended with status {done.returncode}")
    return done.stdout


def learnt(
    name: str, profile: str, time_scale: float, out: Path, options: Sequence[str]
) -> dict[str, Any]:
    """Learns the disk `name` in `out`; gives how it was served meanwhile (`late_share` of its requests).

    What was learnt before is not learnt again. Raises PenstockError if a command fails.
    """
    served = out / "served.json"
    if not served.exists():
        ground = out.parent.parent / "disks" / name
        backing, mount = ground / "files", ground / "mount"
        for directory in (backing, mount):
            directory.mkdir(parents=True, exist_ok=True)
        words = ["--backing", backing, "--mount", mount, "--time-scale", str(time_scale)]
        penstock("disk", "up", profile, *words)
        try:
            more = ["--resume"] if (out / "campaign.json").exists() else []
            penstock("learn", mount, "-o", out, *options, *more)
            (disk,) = json.loads(penstock("disk", "status", mount, "--json"))["disks"]
        finally:
            penstock("disk", "down", mount)
        stats = disk["stats"]
        requests = stats["reads"] + stats["writes"] + stats["flushes"]
        late = stats["late_count"] / max(1, requests)
        said = {"profile": profile, "time_scale": time_scale, "requests": requests}
        served.write_text(json.dumps({**said, "late_share": late}))
    found: dict[str, Any] = json.loads(served.read_text())
    return found
