"""Run all studies or all benchmarks unattended, one after the other, and print a table of their results.

    tools/measure.py studies [--quick] [--record] [NAME ...]
    tools/measure.py bench [--record] [NAME ...]     with --record, the studies follow

A failure does not end the series. Programs that ended at the same commit with the same options are not
repeated (`--again` repeats them), so an interrupted series continues where it was. At another commit
everything is measured again; earlier results are renamed to NAME.COMMIT. `--quick` takes less than an hour: a
study that takes too long is interrupted, and one that cannot begin in time is listed as *not run*.

The output of each study is in out/measure/NAME.log. Exit status: 0 if every claim and goal is met, 3 if one
is not met or not measured, 1 if a study failed, was interrupted or did not run. A study without claims is
*measured*.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
STUDIES, BENCH = ROOT / "studies", ROOT / "bench"
#: time limits of `--quick`: the series, and one study [s]
QUICK_TOTAL_S, QUICK_EACH_S = 3300.0, 600.0
#: time that an interrupted study has to undo its changes to the host [s]
GRACE_S = 60.0
#: modules that benchmarks share
NO_BENCH = ("record", "measurements")
SUMMARY = re.compile(r"^[\w-]+: (\d+ claims: .+)$", re.MULTILINE)
MET, NOT_MET, MEASURED, FAILED, INTERRUPTED, NOT_RUN = (
    "met", "not met", "measured", "failed", "interrupted", "not run",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A program that measures. `files`: study files that it executes; `out`: it has the option `-o`."""

    name: str
    program: str
    arguments: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    out: bool = True
    quick: bool = True
    record: bool = True
    claims: bool = True
    #: further arguments of the full size
    full: tuple[str, ...] = ()

    def place(self, quick: bool) -> Path | None:
        """Directory of its results below the root; None if it has none."""
        return Path("out", *(["quick"] if quick else []), self.name) if self.out else None

    def command(self, quick: bool, record: bool) -> list[str]:
        """The command's argv."""
        if self.program.endswith(".study.yaml"):
            line = [sys.executable, "-m", "penstock", "run", f"studies/{self.program}"]
        else:
            line = [sys.executable, self.program, *self.arguments]
        if quick and self.quick:
            line.append("--quick")
        elif not quick:
            line += self.full
        place = self.place(quick)
        if place is not None:
            line += ["-o", str(place)]
            if self.program.endswith(".study.yaml") and (ROOT / place / "campaign.json").exists():
                line.append("--resume")
        if record and self.record:
            line.append("--record")
        return line


def _study(
    name: str,
    *files: str,
    arguments: tuple[str, ...] = (),
    full: tuple[str, ...] = (),
    out: bool = True,
) -> Entry:
    named = tuple(f"{file}.study.yaml" for file in files)
    program = f"studies/{name}.py"
    return Entry(name.replace("_", "-"), program, arguments, named, out, full=full)


def _file(name: str) -> Entry:
    file = f"{name}.study.yaml"
    return Entry(name, file, files=(file,), record=False, claims=False)


PUBLISHED = (
    "blast",
    "blast-cost",
    "broadcast",
    "dvfs",
    "energy",
    "montage",
    "pipeline",
    "reduce",
    "scale",
)
#: in this order: first the studies that take minutes and need only penstock
ALL_STUDIES = (
    _study("published", *(f"published-{name}" for name in PUBLISHED), out=False),
    _study("ssd_patterns", "ssd-patterns", "ssd-patterns-readahead"),
    _study("ssd_schedulers", "ssd-schedulers"),
    _study("load_balance", "load-balance"),
    _study("monitored_offsets"),
    _study(
        "validation_grid", "validation-grid", "validation-grid-limits", "validation-grid-shape",
        full=("--guest",),
    ),
    _study("blackbox", "blackbox-programs"),
    _study("postgres"),
    _study(
        "storage_layout", "storage-layout-wiredtiger", "storage-layout-postgres",
        "storage-layout-shuffled", "storage-layout-cassandra",
    ),
    _study("monitored_shards"),
    _study("monitored_swarm"),
    _study("systems_on_disks", "systems-on-disks"),
    _study("dedup"),
    _study("nfs_wan", "nfs-wan"),
    _file("store-copies"),
    _file("store-blast"),
    _file("swift-objects"),
    _study("hadoop", "hadoop-job", "hadoop-terasort"),
    _study("scenarios", "scenarios"),
    _study("predictions"),
    _study("stores", arguments=("compare",), out=False),
    _study("workflow_patterns"),
)  # fmt: skip


def all_benchmarks() -> tuple[Entry, ...]:
    """Every program in bench."""
    return tuple(
        Entry(path.stem, f"bench/{path.name}", out=False, quick=False)
        for path in sorted(BENCH.glob("*.py"))
        if path.stem not in NO_BENCH
    )


@dataclass(frozen=True)
class Outcome:
    """Result of one program. `status`: its exit status, if it ended; `claims`: its summary."""

    name: str
    result: str
    status: int | None = None
    seconds: float = 0.0
    claims: str = ""
    commit: str = ""
    options: str = ""

    @property
    def complete(self) -> bool:
        """True if it need not be repeated."""
        return self.result in (MET, NOT_MET, MEASURED)


def result_of(status: int | None, claims: bool = True) -> str:
    """Result by the exit status; None: the time was over. `claims`: the program evaluates some."""
    if status is None:
        return INTERRUPTED
    return {0: MET if claims else MEASURED, 3: NOT_MET}.get(status, FAILED)


