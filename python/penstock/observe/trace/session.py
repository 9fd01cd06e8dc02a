"""One traced command, from its control group to its bundle."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, PenstockError
from penstock.host.cgroup import create_run_cgroup
from penstock.host.clocks import clock_row
from penstock.host.journal import Journal
from penstock.host.launch import launch
from penstock.host.state import state_dir
from penstock.observe.trace.tracer import Tracer, TraceResult


@dataclass(frozen=True)
class Session:
    """How to trace: mode, ring size [bytes], planted loss, where the bundle goes, stdout kept free."""

    mode: str
    ring_bytes: int
    drop_every: int
    output: Path | None
    quiet: bool


@dataclass(frozen=True)
class Traced:
    """A traced command: what it was, how it ended, what was seen."""

    words: list[str]
    exit_status: int
    start_ns: int
    end_ns: int
    mode: str
    result: TraceResult
    bundle: Path | None

    @property
    def wall_s(self) -> float:
        """Seconds from start to end."""
        return (self.end_ns - self.start_ns) / 1e9


def trace_command(words: list[str], session: Session) -> Traced:
    """Runs a command in a control group of its own, armed before it begins.

    Raises PenstockError if tracing is not possible here.
    """
    journal = Journal()
    with contextlib.ExitStack() as stack:
        bundle = _new_bundle(session, words)
        tracer = stack.enter_context(_tracer(journal, session))
        group = stack.enter_context(create_run_cgroup("trace", None, journal))
        tracer.arm(group)
        clocks = [clock_row("start")]
        try:
            with _stdout(session, bundle) as sink:
                finished = launch(words, group, stdout=sink, stdin=None)
            clocks.append(clock_row("end"))
            result = tracer.disarm(bundle)
        except BaseException:
            if bundle is not None:
                bundle.discard()
            raise
    end = finished.end_ns
    made = _finish(bundle, result, words, finished.exit_status, finished.start_ns, end, clocks)
    return Traced(words, finished.exit_status, finished.start_ns, end, session.mode, result, made)


def trace_cgroup(directory: Path, seconds: float | None, session: Session) -> Traced:
    """Traces a control group that is there already, for `seconds` or until Ctrl-C."""
    try:
        number = directory.stat().st_ino
    except OSError as error:
        raise BadInput(f"--cgroup: {directory}: {error.strerror}") from error
    bundle = _new_bundle(session, [])
    with _tracer(Journal(), session) as tracer:
        tracer.arm(number)
        clocks = [clock_row("start")]
        start_ns = time.monotonic_ns()
        with contextlib.suppress(KeyboardInterrupt):
            if seconds is None:
                print("penstock: tracing until Ctrl-C", file=sys.stderr)
                threading.Event().wait()
            else:
                time.sleep(seconds)
        end_ns = time.monotonic_ns()
        clocks.append(clock_row("end"))
        result = tracer.disarm(bundle)
    made = _finish(bundle, result, [], 0, start_ns, end_ns, clocks)
    return Traced([], 0, start_ns, end_ns, session.mode, result, made)


def _tracer(journal: Journal, session: Session) -> Tracer:
    if os.geteuid() != 0:
        raise PenstockError(
            "tracing needs root (CAP_BPF, CAP_PERFMON); run it with sudo. Without it, put the files on an "
            "emulated disk (penstock disk up) and use penstock trace --disk MOUNT -- COMMAND"
        )
    return Tracer(
        journal,
        state_dir(),
        session.mode,
        ring_bytes=session.ring_bytes,
        drop_every=session.drop_every,
    )


@contextlib.contextmanager
def _stdout(session: Session, bundle: Bundle | None) -> Iterator[int | None]:
    """Where the command's stdout goes: with --json to stderr, with a bundle to the bundle as well."""
    ours = sys.stderr.fileno() if session.quiet else None
    if bundle is None:
        yield ours
        return
    onward = ours if ours is not None else sys.stdout.fileno()
    reads, writes = os.pipe()
    log = open(bundle.path / "stdout.txt", "wb")  # noqa: SIM115 - closed by the copier

    def copy() -> None:
        with log, os.fdopen(reads, "rb", 0) as source:
            while chunk := source.read(1 << 16):
                log.write(chunk)
                with contextlib.suppress(OSError):
                    os.write(onward, chunk)

    copier = threading.Thread(target=copy, daemon=True)
    copier.start()
    try:
        yield writes
    finally:
        os.close(writes)
        # a child left in the background may hold the pipe open: do not wait for it
        copier.join(timeout=2.0)


def _new_bundle(session: Session, words: list[str]) -> Bundle | None:
    if session.output is None:
        return None
    return Bundle.create(session.output, {"command": words, "run_id": "r001"})


def _finish(
    bundle: Bundle | None,
    result: TraceResult,
    words: list[str],
    exit_status: int,
    start_ns: int,
    end_ns: int,
    clocks: list[dict[str, int | str]],
) -> Path | None:
    if bundle is None:
        return None
    import pyarrow as pa

    for name, table in result.tables.items():
        bundle.write_table(name, table)
    bundle.write_table("clocks", pa.Table.from_pylist([row | _OWN_CLOCK for row in clocks]))
    phase = {"phase_id": "workload", "start_ns": start_ns, "end_ns": end_ns}
    bundle.write_table("phases", pa.Table.from_pylist([phase]))
    lost = result.receipt["lost"]
    facts: dict[str, Any] = {
        "state": "finished" if exit_status == 0 else "failed",
        "exit_status": exit_status,
        "losses": {"trace": lost},
        "reason": f"{lost} events lost" if lost else "",
        "receipts": {"trace": result.receipt},
        "responses": {"wall_s": {"value": (end_ns - start_ns) / 1e9, "unit": "s"}},
        "closing": result.closing,
        "times": {"start_ns": start_ns, "end_ns": end_ns},
    }
    bundle.manifest.update(facts)
    return bundle.finish()


_OWN_CLOCK: dict[str, int | str] = {"offset_ns": 0, "offset_bound_ns": 0}
