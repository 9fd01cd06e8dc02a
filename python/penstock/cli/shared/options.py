"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import typer

from penstock.errors import BadInput

T = TypeVar("T")

JSON = typer.Option(False, "--json", help="The result as JSON.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress on stderr.")
#: changes of a platform file
CHANGES = typer.Option([], "--set", help="Change a value of the file: a.b=c.")
CLUSTER = typer.Option(None, "--cluster", "-c", help="Name of the cluster (default: the only one).")
NODE_CHANGES = typer.Argument(help="NODE… key=value…, again for other nodes.")
NODE_USER = typer.Option(None, "--user", "-u", help="User of the command (default: root).")
NODE_CWD = typer.Option(None, "--cwd", "-w", help="Working directory in the node.")
NODE_ENV = typer.Option(
    [], "--env", "-e", help="KEY=VALUE for the command; KEY alone passes on its current value."
)
NODE_SOURCE = typer.Argument(help="A path here, or NODE:PATH.")
NODE_TARGET = typer.Argument(help="NODE:PATH (NODE may be a pattern), or a path here.")
NODES_AND_COMMAND = typer.Argument(help="NODE… (names or patterns such as 'n-*'), --, a command.")
SIZE_MODEL = typer.Option(
    None,
    "--size-model",
    help="Sizes of a generated workflow's files: lognormal:SPREAD, table:FILE or table:FILE:SPREAD.",
)


def parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    """Value of an option's text. BadInput for a ValueError of `parse`, whose text is the expected form."""
    try:
        return parse(text)
    except ValueError as error:
        raise BadInput(f"{option}: found {text!r}; expected {error}") from None


def other_options(context: typer.Context, used: Collection[str]) -> str:
    """Options that were set on the command line, whatever their value, other than the parameters `used`.

    Empty if there are none. A verb refuses options that have no effect on its input or in its mode.
    """
    names = {
        name
        for name in context.params
        if name not in used
        and (source := context.get_parameter_source(name)) is not None
        and source.name != "DEFAULT"
    }
    return names_of_options(context, names)


def names_of_options(context: typer.Context, names: set[str]) -> str:
    """Long options of parameters, in the order of the help."""
    return ", ".join(
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name in names
    )


def refuse_others(
    context: typer.Context, allowed: Collection[str], expected: str, prefix: str = ""
) -> None:
    """Raise BadInput if other parameters than the allowed ones were set, as they would have no effect."""
    if others := other_options(context, allowed):
        raise BadInput(f"{prefix}found {others}; expected {expected}")