def execute(line: Sequence[str], log: Path, limit_s: float | None) -> int | None:
    """Run a command with its output in `log`; its exit status, or None if it was interrupted at the limit."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            line,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=_interruptible,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _interruptible() -> None:
    """Let SIGINT interrupt the program, which a shell's background job ignores otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process group as Ctrl-C does, then with more force."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def set_aside(place: Path, commit: str) -> None:
    """Rename results that were not measured at this commit: a study would continue them."""
    mark = place.with_name(f"{place.name}.commit")
    earlier = mark.read_text() if mark.exists() else "unknown"
    if place.exists() and earlier != commit:
        aside = place.with_name(f"{place.name}.{earlier}")
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)
    place.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(commit)


def summary_of(log: Path) -> str:
    """The claims that the output of a study ends with."""
    matches = SUMMARY.findall(log.read_text("utf-8", errors="replace"))
    return matches[-1] if matches else ""


class State:
    """Outcomes of the series, stored after each program."""

    def __init__(self, file: Path) -> None:
        self._file = file
        rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
        self._outcomes = {row["name"]: Outcome(**row) for row in rows}

    def earlier(self, name: str, commit: str, options: str) -> Outcome | None:
        """A complete outcome at this commit with these options."""
        outcome = self._outcomes.get(name)
        if outcome is None or (outcome.commit, outcome.options) != (commit, options):
            return None
        return outcome if outcome.complete else None

    def add(self, outcome: Outcome) -> None:
        """Store an outcome."""
        self._outcomes[outcome.name] = outcome
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps([asdict(o) for o in self._outcomes.values()], indent=1) + "\n")
        fresh.replace(self._file)


@dataclass(frozen=True)
class Series:
    """Programs to run, their options, and the limits of time [s]."""

    entries: Sequence[Entry]
    quick: bool = False
    record: bool = False
    again: bool = False
    total_s: float | None = None
    each_s: float | None = None

    @property
    def options(self) -> str:
        """Options that make a different measurement."""
        return " ".join(w for w, on in (("--quick", self.quick), ("--record", self.record)) if on)


def run(
    series: Series, place: Path, commit: str, execute: Callable[..., int | None] = execute
) -> list[Outcome]:
    """Run each program of the series that has no outcome yet."""
    state, outcomes, began = State(place / "state.json"), [], time.monotonic()
    for number, entry in enumerate(series.entries, 1):
        head = f"[{number}/{len(series.entries)}] {entry.name}"
        earlier = None if series.again else state.earlier(entry.name, commit, series.options)
        if earlier is not None:
            print(f"{head}: {earlier.result}, before", file=sys.stderr, flush=True)
            outcomes.append(earlier)
            continue
        limit_s = series.each_s
        if series.total_s is not None:
            remaining_s = series.total_s - (time.monotonic() - began)
            limit_s = min(limit_s or remaining_s, remaining_s)
        outcome = Outcome(entry.name, NOT_RUN, commit=commit, options=series.options)
        if limit_s is None or limit_s > 0:
            print(f"{head} …", file=sys.stderr, flush=True)
            log = place / f"{entry.name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            start = time.monotonic()
            directory = entry.place(series.quick)
            if directory is not None:
                set_aside(ROOT / directory, commit)
            status = execute(entry.command(series.quick, series.record), log, limit_s)
            seconds = time.monotonic() - start
            outcome = replace(
                outcome,
                result=result_of(status, entry.claims),
                status=status,
                seconds=seconds,
                claims=summary_of(log),
            )
        print(f"{head}: {outcome.result}", file=sys.stderr, flush=True)
        state.add(outcome)
        outcomes.append(outcome)
    return outcomes


def show(outcomes: Sequence[Outcome]) -> None:
    """Table of the series."""
    table = Table(box=None, pad_edge=False)
    for heading in ("study", "time", "claims", "result"):
        table.add_column(heading, overflow="fold")
    for outcome in outcomes:
        minutes, seconds = divmod(round(outcome.seconds), 60)
        took = f"{minutes}:{seconds:02d}" if outcome.seconds else ""
        table.add_row(outcome.name, took, outcome.claims, outcome.result)
    Console(width=100, highlight=False).print(table)


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """0 if everything is met, 3 if a claim is not, 1 if a program did not end on its own."""
    if not all(outcome.complete for outcome in outcomes):
        return 1
    return 3 if any(outcome.result == NOT_MET for outcome in outcomes) else 0


def _commit() -> str:
    line = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=("studies", "bench"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--quick", action="store_true", help="small studies, in less than an hour")
    parser.add_argument("--record", action="store_true", help="write the results to bench/results")
    parser.add_argument("--again", action="store_true", help="repeat what ended before")
    options = parser.parse_args(argv)
    if options.quick and options.record:
        parser.error("found --quick with --record; expected one of them: full sizes are recorded")
    entries = ALL_STUDIES
    if options.what == "bench":
        entries = (*all_benchmarks(), *(ALL_STUDIES if options.record else ()))
    existing = [entry.name for entry in entries]
    if unknown := [name for name in options.names if name not in existing]:
        parser.error(f"found {unknown[0]}; expected {', '.join(existing)}")
    chosen = [e for e in entries if not options.names or e.name in options.names]
    limits = (QUICK_TOTAL_S, QUICK_EACH_S) if options.quick else (None, None)
    series = Series(chosen, options.quick, options.record, options.again, *limits)
    outcomes = run(series, ROOT / "out" / "measure", _commit())
    show(outcomes)
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
