"""`penstock init -- CMD`: a commented study for a program."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.errors import BadInput
from penstock.terminal import say

CONTEXT = {"allow_interspersed_args": False}


def command(
    argv: list[str] = typer.Argument(
        ..., metavar="-- CMD", help="The program; {data} in it is the directory of the disk."
    ),
    output: Path | None = typer.Option(None, "-o", "--output", help="Default: NAME.study.yaml."),
    name: str | None = typer.Option(
        None, "--name", help="The study's name; default: the program's."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite an existing file."),
    as_json: bool = typer.Option(False, "--json", help="Print the written file as JSON."),
) -> None:
    """Write a commented study for a program."""
    from penstock.study.draft import draft, draft_name
    from penstock.study.load import read_study

    name = name or draft_name(argv)
    path = output or Path(f"{name}.study.yaml")
    if path.exists() and not force:
        raise BadInput(f"{path} exists already; expected another -o, or --force to overwrite it")
    text = draft(argv, name, str(path))
    read_study(text.encode(), path)  # check that the text is a valid study
    try:
        path.write_text(text)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    print(json.dumps({"file": str(path), "name": name}) if as_json else path)
    say(f"next: penstock plan {path}")
