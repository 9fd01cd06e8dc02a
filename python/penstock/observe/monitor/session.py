"""One monitored command, from its control group to its bundle."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.host.cgroup import create_run_cgroup
from penstock.host.facts import host_facts
from penstock.host.journal import Journal
from penstock.host.launch import Finished, launch
from penstock.observe.monitor.monitor import MonitorObserver, MonitorResult
from penstock.observe.observer import Watched
from penstock.observe.recorder import Recorder, finish_bundle, new_bundle
from penstock.observe.trace.capture.calibrate import calibrate
from penstock.observe.trace.capture.overhead import Paired


@dataclass(frozen=True)
class Monitored:
    """A monitored command: how it ended, what was sampled, where its bundle is."""

    words: list[str]
    finished: Finished
    result: MonitorResult
    bundle: Path | None


#: share of a command's time that sampling it may take (MonEx's "low impact")
MOST_SLOWDOWN = 0.02


def impact_of(
    words: list[str],
    interval_ns: int,
    pairs: int,
    progress: Callable[[int, int], Any] = lambda done, whole: None,
) -> Paired:
    """What sampling adds to a command: it is run `pairs` times with and without, in turns.

    Raises PenstockError where the command fails, or sampling is not possible.
    """
    settings = {"interval_s": interval_ns / 1e9}
    with tempfile.TemporaryDirectory(prefix="penstock-monitor-") as scratch:
        return calibrate(
            words,
            lambda journal: MonitorObserver(journal, None, settings),
            pairs,
            progress,
            out_dir=Path(scratch),
            limit=MOST_SLOWDOWN,
        )


def monitor_command(
    words: list[str], interval_ns: int, output: Path | None, *, quiet: bool = False
) -> Monitored:
    """Runs a command in a control group of its own and samples it and the host meanwhile.

    With `quiet` the command's stdout goes to stderr. Raises PenstockError if sampling is not possible.
    """
    journal = Journal()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-monitor-") as scratch,
        new_bundle(journal, output, words) as bundle,
        Recorder(
            {"monitor": MonitorObserver(journal, None, {"interval_s": interval_ns / 1e9})}
        ) as recorder,
        create_run_cgroup("monitor", None, journal) as group,
    ):
        recorder.start(Watched(group, group), Path(scratch) if bundle is None else bundle.path)
        finished = launch(words, group, stdout=sys.stderr.fileno() if quiet else None, stdin=None)
        run = finished.start_ns, finished.end_ns
        seen = recorder.finish(bundle, run)
        made = None
        if bundle is not None:
            phase = {"phase_id": "workload", "start_ns": run[0], "end_ns": run[1]}
            facts = {"command": words, "host": host_facts()}
            made = finish_bundle(bundle, seen, [phase], finished.exit_status, run, facts)
    result = MonitorResult(seen.observed, seen.receipts["monitor"])
    return Monitored(words, finished, result, made)
