"""penstock export: runs as one archive file; a trace or series in the format of another program."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

if TYPE_CHECKING:
    from penstock.archive.packing import ArchiveFormat


#: end of an error message if no part provides an archive format
_NO_ARCHIVE = "; no archive format is installed"


def command(
    source: str = typer.Argument(
        metavar="X",
        help="An experiment (NAME, NAME#2, NAME#1..5), a study's results (OUT), a treatment or run of "
        "it (OUT:t01, OUT:r001), a bundle.",
    ),
    form: str = typer.Argument(
        metavar="FORMAT",
        help="FILE.tar.zst: everything in one file. Of series: csv, openmetrics, remote-write. Of a trace: "
        "perfetto, paraver, json, jsonl or fio.",
    ),
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        help="Output file; for csv and openmetrics a directory with a file per metric; for fio a "
        "directory of jobs and I/O logs.",
    ),
    axis: Literal["timestamp", "duration", "sample"] = typer.Option(
        None, "--type", help="First column of csv: time, seconds since the start, or a number."
    ),
    to: str = typer.Option(
        None,
        metavar="URL",
        help="Server for remote-write, such as http://HOST:9090 (its token: $PENSTOCK_REMOTE_WRITE_TOKEN).",
    ),
    license: str = typer.Option("", help="Address of the licence of FILE.tar.zst."),
    as_json: bool = typer.Option(False, "--json", help="Print the written files as JSON."),
    part_bytes: int = typer.Option(0, "--part-bytes", hidden=True, min=0),
) -> None:
    """Write runs as one file, series as tables, or a trace in another program's format.

    Or send series to Prometheus, VictoriaMetrics or a similar server, by remote write.

    A .tar.zst contains everything, with a README, schemas, checksums, CSV and Parquet, and RO-Crate metadata;
    the same runs give the same bytes. `penstock import` imports it.
    """
    from penstock.archive.packing import format_for
    from penstock.errors import BadInput
    from penstock.plugins import ARCHIVE_FORMATS

    archive = format_for(form)
    if archive is not None:
        if output is not None:
            raise BadInput(f"found {form} and -o {output}; expected one file")
        _pack(archive, source, Path(form), license, as_json)
        return
    if (form == "remote-write") != (to is not None):
        raise BadInput(
            f"found {form} {'without' if to is None else 'with'} --to; expected remote-write --to URL"
        )
    if to is not None:
        if output is not None:
            raise BadInput(f"found --to {to} and -o {output}; expected one of them")
        _send(source, to, as_json)
        return
    if output is None:
        files = "".join(f", or FILE.{name}" for name in ARCHIVE_FORMATS)
        raise BadInput(f"found no -o for {form}; expected where to{files or _NO_ARCHIVE}")
    if form in ("csv", "openmetrics"):
        _write_series(source, form, output, axis, as_json)
        return
    from penstock.archive.completeness import reading
    from penstock.archive.traces import trace_export

    limit = part_bytes or trace_export.PART_BYTES
    with reading(Path(source)) as (trace,):
        written = trace_export.export(trace, form, output, part_bytes=limit)
    if as_json:
        print(json.dumps(written))
        return
    print(f"{written['events']} events: {', '.join(written['files'][:8])}")
    if len(written["files"]) > 8:
        print(f"and {len(written['files']) - 8} more files")
    if form == "fio":
        print(f"cd {shlex.quote(str(output))} && fio files.fio && fio replay.fio  # or job.fio")


def _pack(archive: ArchiveFormat, source: str, target: Path, license: str, as_json: bool) -> None:
    from penstock.archive.run_names import select_named

    packed = archive.pack(select_named(source), target, license=license)
    if as_json:
        print(json.dumps({**vars(packed), "path": str(packed.path)}))
        return
    print(
        f"{packed.path}: {packed.files} files, {packed.content_bytes:,} bytes in "
        f"{packed.size_bytes:,}; {archive.HOW_TO_OPEN.format(name=packed.name)}"
    )
    if packed.omitted:
        print(f"omitted, not regular files: {', '.join(packed.omitted[:8])}")


def _send(source: str, to: str, as_json: bool) -> None:
    from penstock.archive.run_names import select_named
    from penstock.plugins import FUNCTIONS
    from penstock.terminal import say

    server = FUNCTIONS.load("remote-write")(to, say)
    sent_runs = {}
    for run in select_named(source).runs:
        sent_runs[str(run)] = sent = server.send(run)
        if as_json:
            continue
        unsent = ", ".join(f"{n} {reason}" for reason, n in sent.omitted.items())
        print(
            f"{server.url}: {sent.points} points of {sent.series} series in {sent.requests} requests"
            + (f"; not sent: {unsent}" if unsent else "")
        )
    if as_json:
        documents = [{"run": run, **vars(sent)} for run, sent in sent_runs.items()]
        print(json.dumps({"to": server.url, "runs": documents}))


def _write_series(
    source: str,
    form: str,
    output: Path,
    axis: Literal["timestamp", "duration", "sample"] | None,
    as_json: bool,
) -> None:
    from penstock.archive.run_names import select_named
    from penstock.errors import printable
    from penstock.plugins import FUNCTIONS
    from penstock.writing import atomic_folder

    write = FUNCTIONS.load("export-series")
    runs = select_named(source).runs
    with atomic_folder(output) as folder:
        names, omitted = write(runs, folder, "csv" if form == "csv" else "openmetrics", axis)
    if omitted:
        shown = ", ".join(printable(metric) for metric in omitted[:8])
        print(f"penstock: not in OpenMetrics: sequences and texts of {shown}", file=sys.stderr)
    if as_json:
        print(json.dumps({"files": [str(output / n) for n in names]}))
        return
    print(f"{len(names)} files: {', '.join(names[:8])}")
