"""The tracer daemon, armed around a run."""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.processes.daemon import Daemon, connect
from penstock.observe.trace import MODES
from penstock.observe.trace.capture.announcements import (
    Mark,
    announcements,
    marks_of,
    phases_of,
    thread_starts,
    threads_table,
)
from penstock.observe.trace.capture.counts import closing_of_counts, read_counts
from penstock.observe.trace.capture.events import SpoolReader, files_table, keep_events
from penstock.observe.trace.capture.hot_set import counter_totals, judge_counters, read_decisions
from penstock.observe.trace.capture.names import read_names
from penstock.observe.trace.capture.overhead import Cost, cost_of, estimate, recorded_cost
from penstock.observe.trace.capture.programs import Settings, start_programs
from penstock.observe.trace.capture.salvage import salvaged_receipt, what_is_missing
from penstock.observe.trace.layers.coverage import mapped_before, mapped_table
from penstock.observe.trace.show.closing_sentence import closing_sentence, sizes_of
from penstock.observe.trace.show.live import Source
from penstock.observe.trace.verdicts.patterns import judge_spool, patterns_table, verdicts

_native: Any = importlib.import_module("penstock._native")

#: longest time from hanging up to the end of a daemon [s]
_ENDS_WITHIN_S = 2.0
#: kinds of hook, preferred ones first; `auto` uses the first that the kernel permits
HOOKS = ("auto", "fentry", "tp_btf", "raw_tp", "tracepoint")


@dataclass(frozen=True)
class TraceResult:
    """Result of tracing one run: tables `files`, `patterns`, in memory; `io_events` in a file; the receipt.

    `verdicts` are the rows of `patterns`, one per file, direction and basis; `closing` is the sentence.
    `events` is the number of `io_events` and `events_path` their file: None in mode pattern, or without a
    bundle. `marks` are the lines that the program wrote to $PENSTOCK_MARKS, `flushes` rows of direction
    `sync` in addition to the verdicts.
    """

    tables: dict[str, pa.Table]
    receipt: dict[str, Any]
    verdicts: list[dict[str, Any]] = field(repr=False)
    closing: str
    events: int = 0
    events_path: Path | None = None
    marks: list[Mark] = field(default_factory=list)
    flushes: list[dict[str, Any]] = field(default_factory=list, repr=False)
    others_ns: int = 0


