"""Collectors around the runs of a study, or a monitored command: an observer.

    observer = CollectObserver(journal, home, {"power": {"type": "snmp", "host": "pdu", "outlets": […]}})
    observer.start(watched, out_dir)
    observer.environment()         # what the command is to know: where it may push to
    seen = observer.finish(bundle, run)
    seen.tables["points"]

They work in a process of their own (`collectors/beside.py`) on a spool in the run's directory, where all that
was stored outlives a kill. Nothing that goes wrong with them ends a run, or holds it up longer than
`PATIENCE_S` at either end: it is told in the receipt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import worst
from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.observe.observer import Seen, Watched
from penstock.parts.monitoring.collectors.settings import (
    Mistake,
    checked_of_run,
    mistakes,
    of_run,
    variable,
)
from penstock.parts.monitoring.experiments.accounting import of_refusals, verdict
from penstock.parts.monitoring.experiments.points import NO_LOSS, Batch
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.experiments.spool import Spool

#: longest that a run waits for its collectors at its begin, and at its end [s]
PATIENCE_S = 10.0
#: beyond that for the answer of who waits for them [s]
_ANSWER_S = 5.0
SPOOL = "collected.spool"
_MODULE = "penstock.parts.monitoring.collectors.collector_process"


class CollectObserver:
    """Collectors around the runs of a study. Settings: those of each collector by its name.

    `into` is the spool of an experiment that takes the points at once, `forward` is given each batch at the
    end of a run. BadInput for settings that are wrong.
    """

    def __init__(
        self,
        journal: Journal,
        home: Path | None,
        settings: Mapping[str, Any],
        *,
        into: Path | None = None,
        forward: Callable[[Batch], None] | None = None,
    ) -> None:
        self._wanted = checked_of_run(settings)
        self._journal = journal
        self._log = None if home is None else home / "collect.log"
        self._into, self._forward = into, forward
        self._daemon: Daemon | None = None
        self._place: Path | None = None
        self._scratch: Path | None = None
        self._reached: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._shift_ns = self._begun_ns = 0
        self._up()

    @staticmethod
    def mistakes(settings: Any) -> Iterator[Mistake]:
        """Everything that is wrong with settings: where below them, what was found, what was expected."""
        return mistakes(settings)

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Starts the collectors; what cannot be started in time is told at the end."""
        self._failed, self._reached = {}, {}
        self._begun_ns = time.monotonic_ns()
        self._shift_ns = time.time_ns() - self._begun_ns
        try:
            if self._into is None and out_dir is None:
                out_dir = self._scratch = Path(tempfile.mkdtemp(prefix="penstock-collect-"))
            if self._into is not None:
                self._place = self._into
            else:
                assert out_dir is not None
                self._place = Spool.create(out_dir / SPOOL).directory
            told = self._up().call(
                "start",
                PATIENCE_S + _ANSWER_S,
                spool=str(self._place.absolute()),
                collectors={n: of_run(n, s) for n, s in self._wanted.items()},
                patience_s=PATIENCE_S,
            )
        except (PenstockError, OSError) as error:
            self._kill()
            self._failed = dict.fromkeys(self._wanted, str(error))
            return
        self._failed = dict(told["failed"])
        for name, ways in told["reached"].items():
            for way, value in ways.items():
                self._reached[f"{variable(name)}_{way}" if way else variable(name)] = value

    def environment(self) -> dict[str, str]:
        """Where a command reaches those that listen: `PENSTOCK_COLLECT_NAME`, and `…_TOKEN`."""
        return dict(self._reached)

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """Tables `series`, `points` and `gaps` of the run, as of an experiment."""
        self._reached = {}
        told = self._stopped()
        end_ns = time.monotonic_ns()
        begin_ns, end_ns = run if run is not None else (self._begun_ns, end_ns)
        made = recorded([], 0, 0)
        trouble = ""
        try:
            if self._place is not None:
                batches = list(Spool(self._place).batches())
                made = recorded(batches, begin_ns + self._shift_ns, end_ns + self._shift_ns)
                for batch in batches if self._forward is not None else ():
                    self._forward(batch)  # type: ignore[misc]
        except (PenstockError, OSError, MemoryError) as error:
            trouble = str(error) or type(error).__name__
        finally:
            self._clear()
        receipt = self._receipt(made, told)
        if trouble:
            receipt |= {"complete": "unusable", "trouble": trouble}
        tables = {"series": made.series, "points": made.points, "gaps": made.gaps}
        return Seen(tables, receipt, made.lost)

    def stop(self) -> None:
        """Ends the process."""
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            daemon.stop()
        self._clear()

    def _up(self) -> Daemon:
        """The process, begun anew where it was killed."""
        if self._daemon is None or not self._daemon.alive:
            self._kill()
            kinds = sorted({str(s.get("type", n)) for n, s in self._wanted.items()})
            config = {"kinds": kinds}
            self._daemon = start_daemon("collect", config, self._journal, self._log, module=_MODULE)
        return self._daemon

    def _stopped(self) -> dict[str, Any]:
        """Ends the collecting, and what does not end in time with the process itself."""
        if self._daemon is None:
            return {}
        try:
            told = self._daemon.call("stop", PATIENCE_S + _ANSWER_S, patience_s=PATIENCE_S)
        except PenstockError as error:
            died = "the process that collects was killed" if self._daemon.gone(1.0) else str(error)
            self._kill()
            return {"died": died}
        if told["failed"]:
            self._failed |= told["failed"]
            self._kill()
        return told

    def _kill(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, signal.SIGKILL)
        with contextlib.suppress(PenstockError):
            daemon.stop()

    def _clear(self) -> None:
        place, self._place = self._place, None
        scratch, self._scratch = self._scratch, None
        if place is not None and place != self._into:
            shutil.rmtree(place, ignore_errors=True)
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    def _receipt(self, made: Recorded, told: Mapping[str, Any]) -> dict[str, Any]:
        receipts = told.get("receipts", {})
        collectors = {
            name: _account(
                str(settings.get("type", name)),
                made,
                name,
                receipts.get(name, {}),
                self._failed.get(name) or told.get("died", ""),
            )
            for name, settings in self._wanted.items()
        }
        known = {k: told[k] for k in ("cpu_ns", "peak_memory_bytes", "died") if k in told}
        full = {"full": True} if told.get("full") else {}
        return {
            "observer": "collect",
            "complete": worst(
                [made.verdict, *(str(one["verdict"]) for one in collectors.values())]
            ),
            "series": made.series.num_rows,
            "points": made.points.num_rows,
            "points_lost": made.lost,
            **known,
            **full,
            "collectors": collectors,
        }


