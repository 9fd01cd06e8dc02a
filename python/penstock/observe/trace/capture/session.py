"""One traced command, group or process tree, from scope to bundle.

Imports libraries only in functions: the daemon starts first, and loads the BPF programs meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup, hierarchies
from penstock.host.journal.announce import Announcement
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal, new_token
from penstock.host.nodes import namespaces
from penstock.host.processes.interrupts import Interrupts
from penstock.host.processes.launch import launch
from penstock.host.storage.fault_around import single_page_faults
from penstock.host.storage.mounts import unmount
from penstock.observe.observer import Watched
from penstock.observe.recorder import (
    OWN_CLOCK,
    Observation,
    Recorder,
    finish_bundle,
    new_bundle,
)
from penstock.observe.trace.capture.calibrate import calibrate
from penstock.observe.trace.capture.output import Output, PassThrough, copied
from penstock.observe.trace.capture.overhead import Paired
from penstock.observe.trace.capture.programs import start_programs
from penstock.observe.trace.capture.scope import Scope, place_of
from penstock.state import passable_runtime_dir, state_dir

if TYPE_CHECKING:
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.archive.bundle import Bundle
    from penstock.observe.trace.anonymize import Anonymizer
    from penstock.observe.trace.capture.observer import TraceObserver
    from penstock.observe.trace.capture.tracer import Tracer, TraceResult

MARKS_VARIABLE = "PENSTOCK_MARKS"
_NULL = os.makedev(1, 3)


@dataclass(frozen=True)
class Session:
    """Options of a trace: mode, ring size [bytes], planted loss, path of the bundle, stdout reserved, scope.

    The features in `require` must be available. With `calibrate` the command runs that number of times with
    and without tracing before; with a `key_file` all names are hashed. `live`: True shows progress during the
    run, None on a terminal only, False never. With `layers` the layers below the calls are traced, too; with
    `mmap_exact` no page is mapped around a fault. `hot` (hot.MEASURES) stores only the events of the most
    used files by it.
    """

    mode: str
    ring_bytes: int
    drop_every: int
    output: Path | None
    quiet: bool
    scope: Scope = field(default_factory=Scope)
    require: tuple[str, ...] = ()
    layers: bool = False
    mmap_exact: bool = False
    live: bool | None = None
    calibrate: int = 0
    key_file: Path | None = None
    hot: str | None = None


@dataclass(frozen=True)
class Traced:
    """A completed trace: its command if any, its end, the records.

    `interrupted` is the signal that ended it early; `outlived` counts the command's processes that were still
    running at its end and were killed. `unwritten` is the reason why a requested bundle is missing. The
    command of an `anonymous` trace is not disclosed. `run` is the bundle as opened for its page.
    """

    argv: list[str]
    exit_status: int
    start_ns: int
    end_ns: int
    mode: str
    result: TraceResult
    bundle: Path | None
    interrupted: str | None = None
    outlived: int = 0
    unwritten: str | None = None
    anonymous: bool = False
    run: TracedRun | None = field(default=None, repr=False, compare=False)

    @property
    def wall_s(self) -> float:
        """Seconds from start to end."""
        return (self.end_ns - self.start_ns) / 1e9

    def opened(self) -> TracedRun:
        """Its bundle, if any, else its tables in memory (without results that need every event)."""
        if self.run is not None:
            return self.run
        from penstock.analyse.traces.traced_run import TracedRun  # after the run: slow to import

        if self.bundle is not None:
            return TracedRun(self.bundle)
        times = {"start_ns": self.start_ns, "end_ns": self.end_ns}
        receipts = {"trace": self.result.receipt}
        return TracedRun(self.result.tables, {"receipts": receipts, "times": times})


def trace_command(argv: list[str], session: Session) -> Traced:
    """Run a command in a new control group, armed before it starts.

    Ctrl-C is passed to the command, a second one ends it; both yield a report. Raises PenstockError if
    tracing is not possible here.
    """
    journal = Journal()
    paired = _paired(argv, session, session.scope.for_programs())
    with new_bundle(journal, session.output, argv) as bundle:
        return _traced_command(argv, session, journal, bundle, paired)


def _traced_command(
    argv: list[str],
    session: Session,
    journal: Journal,
    bundle: Bundle | None,
    paired: Paired | None,
) -> Traced:
    scope = session.scope.for_programs()
    anonymizer = _anonymizer(session)
    with contextlib.ExitStack() as stack:
        observer = _observer(journal, session, scope, layers=session.layers)
        recorder = stack.enter_context(Recorder({"trace": observer}))
        group = stack.enter_context(create_run_cgroup("trace", None, journal))
        marks = stack.enter_context(_node_of_marks(journal))
        _await_programs(observer.tracer, session)
        if session.mmap_exact:
            stack.enter_context(single_page_faults(journal))
        observer.target = {"marks": _place(marks)}
        recorder.start(Watched(group, group), None)
        stack.enter_context(_announced(argv, session, recorder))
        with (
            _stdout(session, bundle, group) as output,
            _live(observer.tracer, session),
            Interrupts(group.pids) as interrupts,
        ):
            environment = {MARKS_VARIABLE: str(marks)}
            finished = launch(
                argv,
                group,
                stdout=output.sink,
                stdin=None,
                extra_env=environment,
                started=interrupts.begun,
            )
        outlived = len(group.pids())
        seen = recorder.finish(bundle, (finished.start_ns, finished.end_ns))
        result = observer.result
        if output.unwritten is not None:
            result.receipt.setdefault("unwritten", output.unwritten)
        if paired is not None:
            result.receipt["paired"] = paired.as_document()
        if anonymizer is not None:
            result = anonymizer.result(result)
    traced = Traced(
        argv,
        finished.exit_status,
        finished.start_ns,
        finished.end_ns,
        session.mode,
        result,
        None,
        interrupts.name,
        outlived,
        anonymous=anonymizer is not None,
    )
    return _finish(bundle, traced, session, seen)


def _paired(argv: list[str], session: Session, scope: dict[str, Any]) -> Paired | None:
    if not session.calibrate:
        return None

    def report(done: int, total: int) -> None:
        print(f"penstock: calibrating, run {done} of {total}", file=sys.stderr)

    def load(journal: Journal) -> TraceObserver:
        with contextlib.ExitStack() as stack:
            tracer = stack.enter_context(_tracer(journal, session, scope))
            _await_programs(tracer, session)
            from penstock.observe.trace.capture.observer import TraceObserver

            stack.pop_all()
        return TraceObserver.of(tracer)

    return calibrate(argv, load, session.calibrate, report)


def trace_running(seconds: float | None, session: Session) -> Traced:
    """Trace running processes: the scope's processes, its control group, or all users of its files.

    For `seconds`, until Ctrl-C, or until the processes or the group are gone.
    """
    journal = Journal()
    with new_bundle(journal, session.output, []) as bundle:
        return _traced_running(seconds, session, journal, bundle)


def _traced_running(
    seconds: float | None, session: Session, journal: Journal, bundle: Bundle | None
) -> Traced:
    scope = session.scope
    group = scope.group
    number = group.number if group is not None else _root_group()
    observers = () if group is not None or scope.processes else (os.getpid(),)
    target = {
        "processes": list(scope.processes),
        "level": group.level if group is not None else None,
    }
    anonymizer = _anonymizer(session)
    observer = _observer(journal, session, scope.for_programs(observers), target=target)
    with Recorder({"trace": observer}) as recorder:
        tracer = observer.tracer
        _await_programs(tracer, session)
        recorder.start(Watched(number, None), None)
        scope.check_processes()
        announcement = _announced([], session, recorder)
        start_ns = time.monotonic_ns()
        with announcement, Interrupts() as interrupts:
            if seconds is None:
                print("penstock: tracing until Ctrl-C", file=sys.stderr)
            until = None if seconds is None else time.monotonic() + seconds
            with _live(tracer, session):
                while not interrupts.wait(until) and (until is None or time.monotonic() < until):
                    if not tracer.alive:
                        break
                    if scope.processes and tracer.status()["processes"] == 0:
                        break
                    if group is not None and not group.directory.exists():
                        break
        end_ns = time.monotonic_ns()
        seen = recorder.finish(bundle, (start_ns, end_ns))
        result = observer.result
        if anonymizer is not None:
            result = anonymizer.result(result)
    traced = Traced([], 0, start_ns, end_ns, session.mode, result, None)
    return _finish(bundle, traced, session, seen)


def _root_group() -> int:
    unified = hierarchies().unified
    if unified is None:
        raise PenstockError(
            "tracing needs the unified control-group hierarchy (mount -t cgroup2), by which the "
            "BPF programs identify processes"
        )
    return unified.stat().st_ino


def _announced(argv: list[str], session: Session, recorder: Recorder) -> Announcement:
    """Announce the trace to live pages; an anonymous one without command and names."""
    anonymous = session.key_file is not None
    name = Path(argv[0]).name if argv and not anonymous else "what runs already"
    return Announcement(
        "trace",
        "a command" if anonymous else name,
        anonymous=anonymous,
        sources=recorder.live(),
    )


def _live(tracer: Tracer, session: Session) -> contextlib.AbstractContextManager[None]:
    from penstock.observe.trace.show.live import live_summary

    named = session.key_file is None
    return live_summary(tracer.beside(), session.live, quiet=session.quiet, named=named)


def _place(path: Path) -> dict[str, int]:
    device, inode = place_of(path)
    return {"device": device, "inode": inode}


@contextlib.contextmanager
def _node_of_marks(journal: Journal) -> Iterator[Path]:
    """A null device that anyone may write to: marks are observed at write(2) and stored nowhere.

    In a separate file system, because that of the runtime directory may forbid devices.
    """
    place = make_directory(passable_runtime_dir() / f"marks-{new_token()}", journal, mode=0o711)
    entry = journal.plan("mount", place.target)
    try:
        yield _null_device(Path(place.target), entry.token)
    finally:
        if os.path.ismount(place.target):
            unmount(place.target)
        journal.undone(entry)
        remove_directory(place, journal)


def _null_device(place: Path, token: str) -> Path:
    path = place / "marks"
    try:
        flags = namespaces.MS_NOSUID | namespaces.MS_NOEXEC
        options = "size=4k,nr_inodes=2,mode=711"
        namespaces.mount(f"penstock:{token}", str(place), "tmpfs", flags, options)
        os.mknod(path, stat.S_IFCHR | 0o600, _NULL)
        path.chmod(0o222)
    except OSError as error:
        raise PenstockError(f"$PENSTOCK_MARKS: {error}") from error
    return path


def _observer(
    journal: Journal,
    session: Session,
    scope: dict[str, Any],
    *,
    layers: bool = False,
    target: dict[str, Any] | None = None,
) -> TraceObserver:
    """Observer whose programs are being loaded: the tracer, and with `layers` those below the calls."""
    with contextlib.ExitStack() as stack:
        tracer = stack.enter_context(_tracer(journal, session, scope))
        from penstock.observe.trace.capture.observer import TraceObserver, layers_below

        below = layers_below(journal) if layers else None
        stack.pop_all()
    return TraceObserver.of(tracer, below, target=target, salvage=True)


def _anonymizer(session: Session) -> Anonymizer | None:
    if session.key_file is None:
        return None
    from penstock.observe.trace.anonymize import Anonymizer  # DuckDB

    return Anonymizer(session.key_file)


def _tracer(journal: Journal, session: Session, scope: dict[str, Any]) -> Tracer:
    """Tracer whose programs are being loaded, see `_await_programs`."""
    if os.geteuid() != 0:
        raise PenstockError(
            "tracing needs root (CAP_BPF, CAP_PERFMON); run it with sudo. Without it, put the files on an "
            "emulated disk (penstock disk up) and use penstock trace --disk MOUNT -- COMMAND"
        )
    home = state_dir()
    with contextlib.ExitStack() as stack:
        programs = stack.enter_context(
            start_programs(
                journal,
                session.mode,
                ring_bytes=session.ring_bytes,
                drop_every=session.drop_every,
                scope=scope,
                require=session.require,
                hot={"by": session.hot} if session.hot else None,
            )
        )
        from penstock.observe.trace.capture.tracer import Tracer

        tracer = Tracer(journal, home, session.mode, programs=programs, cost_later=True)
        stack.pop_all()
    return tracer


def _await_programs(tracer: Tracer, session: Session) -> None:
    """Wait until the programs are loaded. Raises BadInput for a required feature that the kernel lacks."""
    try:
        tracer.await_programs()
    except PenstockError as error:
        if session.require and any(
            text in str(error) for text in ("no feature", "lets us see no", "does not take")
        ):
            raise BadInput(f"--require: {error}") from error
        raise


@contextlib.contextmanager
def _stdout(
    session: Session, bundle: Bundle | None, group: RunCgroup
) -> Iterator[Output | PassThrough]:
    """Target of the command's stdout: with --json stderr, with a bundle the bundle as well."""
    ours = sys.stderr.fileno() if session.quiet else None
    if bundle is None:
        yield PassThrough(ours)
        return
    onward = ours if ours is not None else sys.stdout.fileno()
    with copied(bundle.path / "stdout.txt", onward, lambda: bool(group.pids())) as output:
        yield output


