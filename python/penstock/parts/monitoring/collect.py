"""Observer that runs collectors during the runs of a study or a monitored command.

    observer = CollectObserver(journal, home, {"power": {"type": "snmp", "host": "pdu", "outlets": […]}})
    observer.start(watched, out_dir)
    observer.environment()         # variables of the command: addresses of receivers
    observed = observer.finish(bundle, run)
    observed.tables["points"]

They run in a process of their own (`collectors/collector_process.py`) and write to a spool in the run's
directory, which survives a kill. Their errors are in the receipt. They never end a run, and delay its start
and its end by at most `PATIENCE_S`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
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
from penstock.scratch import Scratch

#: longest wait for the collectors at the start and at the end of a run [s]
PATIENCE_S = 10.0
#: additional timeout of the response of their process [s]
_RESPONSE_S = 5.0
SPOOL = "collected.spool"
_MODULE = "penstock.parts.monitoring.collectors.collector_process"


class CollectObserver:
    """Runs collectors during the runs of a study. `settings`: settings of each collector by name.

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
        self._spool_path: Path | None = None
        self._scratch: Scratch | None = None
        self._addresses: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._shift_ns = self._start_ns = 0
        self._ensure_process()

    @staticmethod
    def mistakes(settings: Any) -> Iterator[Mistake]:
        """Mistakes in settings: path below them, actual value, expected value."""
        return mistakes(settings)

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Start the collectors; those that fail to start in time are reported at the end."""
        self._failed, self._addresses = {}, {}
        self._start_ns = time.monotonic_ns()
        self._shift_ns = time.time_ns() - self._start_ns
        try:
            if self._into is None and out_dir is None:
                self._scratch = Scratch("collect")
                out_dir = self._scratch.path
            if self._into is not None:
                self._spool_path = self._into
            else:
                assert out_dir is not None
                self._spool_path = Spool.create(out_dir / SPOOL).directory
            reply = self._ensure_process().call(
                "start",
                PATIENCE_S + _RESPONSE_S,
                spool=str(self._spool_path.absolute()),
                collectors={n: of_run(n, s) for n, s in self._settings.items()},
                patience_s=PATIENCE_S,
            )
        except (PenstockError, OSError) as error:
            self._kill()
            self._failed = dict.fromkeys(self._settings, str(error))
            return
        self._failed = dict(reply["failed"])
        for name, values in reply["reached"].items():
            for suffix, value in values.items():
                key = f"{variable(name)}_{suffix}" if suffix else variable(name)
                self._addresses[key] = value

    def environment(self) -> dict[str, str]:
        """Addresses and tokens of receivers, as `PENSTOCK_COLLECT_NAME` and `…_TOKEN`."""
        return dict(self._addresses)

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """Stop the collectors; returns the tables `series`, `points` and `gaps` of the run."""
        self._addresses = {}
        reply = self._stop_collectors()
        end_ns = time.monotonic_ns()
        begin_ns, end_ns = run if run is not None else (self._start_ns, end_ns)
        records = recorded([], 0, 0)
        failure = ""
        try:
            if self._spool_path is not None:
                batches = list(Spool(self._spool_path).batches())
                records = recorded(batches, begin_ns + self._shift_ns, end_ns + self._shift_ns)
                for batch in batches if self._forward is not None else ():
                    self._forward(batch)  # type: ignore[misc]
        except (PenstockError, OSError, MemoryError) as error:
            failure = str(error) or type(error).__name__
        finally:
            self._clear()
        receipt = self._receipt(records, reply)
        if failure:
            receipt |= {"complete": "unusable", "trouble": failure}
        tables = {"series": records.series, "points": records.points, "gaps": records.gaps}
        return Seen(tables, receipt, records.lost)

    def stop(self) -> None:
        """Stop the process."""
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            daemon.stop()
        self._clear()

    def _ensure_process(self) -> Daemon:
        """The process, restarted if it was killed."""
        if self._daemon is None or not self._daemon.alive:
            self._kill()
            kinds = sorted({str(s.get("type", n)) for n, s in self._settings.items()})
            config = {"kinds": kinds}
            self._daemon = start_daemon("collect", config, self._journal, self._log, module=_MODULE)
        return self._daemon

    def _stop_collectors(self) -> dict[str, Any]:
        """Stop the collectors; if some do not stop in time, kill the process."""
        if self._daemon is None:
            return {}
        try:
            reply = self._daemon.call("stop", PATIENCE_S + _RESPONSE_S, patience_s=PATIENCE_S)
        except PenstockError as error:
            reason = "the collector process was killed" if self._daemon.gone(1.0) else str(error)
            self._kill()
            return {"died": reason}
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
        spool_path, self._spool_path = self._spool_path, None
        scratch, self._scratch = self._scratch, None
        if spool_path is not None and spool_path != self._into:
            shutil.rmtree(spool_path, ignore_errors=True)
        if scratch is not None:
            scratch.close()

    def _receipt(self, records: Recorded, reply: Mapping[str, Any]) -> dict[str, Any]:
        receipts = reply.get("receipts", {})
        collectors = {
            name: _collector_account(
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
                [records.verdict, *(str(account["verdict"]) for account in collectors.values())]
            ),
            "series": records.series.num_rows,
            "points": records.points.num_rows,
            "points_lost": records.lost,
            **usage,
            **full,
            "collectors": collectors,
        }


def _collector_account(
    kind: str, records: Recorded, name: str, receipt: Mapping[str, Any], failure: str
) -> dict[str, Any]:
    """Counts of one collector, and the completeness verdict of its polls and series.

    A receiver without points is complete, as the number of points due is unknown, and marked `empty`.
    """
    rows = records.series.filter(pc.equal(records.series["source"], name))
    polls = receipt.get("counted", {})
    due = int(polls.get("due", 0))
    successful = due - int(polls.get("failed", 0)) - int(polls.get("missed", 0))
    verdicts = rows["verdict"].to_pylist()
    if due:
        verdicts.append(verdict(max(0, successful), due, 0, None, 0))
    # duplicates and points without a value are no loss
    refused = receipt.get("refused", {})
    lost = sum(n for reason, n in refused.items() if reason not in NO_LOSS)
    messages = sum(receipt.get("refused_messages", {}).values())
    verdicts.append(of_refusals(int(receipt.get("stored", 0)), lost, messages))
    if failure:
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
    return account | empty | ({"trouble": failure} if failure else {})