def _account(
    kind: str, made: Recorded, name: str, receipt: Mapping[str, Any], trouble: str
) -> dict[str, Any]:
    """What came of one collector, and how complete it is: its polls, and each of its series.

    One that waits lacks nothing where nothing came, for nobody knows what should have: that it is empty is
    told.
    """
    mine = made.series.filter(pc.equal(made.series["source"], name))
    counted = receipt.get("counted", {})
    due = int(counted.get("due", 0))
    went = due - int(counted.get("failed", 0)) - int(counted.get("missed", 0))
    verdicts = mine["verdict"].to_pylist()
    if due:
        verdicts.append(verdict(max(0, went), due, 0, None, 0))
    # what is sent again, or has no value, is no loss
    refused = receipt.get("refused", {})
    lost = sum(n for why, n in refused.items() if why not in NO_LOSS)
    messages = sum(receipt.get("refused_messages", {}).values())
    verdicts.append(of_refusals(int(receipt.get("stored", 0)), lost, messages))
    if trouble:
        verdicts.append("partial" if mine.num_rows else "unusable")
    said: dict[str, Any] = {
        "type": kind,
        "verdict": worst(verdicts),
        "series": mine.num_rows,
        "points": int(pc.sum(mine["stored"]).as_py() or 0),
        "lost": int(pc.sum(mine["lost"]).as_py() or 0),
    }
    if outside := int(pc.sum(mine["outside"]).as_py() or 0):
        said["outside"] = outside
        by_ns = pc.approximate_median(mine["outside_by_ns"]).as_py()
        if by_ns is not None:
            said["outside_by_ns"] = round(by_ns)
    said |= {key: value for key, value in receipt.items() if value}
    empty = {} if mine.num_rows else {"empty": True}
    return said | empty | ({"trouble": trouble} if trouble else {})
