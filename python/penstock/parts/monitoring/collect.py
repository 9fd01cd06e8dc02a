"""Collectors around the runs of a study, or a monitored command: an observer.

    observer = CollectObserver(journal, home, {"power": {"type": "snmp", "host": "pdu", "outlets": […]}})
    observer.start(watched, out_dir)
    observer.environment()         # variables of the command: addresses of receivers
    seen = observer.finish(bundle, run)
    seen.tables["points"]

They run in a process of their own (`collectors/collector_process.py`) and write to a spool in the run's
directory, which survives a kill. Their errors are in the receipt; they do not end a run, nor delay its start
or its end by more than `PATIENCE_S`.
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

#: longest wait for the collectors at the start and at the end of a run [s]
PATIENCE_S = 10.0
#: additional timeout of the answer of their process [s]
_ANSWER_S = 5.0
SPOOL = "collected.spool"
_MODULE = "penstock.parts.monitoring.collectors.collector_process"


class CollectObserver:
    """Collectors around the runs of a study. `settings`: settings of each collector by name.

    `into`: spool of an experiment that stores the points directly; `forward` is called with each batch at the
    end of a run. BadInput for invalid settings.
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
        self._settings = checked_of_run(settings)
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
        """Mistakes in settings: path below them, actual value, expected value."""
        return mistakes(settings)

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Start the collectors; those that fail to start in time are reported at the end."""
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
            reply = self._up().call(
                "start",
                PATIENCE_S + _ANSWER_S,
                spool=str(self._place.absolute()),
                collectors={n: of_run(n, s) for n, s in self._settings.items()},
                patience_s=PATIENCE_S,
            )
        except (PenstockError, OSError) as error:
            self._kill()
            self._failed = dict.fromkeys(self._settings, str(error))
            return
        self._failed = dict(reply["failed"])
        for name, ways in reply["reached"].items():
            for way, value in ways.items():
                self._reached[f"{variable(name)}_{way}" if way else variable(name)] = value

    def environment(self) -> dict[str, str]:
        """Addresses and tokens of receivers, as `PENSTOCK_COLLECT_NAME` and `…_TOKEN`."""
        return dict(self._reached)

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """Stop the collectors; returns the tables `series`, `points` and `gaps` of the run."""
        self._reached = {}
        reply = self._stopped()
        end_ns = time.monotonic_ns()
        begin_ns, end_ns = run if run is not None else (self._begun_ns, end_ns)
        records = recorded([], 0, 0)
        trouble = ""
        try:
            if self._place is not None:
                batches = list(Spool(self._place).batches())
                records = recorded(batches, begin_ns + self._shift_ns, end_ns + self._shift_ns)
                for batch in batches if self._forward is not None else ():
                    self._forward(batch)  # type: ignore[misc]
        except (PenstockError, OSError, MemoryError) as error:
            trouble = str(error) or type(error).__name__
        finally:
            self._clear()
        receipt = self._receipt(records, reply)
        if trouble:
            receipt |= {"complete": "unusable", "trouble": trouble}
        tables = {"series": records.series, "points": records.points, "gaps": records.gaps}
        return Seen(tables, receipt, records.lost)

    def stop(self) -> None:
        """Stop the process."""
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            daemon.stop()
        self._clear()

    def _up(self) -> Daemon:
        """The process, restarted if it was killed."""
        if self._daemon is None or not self._daemon.alive:
            self._kill()
            kinds = sorted({str(s.get("type", n)) for n, s in self._settings.items()})
            config = {"kinds": kinds}
            self._daemon = start_daemon("collect", config, self._journal, self._log, module=_MODULE)
        return self._daemon

    def _stopped(self) -> dict[str, Any]:
        """Stop the collectors; if some do not stop in time, kill the process."""
        if self._daemon is None:
            return {}
        try:
            reply = self._daemon.call("stop", PATIENCE_S + _ANSWER_S, patience_s=PATIENCE_S)
        except PenstockError as error:
            died = "the process that collects was killed" if self._daemon.gone(1.0) else str(error)
            self._kill()
            return {"died": died}
        if reply["failed"]:
            self._failed |= reply["failed"]
            self._kill()
        return reply

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

    def _receipt(self, records: Recorded, reply: Mapping[str, Any]) -> dict[str, Any]:
        receipts = reply.get("receipts", {})
        collectors = {
            name: _account(
                str(settings.get("type", name)),
                records,
                name,
                receipts.get(name, {}),
                self._failed.get(name) or reply.get("died", ""),
            )
            for name, settings in self._settings.items()
        }
        usage = {k: reply[k] for k in ("cpu_ns", "peak_memory_bytes", "died") if k in reply}
        full = {"full": True} if reply.get("full") else {}
        return {
            "observer": "collect",
            "complete": worst(
                [records.verdict, *(str(one["verdict"]) for one in collectors.values())]
            ),
            "series": records.series.num_rows,
            "points": records.points.num_rows,
            "points_lost": records.lost,
            **usage,
            **full,
            "collectors": collectors,
        }


def _account(
    kind: str, records: Recorded, name: str, receipt: Mapping[str, Any], trouble: str
) -> dict[str, Any]:
    """Counts of one collector, and the verdict of the completeness of its polls and series.

    A receiver without points is complete, as the number of points due is unknown, and marked `empty`.
    """
    rows = records.series.filter(pc.equal(records.series["source"], name))
    counted = receipt.get("counted", {})
    due = int(counted.get("due", 0))
    went = due - int(counted.get("failed", 0)) - int(counted.get("missed", 0))
    verdicts = rows["verdict"].to_pylist()
    if due:
        verdicts.append(verdict(max(0, went), due, 0, None, 0))
    # duplicates and points without a value are no loss
    refused = receipt.get("refused", {})
    lost = sum(n for why, n in refused.items() if why not in NO_LOSS)
    messages = sum(receipt.get("refused_messages", {}).values())
    verdicts.append(of_refusals(int(receipt.get("stored", 0)), lost, messages))
    if trouble:
        verdicts.append("partial" if rows.num_rows else "unusable")
    account: dict[str, Any] = {
        "type": kind,
        "verdict": worst(verdicts),
        "series": rows.num_rows,
        "points": int(pc.sum(rows["stored"]).as_py() or 0),
        "lost": int(pc.sum(rows["lost"]).as_py() or 0),
    }
    if outside := int(pc.sum(rows["outside"]).as_py() or 0):
        account["outside"] = outside
        by_ns = pc.approximate_median(rows["outside_by_ns"]).as_py()
        if by_ns is not None:
            account["outside_by_ns"] = round(by_ns)
    account |= {key: value for key, value in receipt.items() if value}
    empty = {} if rows.num_rows else {"empty": True}
    return account | empty | ({"trouble": trouble} if trouble else {})
