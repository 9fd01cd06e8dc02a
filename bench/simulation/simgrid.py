"""SimGrid as a peer: builds `flows.cpp`, exports the platform, runs the unrolled protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.simulation.simgrid_platform import CONFIGURATION, platform_xml
from bench.simulation.unrolled import Unrolled

Json = dict[str, Any]
SOURCE = Path(__file__).with_name("flows.cpp")
HEADER = Path("/usr/include/simgrid/s4u.hpp")
HOW = "SimGrid is missing: apt-get install --no-install-recommends libsimgrid-dev g++"


def missing() -> str | None:
    """Reason why SimGrid is not available, or None."""
    return None if HEADER.exists() and shutil.which("g++") else HOW


@dataclass(frozen=True)
class Outcome:
    """Makespan in seconds of simulated time; activities; simulation time of SimGrid [s], without start and
    reading.
    """

    makespan_s: float
    activities: int
    wall_s: float
    cpu_s: float


class SimGrid:
    """The built program, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.program = folder, folder / "flows"
        line = ["g++", "-O2", "-std=c++17", str(SOURCE), "-o", str(self.program), "-lsimgrid"]
        built = subprocess.run(line, capture_output=True, text=True)
        if built.returncode != 0:
            raise RuntimeError(f"{SOURCE.name} does not build:\n{built.stderr}")

    def simulate(self, workload: Json, network: Json, on: Json | None = None) -> Outcome:
        """Simulate with the protocol of `network`, on the platform `on` if it is not None."""
        export = platform_xml(on or network)
        if export.omitted:
            raise ValueError(f"the platform does not fit SimGrid: {'; '.join(export.omitted)}")
        (self.folder / "platform.xml").write_text(export.xml)
        options = [f"--cfg={each}" for each in CONFIGURATION]
        run = subprocess.run(
            [self.program, "platform.xml", *options, "--log=root.thres:error"],
            input="\n".join(Unrolled(workload, network).lines),
            capture_output=True,
            text=True,
            cwd=self.folder,
        )
        if run.returncode != 0:
            raise RuntimeError(f"SimGrid failed ({run.returncode}): {run.stderr[-2000:]}")
        return Outcome(**json.loads(run.stdout))
