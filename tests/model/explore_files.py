"""A workload and a platform for explorations, as files, and the program as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.parts.prediction.workloads.synthetic import Shape, reduce
from tests.support import commands

PLATFORM = """
penstock_platform: 1
name: split
hosts:
  - {group: app, count: 10, roles: [client], price: 0.10 EUR/h}
  - group: storage
    count: 9
    roles: [storage]
    storage: {read: {per_byte: 1 ms/MiB}, write: {per_byte: 1 ms/MiB}}
    price: 0.10 EUR/h
  - {group: manager, count: 1, roles: [manager], manager: {service: 0.5ms}, price: 0.10 EUR/h}
network: {bandwidth: 1 Gbit/s, loopback: 1 GB/s, latency: 50us}
power: {idle: 91.6 W, app: 125.2 W, storage: 129.1 W, network: 127.7 W}
"""
#: Costa 2014: time to start a task, sampled for each task
LAUNCH = "launch: {overhead: {kind: uniform, low_s: 0.1, high_s: 0.3}}\n"


def write_files(folder: Path, *, extra: str = LAUNCH, **workload: Any) -> list[str]:
    """Write both files; return the beginning of the command line that explores them."""
    pattern = reduce(Shape(**({"width": 12, "file_bytes": 4 << 20, "compute_s": 3.0} | workload)))
    (folder / "work.json").write_text(json.dumps(pattern.to_dict()))
    (folder / "platform.yaml").write_text(PLATFORM + extra)
    return ["explore", str(folder / "work.json"), "--platform", str(folder / "platform.yaml")]


def penstock(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The program's answer."""
    return commands.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        check=False,
    )
