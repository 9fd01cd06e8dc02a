"""penstock import: another tool's trace as a bundle."""  # noqa: N999 - named after the verb

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.plugins import TRACE_IMPORTERS


def command(
    files: list[Path] = typer.Argument(
        metavar="FILE", help="The trace; of blktrace all its files, or their common name."
    ),
    output: Path = typer.Option(..., "-o", "--output", help="Where the bundle goes."),
    form: str = typer.Option(
        None,
        "--format",
        help=f"{', '.join(TRACE_IMPORTERS)}; found out by itself if left away.",
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as JSON."),
) -> None:
    """Make a trace bundle of blktrace's files, darshan-dxt-parser's text or fio's I/O logs, and judge it.

    What the source cannot know is said, and stands in the bundle's manifest.
    """
    from penstock.observe.trace.foreign.importers import import_trace
    from penstock.observe.trace.foreign.summary import as_document, show

    judged = import_trace(files, output, form)
    if as_json:
        print(json.dumps(as_document(judged)))
    else:
        show(judged)
