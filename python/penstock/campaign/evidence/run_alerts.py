"""The study's alert rules in one run: evaluated live, and over its tables at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.campaign.evidence.attempt_work import AttemptWork
from penstock.host.journal.announce import Announcement
from penstock.host.processes.launch import Stop
from penstock.observe.sampler.alerts import AlertWatch, Stretch, judged
from penstock.spec.alert import Rule


def watch(
    rules: Sequence[Rule],
    work: AttemptWork,
    monitor: Mapping[str, Any],
    announcement: Announcement | None,
) -> None:
    """Evaluate rules during the run; `monitor`: file and interval of its samples."""

    def announce(stretch: Stretch) -> None:
        if announcement is not None:
            row = {**stretch.row(), "words": stretch.summary, "run_id": work.run_id}
            announcement.add("alerts", {**row, "utc_ns": time.time_ns()})

    work.stop = Stop()
    spool, interval_ns = Path(monitor["spool"]), int(monitor["interval_ns"])
    work.watch = AlertWatch(rules, spool, interval_ns, work.stop.ask, announce)


def judge_alerts(rules: Sequence[Rule], work: AttemptWork, say: Callable[[str], None]) -> None:
    """Add the table `alerts`, from the run's tables and its live alerts, and record the alert that ended the
    run."""
    if work.watch is None:
        return
    seen = work.observation.observed
    interval_ns = int(work.observation.receipts["monitor"]["used_ns"])
    alerts = judged(
        rules,
        interval_ns,
        seen.get("samples"),
        seen.get("utilisation"),
        work.watch.stretches,
    )
    seen["alerts"] = alerts.table()
    if work.watch.trouble:
        say(f"warning: {work.watch.trouble}")
    if work.finished is not None and work.finished.stopped:
        work.alert = next((s.summary for s in alerts.stretches if s.aborted), "a rule fired")
