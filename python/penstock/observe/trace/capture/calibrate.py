"""`--calibrate`: what tracing adds to one command, by running it with and without in turns."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError
from penstock.host.cgroup import create_run_cgroup
from penstock.host.journal import Journal
from penstock.host.launch import launch
from penstock.observe.trace.capture.overhead import Paired, paired_runs
from penstock.observe.trace.capture.tracer import Tracer

#: share of the time without tracing that is to be told from none
LIMIT = 0.008


def calibrate(
    words: list[str],
    load: Callable[[Journal], Tracer],
    pairs: int,
    progress: Callable[[int, int], Any] = lambda done, whole: None,
) -> Paired:
    """Runs a command 2 `pairs` times, its output thrown away; `load` gives a tracer that is not armed.

    Without tracing no program is loaded at all. Raises PenstockError where the command fails.
    """
    made = 0

    def seconds(tracing: bool) -> float:
        nonlocal made
        journal = Journal()
        with contextlib.ExitStack() as stack:
            tracer = stack.enter_context(load(journal)) if tracing else None
            group = stack.enter_context(create_run_cgroup("trace", None, journal))
            if tracer is not None:
                tracer.arm(group)
            finished = launch(words, group, stdout=subprocess.DEVNULL, stdin=None)
            if tracer is not None:
                tracer.disarm()
        if finished.exit_status != 0:
            raise PenstockError(
                f"--calibrate: the command ended with status {finished.exit_status} in run {made + 1}; "
                "it must be one that can be run again and again"
            )
        made += 1
        progress(made, 2 * pairs)
        return (finished.end_ns - finished.start_ns) / 1e9

    return paired_runs(lambda: seconds(False), lambda: seconds(True), pairs, LIMIT)
