"""Output on a terminal: plain tables, and messages on stderr."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

from penstock.errors import escaped
from penstock.text import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table


class _Escaping:
    """A text stream that escapes terminal control characters; otherwise like `stream`."""

    def __init__(self, stream: TextIO) -> None:
        #: stream for Rich's own control sequences (`console.Console` escapes the text)
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _escaping(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, _Escaping) else _Escaping(stream)


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape all output in the context, so that text of input files cannot control the terminal."""
    original: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _escaping(sys.stdout), _escaping(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = original


def say(text: str) -> None:
    """Print one line on stderr, with the prefix `penstock:`."""
    print(f"penstock: {text}", file=sys.stderr, flush=True)


def plain_table(texts: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    """A table without rules: text columns, then right-aligned number columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """A table without rules and its rows; names of columns with numbers begin with `#`."""
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold"
    )
    for name in columns:
        number = name.startswith("#")
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(name.lstrip("#"), justify=justify, no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def show(*tables: Table) -> None:
    """Print non-empty tables, separated by an empty line."""
    from penstock.console import Console

    console = Console(width=COLUMNS)
    for number, table in enumerate(t for t in tables if t.row_count):
        if number:
            console.print()
        console.print(table)


def mib(nbytes: float) -> str:
    """Bytes as MiB, one decimal."""
    return f"{nbytes / 2**20:.1f}"


@contextlib.contextmanager
def progress_bar() -> Iterator[Any]:
    """Bar on stderr: a function of step, number of completed steps and total; None without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress

    from penstock.console import Console, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(step: str, completed: int, total: int) -> None:
            bar.update(task, description=step, completed=completed, total=total or None)

        yield update
