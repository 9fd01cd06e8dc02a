"""What is measured of a host once a boot, here once for all tests, of which each has a state of its own."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_MEASURED = ("host-floor.json", "trace-cost.json")
_MEASURE = """
from penstock.emulate.disks.floor import host_floor
from penstock.host.journal import Journal
from penstock.observe.trace import MODES
from penstock.observe.trace.capture.overhead import cost_of
from penstock.state import state_dir
host_floor()
for mode in MODES:
    cost_of(mode, Journal(), state_dir())
"""


def with_known_host(state: Path) -> Path:
    """Makes a state directory where it is known how fast disks can be here and what tracing costs."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in _measured().items():
        (state / name).write_text(text)
        (state / name).chmod(0o600)
    return state


@functools.cache
def _measured() -> dict[str, str]:
    """By file; nothing where it cannot be measured, which is then said where it is needed."""
    where = Path(tempfile.mkdtemp(prefix="penstock-known-host-"))
    try:
        own = {"PENSTOCK_STATE": str(where / "state"), "PENSTOCK_RUNTIME": str(where / "run")}
        line = [sys.executable, "-c", _MEASURE]
        subprocess.run(line, env=os.environ | own, capture_output=True, timeout=180)
        found = [where / "state" / name for name in _MEASURED]
        return {path.name: path.read_text() for path in found if path.exists()}
    finally:
        shutil.rmtree(where)
