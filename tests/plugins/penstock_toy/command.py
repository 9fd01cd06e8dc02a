"""`penstock toy`: print its argument."""

from __future__ import annotations

import typer

HELP = "Print a word."


def command(word: str = typer.Argument(..., help="The word.")) -> None:
    """Print a word."""
    print(word)
