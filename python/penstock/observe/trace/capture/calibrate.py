"""`--calibrate`: the time that tracing adds to one command, by runs with and without it in turns."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.observer import Observer, Watched
from penstock.observe.recorder import Recorder
from penstock.observe.trace.capture.overhead import Paired, paired_runs

#: smallest overhead to be detected, as a share of the time without tracing
LIMIT = 0.008


def calibrate(
    argv: list[str],
    load: Callable[[Journal], Observer],
    pairs: int,
    progress: Callable[[int, int], Any] = lambda done, total: None,
    *,
    out_dir: Path | None = None,
    limit: float = LIMIT,
) -> Paired:
    """Run a command 2 `pairs` times, its output discarded; `load` returns the tracer, or another observer.

    Without tracing no BPF program is loaded. `out_dir` is the spool directory, for an observer without a
    default. Raises PenstockError if the command fails.
    """
    completed = 0

    def seconds(tracing: bool) -> float:
        nonlocal completed
        journal = Journal()
        with (
            Recorder({"trace": load(journal)} if tracing else {}) as recorder,
            create_run_cgroup("trace", None, journal) as group,
        ):
            recorder.start(Watched(group, group), out_dir)
            finished = launch(argv, group, stdout=subprocess.DEVNULL, stdin=None)
            recorder.finish(None, None)
        if finished.exit_status != 0:
            raise PenstockError(
                f"--calibrate: the command ended with status {finished.exit_status} in run {completed + 1}; "
                "it must be one that can be run again and again"
            )
        completed += 1
        progress(completed, 2 * pairs)
        return (finished.end_ns - finished.start_ns) / 1e9

    return paired_runs(lambda: seconds(False), lambda: seconds(True), pairs, limit)
