"""Collectors of a server's configuration, which run for its experiments.

    gathering = Gathering({"disk": {"type": "scrape", "targets": [...]}}, store)
    gathering.begun(experiment)    # after it began: receivers listen when this returns
    gathering.look()               # now and then
    receipts = gathering.end(experiment)      # before it ends
    gathering.close()

Collectors that poll (a scraper, SNMP) are started for each experiment, so that the first poll is at its
start. Collectors that listen on a port run once, from the first experiment to the last; each experiment
stores the points that are received while it runs. The setting `experiments` of a collector is a pattern of
names; `begun` selects experiments that were started through this server (`here`, the default) or all
(`anywhere`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.parts.monitoring.collectors.collector import Receipt
from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.collectors.settings import BEGUN, checked_collectors, own_settings
from penstock.parts.monitoring.collectors.toggle import Part, joined, write_switch
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import (
    Accepted,
    Account,
    Batch,
    Closed,
    Event,
    Sink,
    points,
    series_of,
)
from penstock.parts.monitoring.experiments.spool import Holding, Spool
from penstock.plugins import COLLECTORS

#: names of observers, which are keys of receipts
_OBSERVERS = ("monitor", "trace", "layers")
#: longer than a receiver buffers points before it writes them [s]
_GATHERED_S = 0.3
#: longest wait for the receivers at the start of an experiment [s]
READY_S = 5.0


class Fan:
    """A sink that writes batches to several experiments, numbered for each.

    An experiment gets accounts only of series that have points in it: nothing was due of a series whose
    sender stopped before the experiment began.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._sinks: dict[Path, Sink] = {}
        self._lock = threading.Lock()
        #: last account by series, and series of earlier accounts that have no point in an experiment yet
        self._accounts: dict[tuple[str, str], Account] = {}
        self._unseen: dict[Path, set[tuple[str, str]]] = {}
        #: source and number of a batch that not all experiments have stored, and the experiments that have
        self._half: tuple[str, int, dict[Path, Accepted]] = ("", -1, {})

    @property
    def places(self) -> set[Path]:
        """Paths of the experiments that batches are written to."""
        return set(self._sinks)

    def add(self, path: Path, sink: Sink) -> None:
        """Write further batches to an experiment."""
        with self._lock:
            if not self._sinks:
                self._accounts.clear()
            if path not in self._sinks:
                self._sinks[path], self._unseen[path] = sink, set(self._accounts)

    def remove(self, path: Path) -> None:
        """Write no further batches to an experiment."""
        with self._lock:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        self._sinks.pop(path, None)
        self._unseen.pop(path, None)

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`, to all experiments that run. Raises Closed if none does."""
        with self._lock:
            source, last, accepted = self._half
            if (source, last) != (batch.source, batch.number):
                accepted = {}
            self._half = (batch.source, batch.number, accepted)
            for path, sink in list(self._sinks.items()):
                if path in accepted:
                    continue
                try:
                    if batch.source == self.source:
                        accepted[path] = self._write_own(path, sink, batch)
                    else:
                        accepted[path] = sink.write(batch)
                except Closed:
                    self._remove(path)
            self._half = ("", -1, {})
            if not accepted:
                raise Closed(f"{self.source}: no experiment runs")
            return Accepted(batch.points.num_rows, all(d.duplicate for d in accepted.values()))

    def _write_own(self, path: Path, sink: Sink, batch: Batch) -> Accepted:
        """Write a batch of the collector to one experiment."""
        self._accounts |= {(a.metric, a.labels): a for a in batch.accounts}
        unseen, accounts = self._unseen[path], batch.accounts
        if unseen:
            first = unseen.intersection(series_of(batch.points)[0])
            unseen = unseen - first
            own = [a for a in accounts if (a.metric, a.labels) not in unseen | first]
            accounts = [*own, *(self._accounts[name] for name in sorted(first))]
        number = sink.next_number(self.source)
        accepted = sink.write(replace(batch, number=number, accounts=accounts))
        self._unseen[path] = unseen
        return accepted

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`; batches of the collector itself are numbered by each experiment."""
        with self._lock:
            numbers = [sink.next_number(source) for sink in self._sinks.values()]
        return 0 if source == self.source else max(numbers, default=0)


class Gathering:
    """Starts and stops the collectors of a configuration as experiments start and end.

    Threads may share it. `report` is called with each error message, once.
    """

    def __init__(
        self,
        settings: Mapping[str, Mapping[str, Any]],
        store: Callable[[], Experiments],
        report: Callable[[str], None] = lambda _: None,
        server: str = "",
    ) -> None:
        """`server`: identity of this server in the experiments started through it (`Experiments.start`)."""
        self._settings = checked_collectors(settings)
        self.server = server
        self._store = store
        self._report = report
        self._reported: set[str] = set()
        self._lock = threading.RLock()
        self._polling: dict[tuple[Path, str], Collecting] = {}
        self._fans: dict[str, Fan] = {}
        self._listening: dict[str, Collecting] = {}
        #: errors of receivers that do not listen
        self._failed: dict[str, str] = {}
        #: by experiment and collector: exclusive use of the source
        self._holdings: dict[tuple[Path, str], Holding] = {}
        #: receipt and processor time of a shared collector at the start of an experiment
        self._before: dict[tuple[Path, str], tuple[Receipt, int]] = {}
        #: parts since the last switch-on; collectors that are off; receipts of previous parts
        self._parts: dict[tuple[Path, str], Part] = {}
        self._off: set[tuple[Path, str]] = set()
        self._receipts: dict[tuple[Path, str], dict[str, Any]] = {}
        #: running experiments: server that each was started through; experiments that are ending
        self._through: dict[Path, str] = {}
        self._ending: set[Path] = set()
        self._closed = False
        #: experiments whose receivers were started, or failed to
        self._ready: set[Path] = set()
        self._changed = threading.Condition()
        self._worker = ThreadPoolExecutor(1, "gathering")

    @property
    def configured(self) -> bool:
        """True if there are collectors."""
        return bool(self._settings)

    def begun(self, experiment: Experiment, patience_s: float = READY_S) -> list[str]:
        """After the start of an experiment: wait at most `patience_s` until its receivers listen.

        Returns messages about those that do not. Does not wait for collectors that poll.
        """
        if not self._settings or self._closed:
            return []
        self.soon()
        path = experiment.path
        with self._changed:
            self._changed.wait_for(lambda: path in self._ready or self._closed, patience_s)
        store, silent = self._store(), []
        for name, settings in self._settings.items():
            fan = self._fans.get(name)
            listens = fan is not None and path in fan.places and name in self._listening
            if (
                _listens(name, settings)
                and not listens
                and self._is_for(store, experiment, settings)
            ):
                silent.append(self._failed.get(name, f"{name}: it does not listen yet"))
        return silent

    def soon(self) -> None:
        """Call `look` in a thread."""
        if self._settings and not self._closed:
            with contextlib.suppress(RuntimeError):  # the executor was shut down
                self._worker.submit(self._try)

    def _try(self) -> None:
        try:
            self.look()
        except (PenstockError, OSError) as error:
            self._report_once(str(error))

    def look(self) -> None:
        """Start collectors for new experiments, and stop those of ended ones."""
        if not self._settings:
            return
        with self._lock:
            if self._closed:
                return
            store = self._store()
            running = {
                e.path: e
                for e in store.listed(None, state="running")
                if e.by_hand and e.live.is_dir()
            }
            for path in {p for p, _ in self._holdings} - running.keys():
                self._end(path)
            self._ending &= running.keys()
            self._ready &= running.keys()
            self._through = {p: t for p, t in self._through.items() if p in running}
            active = [e for p, e in running.items() if p not in self._ending]
            # receivers first, as clients push at once
            for listening in (True, False):
                for experiment in active:
                    for name, settings in self._settings.items():
                        if _listens(name, settings) == listening and self._is_for(
                            store, experiment, settings
                        ):
                            self._begin(store, experiment, name, settings)
                if listening:
                    with self._changed:
                        self._ready |= {e.path for e in active}
                        self._changed.notify_all()

    def _is_for(
        self, store: Experiments, experiment: Experiment, settings: Mapping[str, Any]
    ) -> bool:
        if not fnmatch.fnmatchcase(experiment.name, settings.get("experiments", "*")):
            return False
        if settings.get("begun", BEGUN[0]) != BEGUN[0]:
            return True
        if experiment.path not in self._through:
            self._through[experiment.path] = store.begun_through(experiment)
        return self._through[experiment.path] == self.server

    def end(self, experiment: Experiment) -> dict[str, Any]:
        """Stop collecting for an experiment, before it is stopped; returns receipts by collector.

        Call `go_on` if the experiment is not stopped after all.
        """
        shared = any(experiment.path in f.places and len(f.places) > 1 for f in self._fans.values())
        if shared:
            time.sleep(_GATHERED_S)
        with self._lock:
            self._ending.add(experiment.path)
            return self._end(experiment.path)

    def go_on(self, experiment: Experiment) -> None:
        """After `end`, if the experiment was not stopped: restart its collectors."""
        with self._lock:
            self._ending.discard(experiment.path)
        self.soon()

    def close(self) -> None:
        """Stop all collectors; the experiments go on."""
        with self._lock:
            self._closed = True
            with self._changed:
                self._changed.notify_all()
            for name in list(self._listening):
                self._stop_listening(name)
            for path in {p for p, _ in self._holdings}:
                self._end(path)
        self._worker.shutdown(wait=False)

    def _begin(
        self, store: Experiments, experiment: Experiment, name: str, settings: Mapping[str, Any]
    ) -> None:
        path = experiment.path
        kind = COLLECTORS.load(str(settings.get("type", name)))
        try:
            if (path, name) not in self._holdings:
                self._holdings[path, name] = store.sink(experiment).hold(name)
            sink = self._holdings[path, name]
            if not self._is_on(path, name, store.sink(experiment), sink):
                return
            if not getattr(kind, "listens", False):
                if (path, name) not in self._polling:
                    part = self._parts[path, name] = Part(name, sink, self._parts.get((path, name)))
                    collecting = Collecting(collectors_of({name: own_settings(settings)}), part)
                    self._polling[path, name] = collecting.start()
                return
            fan = self._fans.setdefault(name, Fan(name))
            if path not in fan.places:
                self._write_pending(name)
                if sink.next_number(name) == 0:
                    sink.write(_starting(name, experiment.start_ns))
                fan.add(path, sink)
            if name not in self._listening:
                collecting = Collecting(collectors_of({name: own_settings(settings)}), fan)
                self._listening[name] = collecting.start()
                self._failed.pop(name, None)
            if (path, name) not in self._before:
                collecting = self._listening[name]
                receipt = collecting.receipt_of(name) or Receipt(name)
                self._before[path, name] = receipt.copy(), collecting.cpu_ns()
        except Closed:
            # the experiment has ended
            self._free(path, name)
        except PenstockError as error:
            self._failed[name] = f"{name}: {error}"
            self._report_once(f"{name}: {error}")
            if name in self._fans:
                self._fans[name].remove(path)
            self._free(path, name)

    def _write_pending(self, name: str) -> None:
        """Store refusals of a shared collector, before another experiment gets its batches."""
        if self._fans[name].places and name in self._listening:
            intake = getattr(self._listening[name].collectors[name], "intake", None)
            if intake is not None:
                with contextlib.suppress(PenstockError):
                    intake.write_pending()

    def _is_on(self, path: Path, name: str, spool: Spool, sink: Sink) -> bool:
        """True if a collector is switched on for an experiment; stops one that was switched off."""
        state, at_ns = spool.switched(name)
        if state == "off" and (path, name) not in self._off:
            if (path, name) in self._parts:
                self._parts[path, name].goes_on = True
            self._pause(path, name)
            write_switch(name, sink, "disabled", at_ns)
            self._off.add((path, name))
        elif state == "on":
            write_switch(name, sink, "enabled", time.time_ns())
            spool.forget_switch(name)
            self._off.discard((path, name))
        return state != "off"

    def _pause(self, path: Path, name: str) -> None:
        """Stop a collector for an experiment, and add its receipt to those of its previous parts."""
        receipt: dict[str, Any] | None = None
        collecting = self._polling.pop((path, name), None)
        if collecting is not None:
            receipt = self._stop(collecting, name)
        fan = self._fans.get(name)
        if fan is not None and path in fan.places:
            before, cpu_ns = self._before.pop((path, name), (Receipt(name), 0))
            shared = self._listening.get(name)
            if fan.places == {path}:
                receipt = self._stop_listening(name, before, cpu_ns)
            elif shared is not None:
                receipt = self._receipt_of_part(shared, name, before, cpu_ns)
            fan.remove(path)
        if receipt is not None:
            self._receipts[path, name] = joined(self._receipts.get((path, name)), receipt)

    def _free(self, path: Path, name: str) -> None:
        holding = self._holdings.pop((path, name), None)
        if holding is not None:
            holding.release()

    def _end(self, path: Path) -> dict[str, Any]:
        receipts: dict[str, Any] = {}
        for name in self._settings:
            self._pause(path, name)
            receipts[name] = self._receipts.pop((path, name), None)
            self._parts.pop((path, name), None)
            self._off.discard((path, name))
        for key in [k for k in self._holdings if k[0] == path]:
            self._free(*key)
        return {f"collector {n}" if n in _OBSERVERS else n: r for n, r in receipts.items() if r}

    def _stop_listening(
        self, name: str, before: Receipt | None = None, cpu_ns: int = 0
    ) -> dict[str, Any] | None:
        collecting = self._listening.pop(name, None)
        return None if collecting is None else self._stop(collecting, name, before, cpu_ns)

    def _receipt_of_part(
        self, collecting: Collecting, name: str, before: Receipt, cpu_ns: int
    ) -> dict[str, Any] | None:
        """Receipt of a shared collector for an experiment that ends."""
        intake = getattr(collecting.collectors[name], "intake", None)
        if intake is None:
            return None
        try:
            intake.write_pending()
        except PenstockError as error:
            self._report_once(f"{name}: {error}")
        document: dict[str, Any] = intake.receipt.document(before)
        return document | {"cpu_ns": collecting.cpu_ns() - cpu_ns}

    def _stop(
        self, collecting: Collecting, name: str, before: Receipt | None = None, cpu_ns: int = 0
    ) -> dict[str, Any] | None:
        try:
            collecting.stop()
        except Closed:
            pass  # the experiment has ended
        except PenstockError as error:
            self._report_once(f"{name}: {error}")
        receipt = collecting.receipt_of(name)
        if receipt is None:
            return None
        if errors := _errors(receipt):
            self._report(f"{name}: {receipt.stored} points; {errors}")
        document: dict[str, Any] = receipt.document(before)
        return document | {"cpu_ns": collecting.cpu_ns() - cpu_ns}

    def _report_once(self, message: str) -> None:
        if message not in self._reported and len(self._reported) < 1000:
            self._reported.add(message)
            self._report(message)


def _listens(name: str, settings: Mapping[str, Any]) -> bool:
    return bool(getattr(COLLECTORS.load(str(settings.get("type", name))), "listens", False))


def _errors(receipt: Receipt) -> str:
    """Errors of a collector in one line, or ""."""
    counted = {k: n for k, n in receipt.counted.items() if k in ("missed", "failed", "late") and n}
    parts = [f"{n} {reason}" for reason, n in [*counted.items(), *receipt.refused.items()]]
    parts += [f"{n} messages {reason}" for reason, n in receipt.refused_messages.items()]
    return ", ".join(parts) + (f" ({receipt.errors[0]})" if parts and receipt.errors else "")


def _starting(name: str, start_ns: int) -> Batch:
    """Batch with the event that a receiver starts to listen for an experiment now."""
    event = Event("starting", start_ns, time.time_ns(), detail="the collector starting")
    return Batch(name, 0, points(metric=[]), events=[event])
