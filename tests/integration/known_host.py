"""What is measured of a host once a boot, here once for all tests, of which each has a state of its own."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock import _native
from penstock.writing import write_atomic

_CACHE = Path(__file__).parents[2] / "out" / "known-host"
_MEASURED = ("host-floor.json", "trace-cost.json")
_MEASURE = """
from penstock.emulate.disks.measure_floor import host_floor
from penstock.host.journal.journal import Journal
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
    """Text of each file that could be measured; a command names a missing one when it needs it.

    One process measures and the others of this boot and build take its result. Tests that run alone do not
    take what was measured while the processors were shared.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    built = Path(_native.__file__).stat().st_mtime_ns
    kind = "shared" if os.environ.get("PYTEST_XDIST_WORKER") else "alone"
    _CACHE.mkdir(parents=True, exist_ok=True)
    cache = _CACHE / f"{boot}-{built}-{kind}.json"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.exists():
            write_atomic(cache, json.dumps(_measure()))
        texts: dict[str, str] = json.loads(cache.read_text())
    return texts


def _measure() -> dict[str, str]:
    where = Path(tempfile.mkdtemp(prefix="penstock-known-host-"))
    try:
        own = {"PENSTOCK_STATE": str(where / "state"), "PENSTOCK_RUNTIME": str(where / "run")}
        line = [sys.executable, "-c", _MEASURE]
        done = subprocess.run(
            line, env=os.environ | own, capture_output=True, text=True, timeout=180
        )
        if "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr:
            raise RuntimeError(done.stderr)
        found = [where / "state" / name for name in _MEASURED]
        return {path.name: path.read_text() for path in found if path.exists()}
    finally:
        shutil.rmtree(where)
