"""The table of a trace on the terminal: complete names, readable times, largest times first."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.table import Table

from penstock.console import Console
from penstock.observe.trace.show import table as of_traces
from penstock.observe.trace.show.table import by_time, file_table, print_table, shown
from penstock.text import FAULTS

PATH = "/srv/projects/a-long-directory-name/with-another/below-it/database-0000123.sst"


def row(
    direction: str, calls: int, time_ns: int, file_id: int = 1, **fields: Any
) -> dict[str, Any]:
    verdict = {"class": "irregular", "k": None, "median_size_bytes": 4096}
    return {
        "file_id": file_id,
        "direction": direction,
        "calls": calls,
        "time_ns": time_ns,
        "done_bytes": 4096 * calls,
        "basis": FAULTS,
        "together": verdict,
        **fields,
    }


def printed(table: Table, width: int) -> list[str]:
    sink = io.StringIO()
    Console(file=sink, width=width).print(table)
    return sink.getvalue().splitlines()


ROWS = [
    row("read", 40, 250_000),
    row("write", 40, 1_820_000),
    row("sync", 6, 46_300_000),
    row("read", 2, 3_000, file_id=2),
]


def test_rows_are_sorted_by_time_and_not_by_calls() -> None:
    """The sentence below the table is about six flushes, which a table sorted by calls omits."""
    rows = shown(by_time(ROWS))
    assert [(r["direction"], r["calls"]) for r in rows] == [
        ("sync", 6),
        ("write", 40),
        ("read", 40),
    ]
    short_rows = [row("read", 1, 0, file_id=n) for n in range(5)]
    assert len(shown(by_time(short_rows))) == 3


def test_times_have_suitable_units() -> None:
    rows = by_time([row("read", 40, 1_270_000_000), *ROWS])
    lines = printed(file_table(rows, {1: "/a", 2: "/b"}), 200)
    for line, time in zip(
        lines[1:], ("1.27 s", "46.3 ms", "1.82 ms", "250 µs", "3 µs"), strict=True
    ):
        assert f" {time}  " in line


@pytest.mark.parametrize("columns", [80, 100])
def test_a_narrow_terminal_cuts_only_the_directory(columns: int) -> None:
    lines = printed(file_table(ROWS, {1: PATH, 2: "/b"}, fit=columns), columns)
    assert all(len(line) <= columns for line in lines)
    assert sum("…" in line and "123.sst " in line for line in lines) == 3
    text = " ".join(" ".join(lines).split())
    assert text.count("irregular") == 3
    assert text.count("bound") == 3


def test_nothing_is_cut_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(file_table(ROWS, {1: PATH, 2: "/b"}, fit=of_traces.width()))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert sum(PATH in line for line in lines) == 3
    assert all("faults (lower bound)" in line for line in lines[1:3])
