"""Processor time of a program: of recorded runs, or measured."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles
from penstock.errors import BadInput, PenstockError

#: executions of a command whose processor time is measured
COMMAND_RUNS = 3


def of_runs(path: Path) -> tuple[float, ...]:
    """Processor time [s] of the valid runs of a study's results, or of one run. BadInput without one."""
    try:
        runs = [Bundle.open(path)] if (path / "manifest.json").exists() else bundles(path)
    except PenstockError as error:
        raise BadInput(f"{path}: {error}") from None
    manifests = [run.manifest for run in runs]
    times = tuple(
        float(one["cpu_ns"]) / 1e9
        for one in manifests
        if one.get("cpu_ns") is not None and one["valid"]
    )
    if not times:
        raise BadInput(f"{path}: found no run with a processor time; expected a run or results")
    return times


def of_command(command: str, runs: int = COMMAND_RUNS) -> tuple[float, ...]:
    """User and system time [s] of a shell command in each of its `runs`. PenstockError if it fails."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = _discarding(command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if status != 0:
            raise PenstockError(f"the command {command!r} ended with status {status}")
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return tuple(times)


def _discarding(command: str) -> int:
    """Status of a shell command whose output is read and discarded: some programs, such as grep, do less work
    if their output is /dev/null."""
    with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.read(1 << 20):
            pass
    return process.returncode


def with_processor_time(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of a task with `cpu_s` in place of `command` or `runs`."""
    rest = {k: v for k, v in options.items() if k not in ("command", "runs")}
    if "command" in options:
        return rest | {"cpu_s": of_command(options["command"])}
    if "runs" in options:
        return rest | {"cpu_s": of_runs(Path(options["runs"]))}
    return rest
