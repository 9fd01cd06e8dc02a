"""Options shared by the commands of penstock monitor, and their store or server."""

from __future__ import annotations

from typing import Any

import typer

from penstock.errors import BadInput

app = typer.Typer(
    help="Record experiments: metrics, phases, the resources that a command uses.",
    no_args_is_help=True,
)

SERVER = typer.Option(
    None, "--server", help="http://HOST:PORT ($PENSTOCK_SERVER); by default the store of this user."
)
AT = typer.Option(None, "--at", help="Time: seconds since 1970, or ISO 8601 (default: now).")
NAME = typer.Argument(
    ..., help="Name of the experiment; NAME#2 is its second repeat, NAME the latest."
)
JSON = typer.Option(False, "--json", help="One JSON object on stdout.")


@app.callback()
def _monitor() -> None:
    """Record experiments: metrics, phases, the resources that a command uses."""


def patient(server: str | None) -> Any:
    """The store of experiments, here or at a server; requests are repeated while it is unreachable."""
    from penstock.parts.monitoring.outbox.client import Patient, opened

    return Patient(opened(server))


def params(texts: list[str], option: str = "--param") -> dict[str, str]:
    """Parse texts KEY=VALUE. Raises BadInput."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"found {option} {text!r}; expected KEY=VALUE")
        values[key] = value
    return values


def moment(text: str | None) -> int | None:
    """A time as nanoseconds since 1970. Raises BadInput."""
    from penstock.parts.monitoring.experiments.timestamps import moment_ns

    return None if text is None else moment_ns(text)