def _finish(
    bundle: Bundle | None,
    traced: Traced,
    session: Session,
    seen: Observation,
) -> Traced:
    if bundle is None:
        return traced
    unwritten = traced.result.receipt.get("unwritten")
    try:
        if unwritten is None:
            return _written(bundle, traced, session, seen)
    except OSError as error:
        unwritten = f"{error.filename or bundle.path}: {error.strerror or error}"
    bundle.discard()
    return dataclasses.replace(traced, unwritten=unwritten)


def _written(bundle: Bundle, traced: Traced, session: Session, seen: Observation) -> Traced:
    """The trace with its bundle finished."""
    from penstock.observe.trace.capture.announcements import phases_of
    from penstock.observe.trace.capture.salvage import what_is_missing, what_layers_miss

    result, run = traced.result, (traced.start_ns, traced.end_ns)
    lost = result.receipt["lost"]
    missing = what_is_missing(result.receipt)
    missing += " " + what_layers_miss(result.receipt.get("layers") or {})
    facts: dict[str, Any] = {
        "interrupted": traced.interrupted,
        "outlived": traced.outlived,
        "filters": session.scope.options,
        "losses": {"trace": lost} | _lost_below(result.receipt),
        "reason": "; ".join(
            filter(None, [f"{lost} events lost" if lost else "", missing.strip(" .")])
        ),
        "receipts": {"trace": result.receipt},
        "closing": result.closing,
    }
    if session.key_file is not None:
        facts |= {"command": [], "filters": [], "anonymous": True}
        (bundle.path / "stdout.txt").unlink(missing_ok=True)
    clocks = [row | OWN_CLOCK for row in seen.clocks]
    observation = dataclasses.replace(seen, observed=result.tables, clocks=clocks)
    phases = phases_of(result.marks, *run)
    finished = finish_bundle(bundle, observation, phases, traced.exit_status, run, facts)
    return dataclasses.replace(traced, bundle=finished, run=_with_page(finished))


def _lost_below(receipt: Mapping[str, Any]) -> dict[str, int]:
    layers = receipt.get("layers")
    return {} if layers is None else {"layers": int(layers["lost"])}


def _with_page(bundle: Path) -> TracedRun | None:
    """Open the bundle and write its page; None if that fails, which does not affect the bundle."""
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.report.trace.page import write_trace_report

    try:
        run = TracedRun(bundle)
        write_trace_report(run)
        return run
    except (PenstockError, OSError) as error:
        print(
            f"penstock: no page: {error}; `penstock report {bundle}` tries again", file=sys.stderr
        )
        return None
