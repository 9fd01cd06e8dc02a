"""One monitored command, from its control group to its bundle."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.cgroup import create_run_cgroup
from penstock.host.facts import host_facts
from penstock.host.interrupts import Interrupts, in_sessions
from penstock.host.journal import Journal
from penstock.host.launch import Finished, launch
from penstock.observe.monitor.monitor import MonitorObserver, MonitorResult
from penstock.observe.observer import Watched
from penstock.observe.recorder import Recorder, finish_bundle, new_bundle


@dataclass(frozen=True)
class Monitored:
    """A monitored command: how it ended, what was sampled, where its bundle is, and the signal that ended it
    early."""

    words: list[str]
    finished: Finished
    result: MonitorResult
    bundle: Path | None
    interrupted: str | None = None


class Signals(Interrupts):
    """Signals to a monitored command, from before it begins until its experiment has ended."""

    def __init__(self) -> None:
        self._leaders: list[int] = []
        super().__init__(lambda: in_sessions(self._leaders))

    def begun(self, pid: int) -> None:
        """The command is there; it gets what came before."""
        self._leaders.append(pid)
        self.pass_on()


def monitor_command(
    words: list[str],
    interval_ns: int,
    output: Path | None,
    *,
    quiet: bool = False,
    signals: Signals | None = None,
) -> Monitored:
    """Runs a command in a control group of its own and samples it and the host meanwhile.

    `signals` that come are passed on to the command, whose end is then waited for; a second one kills it.
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
        if signals is not None and signals.name is not None:
            raise PenstockError(f"ended by {signals.name} before the command began")
        finished = launch(
            words,
            group,
            stdout=sys.stderr.fileno() if quiet else None,
            stdin=None,
            started=None if signals is None else signals.begun,
        )
        run = finished.start_ns, finished.end_ns
        seen = recorder.finish(bundle, run)
        interrupted = signals.name if signals is not None else None
        made = None
        if bundle is not None:
            phase = {"phase_id": "workload", "start_ns": run[0], "end_ns": run[1]}
            facts = {"command": words, "host": host_facts(), "interrupted": interrupted}
            made = finish_bundle(bundle, seen, [phase], finished.exit_status, run, facts)
    result = MonitorResult(seen.observed, seen.receipts["monitor"])
    return Monitored(words, finished, result, made, interrupted)
