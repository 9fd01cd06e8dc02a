"""Measurements of the host that a state needs once per boot, made once for all tests."""

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
from penstock.observe.trace import MODES
from penstock.writing import write_atomic
from tests.support import commands

_CACHE = Path(__file__).parents[2] / "out" / "known-host"
_FLOOR, _COST = "host-floor.json", "trace-cost.json"
_MEASURE = """
from penstock.emulate.disks import measure_floor
measure_floor.host_floor()
"""
_BRIEF = """
from penstock.emulate.disks import measure_floor
measure_floor._LOOP_S, measure_floor._LOOPS = 0.03, 1
"""
_MEASURE_BRIEFLY = f"{_BRIEF}measure_floor.host_floor()"
#: prefix of a penstock command line with a brief measurement of the floor
BRIEFLY = (*commands.CODE, f"{_BRIEF}from penstock.cli import main; main()")


def with_known_host(state: Path) -> Path:
    """Create a state directory with measurements of the fastest disk and of the cost of tracing."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in _measured_texts().items():
        (state / name).write_text(text)
        (state / name).chmod(0o600)
    return state


@functools.cache
def _measured_texts() -> dict[str, str]:
    """Return the text of each measured file; a command that needs a missing one reports it.

    One process measures, and the others of this boot and build reuse its result. Tests that run alone do not
    reuse a measurement from shared processors. Tests on shared processors do not assert times: their floor
    is measured briefly and marked as that of an idle host, because a command on an idle host would otherwise
    measure it again. The cost of tracing is constant: no test asserts what tracing adds to a study.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    build_ns = Path(_native.__file__).stat().st_mtime_ns
    kind = "brief" if os.environ.get("PYTEST_XDIST_WORKER") else "alone"
    _CACHE.mkdir(parents=True, exist_ok=True)
    cache = _CACHE / f"{boot}-{build_ns}-{kind}.json"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.exists():
            floor = _measure_briefly() if kind == "brief" else _measure(_MEASURE)
            write_atomic(cache, json.dumps({**floor, _COST: planted_cost()}))
        texts: dict[str, str] = json.loads(cache.read_text())
    return texts


def _measure_briefly() -> dict[str, str]:
    texts = _measure(_MEASURE_BRIEFLY)
    if _FLOOR in texts:
        floor = json.loads(texts[_FLOOR])
        for measurement in filter(None, (floor, floor["io_uring"])):
            measurement["busy_share"] = 0.0
        texts[_FLOOR] = json.dumps(floor)
    return texts


def planted_cost() -> str:
    """Return the text of a record with constant costs of tracing in each mode."""
    run = {"hook": 50.0, "low": 50.0, "high": 50.0, "account": 50.0, "idle": 60.0, "left": 40.0}
    cost = {"calls": run, "others": run, "rounds": 6, "basis": "planted"}
    return json.dumps({f"{os.uname().release} {mode}": cost for mode in MODES})


def _measure(program: str) -> dict[str, str]:
    """Run a program with its own state directory; return the text of the floor if it wrote one."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-known-host-"))
    try:
        environment = {
            "PENSTOCK_STATE": str(directory / "state"),
            "PENSTOCK_RUNTIME": str(directory / "run"),
        }
        argv = [sys.executable, "-c", program]
        result = subprocess.run(
            argv, env=os.environ | environment, capture_output=True, text=True, timeout=180
        )
        if "ImportError" in result.stderr or "ModuleNotFoundError" in result.stderr:
            raise RuntimeError(result.stderr)
        floor = directory / "state" / _FLOOR
        return {_FLOOR: floor.read_text()} if floor.exists() else {}
    finally:
        shutil.rmtree(directory)
