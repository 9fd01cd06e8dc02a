"""penstock trace: trace the file I/O of a command or of running processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.analyse.findings.finding import SEVERITIES
from penstock.cli.shared import failure
from penstock.cli.shared.options import other_options
from penstock.cli.shared.output import print_json
from penstock.errors import BadInput
from penstock.observe.trace import MODES, RING_BYTES
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.observe.trace.capture.session import Traced

CONTEXT = {"allow_interspersed_args": False}

_FINDING_STATUS = 3
_NOT_EXECUTABLE = 126
_NO_SUCH_COMMAND = 127


_SCOPE, _METHOD, _RESULTS = "What is traced (kinds combine by AND)", "How", "Results"


#: options that the log of a disk supports
_WITH_DISK = {"argv", "disk", "exact", "output", "as_json"}


def command(
    context: typer.Context,
    argv: list[str] = typer.Argument(None, metavar="-- COMMAND", help="Command to run and trace."),
    process: list[int] = typer.Option(
        [],
        "-p",
        "--pid",
        help="A running process and its children; repeatable.",
        rich_help_panel=_SCOPE,
    ),
    cgroup: str = typer.Option(
        None,
        "--cgroup",
        metavar="GROUP",
        help="A control group: directory (unified or v1), container, or process.",
        rich_help_panel=_SCOPE,
    ),
    files: list[Path] = typer.Option(
        [], "--file", help="Only this file; repeatable.", rich_help_panel=_SCOPE
    ),
    inodes: list[str] = typer.Option(
        [],
        "--inode",
        metavar="DEV:INO",
        help="Only this inode (MAJOR:MINOR:INO); repeatable.",
        rich_help_panel=_SCOPE,
    ),
    directories: list[Path] = typer.Option(
        [], "--dir", help="Only files below it; repeatable.", rich_help_panel=_SCOPE
    ),
    endings: list[str] = typer.Option(
        [],
        "--ext",
        metavar="ENDING",
        help="Only names with this ending (.wt); repeatable.",
        rich_help_panel=_SCOPE,
    ),
    only: str = typer.Option(
        None,
        "--only",
        metavar="read|write",
        help="Only reads or only writes.",
        rich_help_panel=_SCOPE,
    ),
    seconds: float = typer.Option(
        None, "--seconds", help="Duration without a command, in seconds.", rich_help_panel=_SCOPE
    ),
    mode: str = typer.Option(
        "pattern",
        "--mode",
        "-m",
        help="count: sums; pattern: records of the order, stored in the kernel; trace: every event.",
        rich_help_panel=_METHOD,
    ),
    ring_size: int = typer.Option(
        RING_BYTES >> 20,
        "--ring-size",
        min=1,
        max=16384,
        help="Size of the event buffer in the kernel, in MiB.",
        rich_help_panel=_METHOD,
    ),
    require: list[str] = typer.Option(
        [],
        "--require",
        metavar="FEATURE",
        help="Exit with status 2 before the start if the kernel lacks this feature (`doctor` lists them).",
        rich_help_panel=_METHOD,
    ),
    layers: bool = typer.Option(
        None,
        "--layers/--no-layers",
        help="Record the page cache and block devices too, and join them with the "
        "calls (default: with a command, --mode trace and -o).",
        rich_help_panel=_METHOD,
    ),
    mmap_exact: bool = typer.Option(
        False,
        "--mmap-exact",
        help="Map one page per fault of mapped files, so that each first access is traced; applies to "
        "the complete host during the trace.",
        rich_help_panel=_METHOD,
    ),
    calibrate: int = typer.Option(
        0,
        "--calibrate",
        metavar="PAIRS",
        min=0,
        help="First run the command N times with and without tracing (15 give a good estimate).",
        rich_help_panel=_METHOD,
    ),
    hot: bool = typer.Option(
        False,
        "--hot",
        help="With --mode trace: store the calls of the fewest files that cover 90 % of "
        "requests, chosen every 10 s; count the others.",
        rich_help_panel=_METHOD,
    ),
    hot_bytes: bool = typer.Option(
        False, "--hot-bytes", help="The same, by bytes.", rich_help_panel=_METHOD
    ),
    live: bool = typer.Option(
        None,
        "--live/--no-live",
        help="Show progress on stderr while it runs (default: if stderr is a terminal).",
        rich_help_panel=_RESULTS,
    ),
    drop_every: int = typer.Option(0, "--drop-every", hidden=True, min=0),
    disk: Path = typer.Option(
        None,
        "--disk",
        help="Read the requests from the log of the emulated disk mounted there; needs no root.",
        rich_help_panel=_METHOD,
    ),
    exact: bool = typer.Option(
        False,
        "--exact",
        help="With --disk: bypass the page cache, so that every call reaches the disk.",
        rich_help_panel=_METHOD,
    ),
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        help="Write a bundle of one run to this directory.",
        rich_help_panel=_RESULTS,
    ),
    key_file: Path = typer.Option(
        None,
        "--anonymize",
        metavar="KEYFILE",
        help="Hash every component of every path with the key in this file.",
        rich_help_panel=_RESULTS,
    ),
    fail_on: str = typer.Option(
        None,
        "--fail-on",
        metavar="SEVERITY",
        help="Exit with status 3 on a finding of this severity or above: info, warning or error.",
        rich_help_panel=_RESULTS,
    ),
    as_json: bool = typer.Option(
        False,
        "--json",
        help="One JSON object on stdout; the command's stdout goes to stderr.",
        rich_help_panel=_RESULTS,
    ),
) -> None:
    """Trace the I/O of a command and its children, or of running processes: patterns, and the overhead.

    Exits with the command's status, or with 125 if penstock itself failed. Options of the command go
    after `--`. Without a command, Ctrl-C ends the trace. A line written to $PENSTOCK_MARKS begins a phase.
    """
    if disk is not None or exact:
        if disk is not None and (others := other_options(context, _WITH_DISK)):
            raise BadInput(f"--disk: cannot be combined with {others}")
        if argv:
            _check_executable(argv[0])
        raise typer.Exit(_trace_by_disk_log(argv or [], disk, output, exact, as_json))
    if mode not in MODES:
        raise BadInput(f"--mode: found {mode!r}; expected {' or '.join(MODES)}")
    running = bool(process or cgroup or files or inodes or directories)
    if not argv and not running:
        raise BadInput(
            "penstock trace needs a command (penstock trace -- COMMAND ...), or running processes: "
            "-p, --cgroup, --file, --dir"
        )
    if argv and (process or cgroup):
        raise BadInput("-p and --cgroup are for running processes; leave out the command")
    if argv and seconds is not None:
        raise BadInput("--seconds is for running processes; leave out the command")
    if fail_on is not None and fail_on not in SEVERITIES:
        raise BadInput(f"--fail-on: found {fail_on!r}; expected {', '.join(SEVERITIES)}")
    if calibrate and not argv:
        raise BadInput("--calibrate needs a command: it is run with and without tracing")
    if (hot or hot_bytes) and (mode != "trace" or (hot and hot_bytes)):
        raise BadInput(
            "one of --hot and --hot-bytes, with --mode trace: other modes store no calls"
        )
    if seconds is not None and not 0 < seconds < 1e9:
        raise BadInput(f"--seconds: found {seconds:g}; expected more than 0")
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    if argv:
        _check_executable(argv[0])
    from penstock.observe.trace.capture.scope import read_scope
    from penstock.observe.trace.capture.session import Session, trace_command, trace_running

    scope = read_scope(
        processes=process,
        group=cgroup,
        files=files,
        inodes=inodes,
        directories=directories,
        endings=endings,
        only=only,
    )
    if layers is None:
        layers = bool(argv) and mode == "trace" and output is not None
    if (layers or mmap_exact) and not argv:
        raise BadInput("--layers and --mmap-exact need a command")
    session = Session(
        mode,
        ring_size << 20,
        drop_every,
        output,
        quiet=as_json,
        scope=scope,
        require=tuple(require),
        layers=layers,
        mmap_exact=mmap_exact,
        live=live,
        calibrate=calibrate,
        key_file=key_file,
        hot="bytes" if hot_bytes else "requests" if hot else None,
    )
    with failure.wrapper_status(as_json):
        traced = trace_command(argv, session) if argv else trace_running(seconds, session)
    raise typer.Exit(_print_trace(traced, fail_on, as_json))


def _print_trace(traced: Traced, fail_on: str | None, as_json: bool) -> int:
    """Print a trace and its findings; returns the exit status of the verb."""
    from penstock.observe.trace.show.summary import as_document, show

    try:
        findings = traced.opened().findings
    except OSError as error:  # no space for temporary files
        findings = []
        say(f"no findings: {error}")
    if as_json:
        print_json(as_document(traced, findings))
    else:
        show(traced, findings)
    if traced.unwritten:
        say(f"no bundle: {traced.unwritten}")
        return traced.exit_status or failure.OWN_STATUS
    if fail_on is not None and traced.exit_status == 0:
        failing = SEVERITIES[SEVERITIES.index(fail_on) :]
        if any(finding.severity in failing for finding in findings):
            return _FINDING_STATUS
    return traced.exit_status


def _trace_by_disk_log(
    argv: list[str], mount: Path | None, output: Path | None, exact: bool, as_json: bool
) -> int:
    """Trace a command by the log of the disk at `mount` and print the result; returns its exit status."""
    from penstock.campaign.evidence.trace_disk import trace_on_disk
    from penstock.observe.trace.recordings.summary import as_document, show

    if mount is None:
        raise BadInput("--exact: only with --disk MOUNT")
    if not argv:
        raise BadInput("--disk: found no command; expected -- COMMAND")
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    with failure.wrapper_status(as_json):
        status, recording = trace_on_disk(argv, mount, output, exact=exact, quiet=as_json)
    if as_json:
        print(json.dumps({"command": argv, "exit_status": status, **as_document(recording)}))
    else:
        show(recording)
    return status


def _check_executable(program: str) -> None:
    """Exit as a shell does if the command cannot be run: 127 not found, 126 not executable."""
    if shutil.which(program):
        return
    status = _NOT_EXECUTABLE if Path(program).exists() else _NO_SUCH_COMMAND
    reason = "is not executable" if status == _NOT_EXECUTABLE else "no such command"
    say(f"{program}: {reason}")
    raise typer.Exit(status)
