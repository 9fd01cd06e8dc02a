"""pgbench: its report on stdout. Where it ran several times, the last report counts."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured

RESPONSES: dict[str, str] = {
    "tps": "1/s",
    "latency_mean": "ms",
    "latency_stddev": "ms",
    "transactions": "transactions",
    "failed_transactions": "transactions",
    "connection_time": "ms",
    "duration": "s",
}

_PATTERNS = {
    "tps": r"^tps = ([0-9]+(?:\.[0-9]+)?)",
    "latency_mean": r"^latency average = ([0-9]+(?:\.[0-9]+)?) ms",
    "latency_stddev": r"^latency stddev = ([0-9]+(?:\.[0-9]+)?) ms",
    "transactions": r"^number of transactions actually processed: ([0-9]+)",
    "failed_transactions": r"^number of failed transactions: ([0-9]+)",
    "connection_time": r"^(?:initial|average) connection time = ([0-9]+(?:\.[0-9]+)?) ms",
    "duration": r"^duration: ([0-9]+(?:\.[0-9]+)?) s",
}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """What pgbench printed; PenstockError if it printed no `tps`. latency_stddev needs `-r`, `-P` or `-R`."""
    found = {"wall_s": Measured(wall_s, "s")}
    for name, pattern in _PATTERNS.items():
        values = re.findall(pattern, stdout, flags=re.MULTILINE)
        if values:
            found[name] = Measured(float(values[-1]), RESPONSES[name])
    if "tps" not in found:
        raise PenstockError("pgbench printed no 'tps = …' line")
    return found


def operations(command: str) -> list[JobSpec] | None:
    """None: what a database does to its files cannot be told from the command line."""
    return None
