"""penstock export: a trace for other programs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import typer


def command(
    bundle: Path = typer.Argument(
        help="The bundle of `penstock trace --mode trace -o` or `import`; OUT:r001, OUT:t01 of a study."
    ),
    form: str = typer.Argument(metavar="FORMAT", help="perfetto, paraver, json, jsonl or fio."),
    output: Path = typer.Option(
        ..., "-o", "--output", help="The file; for fio a directory of jobs and I/O logs."
    ),
    as_json: bool = typer.Option(False, "--json", help="What was written, as JSON."),
    part_bytes: int = typer.Option(0, "--part-bytes", hidden=True, min=0),
) -> None:
    """Write a trace in another program's format: Perfetto, Paraver, JSON, fio.

    fio gets the calls themselves (replay.fio, one I/O log per thread), a job of the same kind of load
    (job.fio) and one that makes the files (files.fio).
    """
    from penstock.archive import trace_export
    from penstock.archive.completeness import reading

    limit = part_bytes or trace_export.PART_BYTES
    with reading(bundle) as (trace,):
        written = trace_export.export(trace, form, output, part_bytes=limit)
    if as_json:
        print(json.dumps(written))
        return
    print(f"{written['events']} events: {', '.join(written['files'][:8])}")
    if len(written["files"]) > 8:
        print(f"and {len(written['files']) - 8} more files")
    if form == "fio":
        print(f"cd {shlex.quote(str(output))} && fio files.fio && fio replay.fio  # or job.fio")
    for what, n in written.get("skipped", {}).items():
        print(f"not in the I/O logs: {n} x {what}")
