"""Run and record one monitored command, from its control group to its bundle."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.announce import Announcement
from penstock.host.journal.journal import Journal
from penstock.host.probe.facts import host_facts
from penstock.host.processes.interrupts import Interrupts
from penstock.host.processes.launch import Finished, Stop, launch
from penstock.observe.observer import Observer, Watched
from penstock.observe.recorder import Observation, Recorder, finish_bundle, new_bundle
from penstock.observe.sampler.alerts import AlertWatch, Stretch, judged
from penstock.observe.sampler.monitor import MonitorObserver, MonitorResult
from penstock.observe.trace.capture.calibrate import calibrate
from penstock.observe.trace.capture.overhead import Paired
from penstock.parts.monitoring.collect import CollectObserver
from penstock.parts.monitoring.outbox.sending import Sending
from penstock.scratch import Scratch
from penstock.spec.alert import Rule
from penstock.spec.application import Application


@dataclass(frozen=True)
class Monitored:
    """A completed monitored command: exit status and times, samples, bundle and alerts."""

    argv: list[str]
    finished: Finished
    result: MonitorResult
    bundle: Path | None
    #: alerts that fired, in order of time
    alerts: list[Stretch]
    #: signal that ended it early
    interrupted: str | None = None
    #: receipt of its collectors
    collected: dict[str, Any] | None = None

    @property
    def aborted(self) -> bool:
        """True if a rule ended the command."""
        return self.finished.stopped


def _settings(
    interval_ns: int, block_latency: bool, application: Application | None
) -> dict[str, Any]:
    options = application.model_dump() if application is not None else {}
    return {"interval_s": interval_ns / 1e9, "block_latency": block_latency, **options}


#: share of a command's time that sampling it may take (MonEx's "low impact")
MOST_SLOWDOWN = 0.02


def impact_of(
    argv: list[str],
    interval_ns: int,
    pairs: int,
    progress: Callable[[int, int], Any] = lambda done, total: None,
    *,
    block_latency: bool = False,
    application: Application | None = None,
) -> Paired:
    """Overhead of sampling a command, which is run `pairs` times with and without it, alternately.

    Raises PenstockError if the command fails, or sampling is not possible.
    """
    settings = _settings(interval_ns, block_latency, application)
    with Scratch("monitor") as scratch:
        return calibrate(
            argv,
            lambda journal: MonitorObserver(journal, None, settings),
            pairs,
            progress,
            out_dir=scratch,
            limit=MOST_SLOWDOWN,
        )


def monitor_command(
    argv: list[str],
    interval_ns: int,
    output: Path | None,
    *,
    quiet: bool = False,
    rules: Sequence[Rule] = (),
    name: str = "",
    on_alert: Callable[[Stretch], None] = lambda _: None,
    signals: Interrupts | None = None,
    block_latency: bool = False,
    collect: Callable[[Journal], CollectObserver] | None = None,
    application: Application | None = None,
    sending: Sending | None = None,
    about: Mapping[str, Any] | None = None,
) -> Monitored:
    """Run a command in a control group of its own, and sample it and the host.

    With `quiet` the command's stdout goes to stderr; `name` is its name on live pages. A rule that aborts
    ends the command; `on_alert` is called with each alert that fires, in another thread. `signals` are passed
    on to the command, and its end is awaited; a second signal kills it. `collect` creates its collectors,
    `sending` sends the samples during the run, `about` is added to the bundle's manifest. Raises
    PenstockError if sampling is not possible.
    """
    journal = Journal()
    settings = _settings(interval_ns, block_latency, application)
    with (
        Scratch("monitor") as scratch,
        new_bundle(journal, output, argv) as bundle,
        Recorder(_observers(journal, settings, collect)) as recorder,
        create_run_cgroup("monitor", None, journal) as group,
        contextlib.closing(Stop()) as stop,
        contextlib.ExitStack() as stack,
    ):
        recorder.start(Watched(group, group), scratch if bundle is None else bundle.path)
        sources = recorder.live()
        announcement = stack.enter_context(
            Announcement("monitor", name or argv[0], sources=sources)
        )
        spool = Path(sources["monitor"]["spool"])

        def announce_alert(stretch: Stretch) -> None:
            row = {**stretch.row(), "words": stretch.summary, "utc_ns": time.time_ns()}
            announcement.add("alerts", row)
            on_alert(stretch)

        watch = AlertWatch(rules, spool, interval_ns, stop.ask, announce_alert)
        if sending is not None:
            sending.follow(spool)
        try:
            if signals is not None and signals.name is not None:
                raise PenstockError(f"ended by {signals.name} before the command began")
            finished = launch(
                argv,
                group,
                stdout=sys.stderr.fileno() if quiet else None,
                stdin=None,
                extra_env=recorder.environment(),
                stop=stop,
                started=None if signals is None else signals.begun,
            )
        finally:
            watch.end()
            if sending is not None:
                sending.end()
        run = finished.start_ns, finished.end_ns
        observations = recorder.finish(bundle, run)
        interrupted = signals.name if signals is not None else None
        alerts = _record_alerts(rules, observations, watch)
        stored = None
        if bundle is not None:
            phase = {"phase_id": "workload", "start_ns": run[0], "end_ns": run[1]}
            facts = {"command": argv, **(about or {})}
            facts |= {"host": host_facts(), "interrupted": interrupted}
            stored = finish_bundle(bundle, observations, [phase], finished.exit_status, run, facts)
    result = MonitorResult(observations.observed, observations.receipts["monitor"])
    collected = observations.receipts.get("collect")
    return Monitored(argv, finished, result, stored, alerts, interrupted, collected)


def _record_alerts(
    rules: Sequence[Rule], observations: Observation, watch: AlertWatch
) -> list[Stretch]:
    """Evaluate the rules on the recorded samples, and add the table `alerts`; the alerts in order of time."""
    tables, receipt = observations.observed, observations.receipts["monitor"]
    samples, utilisation = tables.get("samples"), tables.get("utilisation")
    fired = judged(rules, int(receipt["used_ns"]), samples, utilisation, watch.stretches)
    if rules:
        tables["alerts"] = fired.table()
    if watch.trouble:
        receipt["alerts"] = watch.trouble
    return sorted(fired.stretches, key=lambda s: s.fired_ns)


def _observers(
    journal: Journal,
    settings: Mapping[str, Any],
    collect: Callable[[Journal], CollectObserver] | None,
) -> dict[str, Observer]:
    """Observers by name: collectors, which start before the sampler and stop after it, and the sampler."""
    collectors: dict[str, Observer] = {} if collect is None else {"collect": collect(journal)}
    try:
        return {**collectors, "monitor": MonitorObserver(journal, None, settings)}
    except BaseException:
        for collector in collectors.values():
            collector.stop()
        raise
