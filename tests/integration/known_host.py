"""Measurements of the host that a state has once per boot, made once for the states of all tests."""

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
#: beginning of a command line of penstock whose measurement of the floor, if it makes one, is brief
BRIEFLY = (*commands.CODE, f"{_BRIEF}from penstock.cli import main; main()")


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
    take what was measured while the processors were shared. Tests that share them judge no time: their floor
    is measured briefly and counts as that of a quiet host, else each command that finds the host idle would
    measure it again. The cost of tracing is planted for all: no test judges what tracing adds to a study.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    built = Path(_native.__file__).stat().st_mtime_ns
    kind = "brief" if os.environ.get("PYTEST_XDIST_WORKER") else "alone"
    _CACHE.mkdir(parents=True, exist_ok=True)
    cache = _CACHE / f"{boot}-{built}-{kind}.json"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.exists():
            floor = _measure_briefly() if kind == "brief" else _measure(_MEASURE)
            write_atomic(cache, json.dumps({**floor, _COST: planted_cost()}))
        known: dict[str, str] = json.loads(cache.read_text())
    return known


def _measure_briefly() -> dict[str, str]:
    texts = _measure(_MEASURE_BRIEFLY)
    if _FLOOR in texts:
        floor = json.loads(texts[_FLOOR])
        for each in filter(None, (floor, floor["io_uring"])):
            each["busy_share"] = 0.0
        texts[_FLOOR] = json.dumps(floor)
    return texts


def planted_cost() -> str:
    """Text of a record of what tracing costs here, in each mode."""
    run = {"hook": 50.0, "low": 50.0, "high": 50.0, "account": 50.0, "idle": 60.0, "left": 40.0}
    cost = {"calls": run, "others": run, "rounds": 6, "basis": "planted"}
    return json.dumps({f"{os.uname().release} {mode}": cost for mode in MODES})


def _measure(program: str) -> dict[str, str]:
    """Text of the floor that a program leaves in a state directory of its own, if it leaves one."""
    where = Path(tempfile.mkdtemp(prefix="penstock-known-host-"))
    try:
        own = {"PENSTOCK_STATE": str(where / "state"), "PENSTOCK_RUNTIME": str(where / "run")}
        line = [sys.executable, "-c", program]
        done = subprocess.run(
            line, env=os.environ | own, capture_output=True, text=True, timeout=180
        )
        if "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr:
            raise RuntimeError(done.stderr)
        floor = where / "state" / _FLOOR
        return {_FLOOR: floor.read_text()} if floor.exists() else {}
    finally:
        shutil.rmtree(where)
