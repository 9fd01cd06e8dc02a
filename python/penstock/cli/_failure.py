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


def tell(error: Exception, as_json: bool) -> None:
    """One clear message on stderr; with `as_json`, one object on stdout as well."""
    if as_json:
        mistakes = [vars(m) for m in error.mistakes] if isinstance(error, BadInput) else []
        with contextlib.suppress(OSError):
            print(json.dumps({"error": str(error), "mistakes": mistakes}))
    for line in str(error).splitlines() or [type(error).__name__]:
        say(line)


@contextlib.contextmanager
def of_wrapper(as_json: bool) -> Iterator[None]:
    """Around what a verb does to run a command: what fails there is told, and ends with 125.

    Bad input goes on as it is: nothing was run.
    """
    try:
        yield
    except BadInput:
        raise
    except (PenstockError, OSError) as error:
        tell(error, as_json)
        raise typer.Exit(OWN_STATUS) from None