class Tracer:
    """BPF programs, loaded once; armed and disarmed for each run.

    `mode` is `trace` (every call is recorded), `pattern` (counters of steps and sizes) or `count` (calls and
    bytes). With `cost_later` the overhead of tracing on this host, if not yet recorded, is measured after the
    only recording instead of before. `programs` is a daemon of `start_programs` with its settings; then call
    `await_programs` before `arm`. Raises PenstockError if the kernel refuses.
    """

    def __init__(
        self,
        journal: Journal,
        state_dir: Path,
        mode: str = "trace",
        *,
        cost_later: bool = False,
        programs: Daemon | None = None,
        **settings: Unpack[Settings],
    ):
        if mode not in MODES:
            raise ValueError(f"no tracing mode {mode}: it is one of {', '.join(MODES)}")
        self.mode = mode
        self._spool = Path(state_dir) / "spool"
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state_dir = Path(state_dir)
        self._cost = None if cost_later else cost_of(mode, journal, self._state_dir)
        self._journal = journal
        self._daemon = programs or start_programs(journal, mode, **settings)
        if programs is None:
            try:
                self.await_programs()
            except BaseException:
                self._daemon.stop()
                raise
        self._started_ns = 0
        self._group = 0
        self._cgroup: RunCgroup | None = None
        self._start_cpu_ns: int | None = None
        self._where: Entry | None = None
        self._disks: Mapping[tuple[int, int], str] = {}

    @property
    def pid(self) -> int:
        return self._daemon.pid

    @property
    def alive(self) -> bool:
        """True if the daemon is running."""
        return self._daemon.alive

    def await_programs(self) -> None:
        """Wait until the programs are loaded. Raises PenstockError if the kernel refuses."""
        self._daemon.await_ready()

    def arm(
        self,
        cgroup: RunCgroup | int,
        out_dir: Path | None = None,
        disks: Mapping[tuple[int, int], str] | None = None,
        target: Mapping[str, Any] | None = None,
    ) -> None:
        """Start recording the group's members, and those of child groups.

        `disks` maps the device (major, minor) of an emulated disk's mount to its disk_id. The spool is in
        `out_dir` (default: the state directory) until `disarm`. `target` is specific to this recording:
        `processes` (roots of trees), `level` (of a v1 group), `marks` (device, inode of the file of marks).
        """
        number = cgroup if isinstance(cgroup, int) else cgroup.cgroup_id
        if number == 0:
            raise PenstockError(
                "tracing needs the unified control-group hierarchy (mount -t cgroup2), "
                "by which the BPF programs identify the processes of the run"
            )
        base = Path(out_dir) if out_dir is not None else self._spool
        base.mkdir(parents=True, exist_ok=True)
        self._forget()
        self._where = make_directory(base / f"trace-{new_token()}", self._journal)
        self._disks = dict(disks or {})
        self._daemon.call(
            "arm",
            cgroup_id=number,
            spool=str(self._spooled("events")),
            files=str(self._spooled("files")),
            target=dict(target or {}),
        )
        self._started_ns, self._group = time.monotonic_ns(), number
        self._cgroup = None if isinstance(cgroup, int) else cgroup
        self._start_cpu_ns = self._cpu_ns()

    def status(self) -> dict[str, Any]:
        """Counts so far: seen, kept, filtered, lost, spooled."""
        return self._daemon.call("status")

    def disarm(
        self,
        bundle: Bundle | None = None,
        phases: Mapping[str, tuple[int, int]] | None = None,
        *,
        run: tuple[int, int] | None = None,
        salvage: bool = False,
    ) -> TraceResult:
        """Stop recording; returns tables, verdicts and the receipt.

        The events go to `bundle` as table `io_events`, part by part, in constant memory. `phases` (name:
        first and last time [ns]) are evaluated separately, too; default: those marked. `run`: start and end
        of the program [ns], the base of shares; default: since `arm`. With `salvage`, the spool of a dead
        daemon is used (receipt: `incomplete`), and a bundle that cannot be written is omitted (receipt:
        `unwritten`).
        """
        if self._where is None:
            raise PenstockError("the tracer is not armed")
        spool, names = self._spooled("events"), self._spooled("files")
        receipt = self._disarmed(spool, salvage)
        wall_ns = time.monotonic_ns() - self._started_ns
        cpu_ns = self._cpu_ns()
        if cpu_ns is not None and self._start_cpu_ns is not None:
            cpu_ns -= self._start_cpu_ns
        receipt["run_ns"] = run[1] - run[0] if run else wall_ns
        sources = spool, names, wall_ns, cpu_ns
        try:
            with _without_collector():
                try:
                    return self._result(receipt, *sources, bundle, dict(phases or {}))
                except OSError as error:
                    if bundle is None or not salvage:
                        raise
                    receipt["unwritten"] = f"{error.filename or bundle.path}: {error.strerror}"
                    return self._result(receipt, *sources, None, dict(phases or {}))
        finally:
            self._forget()

    def _disarmed(self, spool: Path, salvage: bool) -> dict[str, Any]:
        try:
            return self._daemon.call("disarm")
        except PenstockError:
            if not salvage or not self._daemon.gone(_ENDS_WITHIN_S):
                raise
            reason = (
                "the tracer ended before the trace did; what it had not written yet, and what came "
            )
            reason += "after, is missing"
            return salvaged_receipt(spool, self.mode, self._group, self._started_ns, reason)

    def _cost_now(self) -> Cost:
        """Overhead of tracing; measured after unloading the programs, if it was deferred."""
        if self._cost is None:
            cost = recorded_cost(self.mode, self._state_dir)
            if cost is None:
                self._daemon.stop()
                cost = cost_of(self.mode, self._journal, self._state_dir, skippable=True)
            self._cost = cost
        return self._cost

    def stop(self) -> None:
        """End the daemon, and remove loaded programs and unread spools."""
        try:
            self._daemon.stop()
        finally:
            self._forget()

    def beside(self) -> Source:
        """Live source of the recording, for another thread."""
        daemon = connect("tracer", self.pid, self._daemon.socket_path)
        events, files, sample = map(self._spooled, ("events", "files", "sample"))
        return Source(daemon, self.mode, events, files, sample)

    def _cpu_ns(self) -> int | None:
        return None if self._cgroup is None else self._cgroup.cpu_ns()

    def _spooled(self, name: str) -> Path:
        if self._where is None:
            raise PenstockError("the tracer is not armed")
        return Path(self._where.target) / name

    def _forget(self) -> None:
        if self._where is not None:
            where, self._where = self._where, None
            with contextlib.suppress(OSError, PenstockError):
                remove_directory(where, self._journal)

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _result(
        self,
        receipt: dict[str, Any],
        spool: Path,
        names_path: Path,
        wall_ns: int,
        cpu_ns: int | None,
        bundle: Bundle | None,
        phases: dict[str, tuple[int, int]],
    ) -> TraceResult:
        records = announcements(names_path)
        files = files_table(records, self._disks)
        names = read_names(records)
        highest = pc.max(files["file_id"]).as_py() or 0
        not_opened = names.not_opened(highest + receipt["nameless_files"] + 1)
        files = pa.concat_tables([files, not_opened.select(files.column_names).cast(files.schema)])
        paths = dict(
            zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True)
        )
        marks = marks_of(records)
        if not phases:
            by_marks = phases_of(marks, self._started_ns, self._started_ns + wall_ns)[1:]
            phases = {row["phase_id"]: (row["start_ns"], row["end_ns"]) for row in by_marks}
        tables = {
            "files": files,
            "file_names": names.table(),
            "operations": names.sums(),
            "threads": threads_table(records),
        }
        events, events_path = 0, None
        starts = thread_starts(tables["threads"])
        if self.mode == "trace":
            judge = _native.Judge(list(phases.values()), threads=starts)
            cgroups = {int(slot): number for slot, number in receipt["cgroups"].items()}
            reader = SpoolReader(spool, cgroups, judge, names.numbers())
            events = reader.events
            events_path = keep_events(reader, bundle)
            if events_path is not None:
                lost = receipt["presences_lost"]
                tables["mapped"] = mapped_table(names_path, events_path, lost)
            rows = verdicts(judge)
            if receipt["hot"]:
                counted, tables["epochs"] = judge_counters(spool, starts)
                rows += counted
                tables["decisions"] = read_decisions(spool)
                receipt["hot"] |= counter_totals(rows)
        elif self.mode == "count":
            rows = read_counts(spool)
        else:
            rows, tables["epochs"] = judge_spool(spool, starts)
        tables["patterns"] = patterns_table(rows, paths, list(phases))
        rows = [row for row in rows if row["phase"] is None]
        receipt = dict(receipt) | estimate(receipt, self._cost_now(), wall_ns, cpu_ns)
        if self.mode == "count":
            closing = closing_of_counts(rows, paths, receipt["lost"])
        else:
            sums = [*rows, *names.flushes()]
            before = mapped_before(names_path)
            receipt["already_mapped_bytes"] = {str(n): nbytes for n, nbytes in before.items()}
            closing = closing_sentence(
                sums,
                paths,
                receipt["run_ns"],
                receipt["lost"],
                others_ns=names.others_ns(),
                before=before,
                sizes=sizes_of(files),
            )
        closing = " ".join(filter(None, [closing, what_is_missing(receipt)]))
        rest = events, events_path, marks, names.flushes(), names.others_ns()
        return TraceResult(tables, receipt, rows, closing, *rest)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable Python's cycle collector, which would traverse the rows of 100,000 files repeatedly."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
