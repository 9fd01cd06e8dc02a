"""Report of a failure: a line on stderr, an object on stdout where JSON is requested, a status."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import typer

from penstock.errors import BadInput, PenstockError
from penstock.terminal import say

#: penstock's own failure, for verbs that return the status of a command (as timeout(1) and env(1))
OWN_STATUS = 125


def print_error(error: Exception, as_json: bool) -> None:
    """Print the message on stderr; with `as_json`, also an object on stdout."""
    if as_json:
        mistakes = (
            [vars(mistake) for mistake in error.mistakes] if isinstance(error, BadInput) else []
        )
        with contextlib.suppress(OSError):
            print(json.dumps({"error": str(error), "mistakes": mistakes}))
    for line in str(error).splitlines() or [type(error).__name__]:
        say(line)


@contextlib.contextmanager
def wrapper_status(as_json: bool) -> Iterator[None]:
    """Print failures of a verb that runs a command, and exit with status 125.

    BadInput propagates, since no command has run.
    """
    try:
        yield
    except BadInput:
        raise
    except (PenstockError, OSError) as error:
        print_error(error, as_json)
        raise typer.Exit(OWN_STATUS) from None
