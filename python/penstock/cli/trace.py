"""penstock trace: what a command does to its files."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import typer

from penstock.errors import BadInput, PenstockError
from penstock.observe.trace.tracer import MODES, RING_BYTES

CONTEXT = {"allow_interspersed_args": False}

_FAILED = 125
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


def command(
    words: list[str] = typer.Argument(
        None, metavar="[-- COMMAND [ARGUMENT]...]", help="What to run and trace."
    ),
    mode: str = typer.Option(
        "pattern", "--mode", "-m", help="pattern: counters in the kernel; trace: every call."
    ),
    output: Path = typer.Option(None, "-o", "--output", help="Leave a one-run bundle there."),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object on stdout; the command's stdout goes to stderr."
    ),
    cgroup: Path = typer.Option(
        None, "--cgroup", help="Instead of a command: a directory of the unified hierarchy."
    ),
    seconds: float = typer.Option(None, "--seconds", help="With --cgroup: for how long."),
    ring_size: int = typer.Option(
        RING_BYTES >> 20,
        "--ring-size",
        min=1,
        max=16384,
        help="Room for events in the kernel, MiB.",
    ),
    drop_every: int = typer.Option(0, "--drop-every", hidden=True, min=0),
    disk: Path = typer.Option(
        None,
        "--disk",
        help="Take the requests from the log of the emulated disk mounted there: no root needed.",
    ),
    exact: bool = typer.Option(
        False,
        "--exact",
        help="With --disk: past the page cache, so that every call reaches the disk.",
    ),
) -> None:
    """Trace reads and writes of a command and its children: patterns per file, and what they cost.

    Returns the command's own status, 125 when penstock itself failed. Options of the command go
    after `--`.
    """
    if disk is not None or exact:
        from penstock.observe.trace import disk_only

        if words:
            _must_be_there(words[0])
        raise typer.Exit(disk_only.run(words or [], disk, output, exact=exact, as_json=as_json))
    if mode not in MODES:
        raise BadInput(f"--mode: found {mode!r}; expected {' or '.join(MODES)}")
    if bool(words) == (cgroup is not None):
        raise BadInput(
            "penstock trace needs either a command (penstock trace -- COMMAND ...) or --cgroup"
        )
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    if words:
        _must_be_there(words[0])
    from penstock.observe.trace.session import Session, trace_cgroup, trace_command
    from penstock.observe.trace.summary import as_document, show

    session = Session(mode, ring_size << 20, drop_every, output, quiet=as_json)
    try:
        traced = trace_command(words, session) if words else trace_cgroup(cgroup, seconds, session)
    except BadInput:
        raise
    except PenstockError as error:
        for line in str(error).splitlines():
            print(f"penstock: {line}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": str(error)}))
        raise typer.Exit(_FAILED) from None
    if as_json:
        print(json.dumps(as_document(traced)))
    else:
        show(traced)
    raise typer.Exit(traced.exit_status)


def _must_be_there(program: str) -> None:
    """Ends as a shell would where the command is none: 127 not found, 126 not executable."""
    if shutil.which(program):
        return
    status = _NOT_EXECUTABLE if Path(program).exists() else _NOT_FOUND
    why = "is not executable" if status == _NOT_EXECUTABLE else "no such command"
    print(f"penstock: {program}: {why}", file=sys.stderr)
    raise typer.Exit(status)
