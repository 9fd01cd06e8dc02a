"""Options that several verbs share."""

from __future__ import annotations

import typer

JSON = typer.Option(False, "--json", help="The result as JSON.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress on stderr.")
#: changes of a platform file
CHANGES = typer.Option([], "--set", help="Change a value of the file: a.b=c.")
SIZE_MODEL = typer.Option(
    None,
    "--size-model",
    help="Sizes of a generated workflow's files: lognormal:SPREAD, table:FILE or table:FILE:SPREAD.",
)
