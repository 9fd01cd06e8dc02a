"""A table of sizes and rates, such as in a data sheet or a paper, as the cells of a measurement.

CSV with a header line, or YAML with `cells`, a list of mappings of the same names:

    operation, pattern, size, rate, jobs, depth, mean, p50, p95, p99, p99.9, use

`operation` is read, write or flush, `pattern` sequential or random, `size` a size (`4KiB`, `4 kB`, bytes),
`rate` a rate of bytes (`136 MB/s`) or of requests (`9800 IOPS`), latencies are durations (`80us`). A name may
include the unit of its column: `rate [MB/s]`. `jobs` (1) run concurrently with `depth` (1) requests each.
Rows whose `use` is `judge` are excluded from the fit. YAML may have `name` and `source` of the table next to
`cells`.

A missing mean latency is computed for a closed loop: requests in flight over their rate (Little).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import BadInput, Mistake
from penstock.profile.cells import Cell, Measurements
from penstock.spec.source import read_input, read_source
from penstock.spec.units import parse_duration, parse_quantity, parse_size

WHAT = "a table of operation, pattern, size and rate, as CSV or YAML"
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_PATTERNS = {"sequential": True, "seq": True, "random": False, "rand": False}
_NAMES = ("operation", "pattern", "size", "rate", "jobs", "depth", "mean", "use", *_QUANTILES)
_HEAD = re.compile(r"\s*([\w.]+)\s*(?:\[\s*([^\]]+?)\s*\])?\s*")


@dataclass(frozen=True)
class RateTable:
    """Cells to fit, cells for validation only, and their source."""

    name: str
    source: str
    fit: Measurements
    judge: list[Cell]


@dataclass(frozen=True)
class _Row:
    """Values as texts by name, with their positions in the file."""

    values: dict[str, str]
    place: Callable[[str], tuple[int, int]]


def read_table(path: Path) -> RateTable:
    """Table in a file. Raises BadInput with every mistake and its position."""
    raw = read_input(path, WHAT)
    csv_like = path.suffix.lower() in (".csv", ".tsv", ".txt")
    head, rows = _csv(raw, path) if csv_like else _yaml(raw, path)
    mistakes: list[Mistake] = []
    fit: list[Cell] = []
    judge: list[Cell] = []
    flush: Cell | None = None
    for row in rows:

        def mistake(name: str, found: str, expected: str, row: _Row = row) -> None:
            line, column = row.place(name)
            mistakes.append(Mistake(str(path), line, column, found, expected))

        cell = _cell(row.values, mistake)
        if cell is None:
            continue
        use = row.values.get("use", "fit") or "fit"
        if use not in ("fit", "judge"):
            mistake("use", repr(use), "fit or judge")
        elif cell.op == "flush" and flush is not None:
            mistake("operation", "a second row of flush", "one")
        elif cell.op == "flush":
            flush = cell
        else:
            (judge if use == "judge" else fit).append(cell)
    if mistakes:
        raise BadInput(mistakes=mistakes)
    if not fit:
        raise BadInput(f"{path}: found no row to fit; expected {WHAT}")
    measured = Measurements(fit, flush, "")
    return RateTable(head.get("name") or path.stem, head.get("source") or "", measured, judge)


def _csv(raw: bytes, path: Path) -> tuple[dict[str, str], list[_Row]]:
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        actual = f"the byte 0x{raw[error.start]:02x}"
        raise BadInput(mistakes=[Mistake(str(path), line, 1, actual, "text in UTF-8")]) from None
    numbered = [
        (n, x) for n, x in enumerate(lines, 1) if x.strip() and not x.lstrip().startswith("#")
    ]
    if not numbered:
        raise BadInput(f"{path}: found an empty table; expected {WHAT}")
    delimiter = "\t" if "\t" in numbered[0][1] else ";" if ";" in numbered[0][1] else ","
    try:
        cells = list(csv.reader([x for _, x in numbered], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadInput(f"{path}: found {error}; expected {WHAT}") from None
    if len(cells) != len(numbered):
        raise BadInput(f"{path}: found a cell of several lines; expected {WHAT}")
    names, units = _head(cells[0], path, numbered[0][0])
    rows = []
    for (line, _), values in zip(numbered[1:], cells[1:], strict=True):
        if len(values) > len(names):
            actual, expected = f"{len(values)} values", f"{len(names)}, as in the head line"
            raise BadInput(mistakes=[Mistake(str(path), line, 1, actual, expected)])
        texts = {
            name: _with_unit(value.strip(), units[name])
            for name, value in zip(names, values, strict=False)
        }
        rows.append(_Row(texts, lambda _, line=line: (line, 1)))  # type: ignore[misc]
    return {}, rows


def _head(cells: list[str], path: Path, line: int) -> tuple[list[str], dict[str, str]]:
    names, units, mistakes = [], {}, []
    for cell in cells:
        match = _HEAD.fullmatch(cell)
        name = match[1].lower() if match else ""
        if name not in _NAMES or name in names:
            names_text = ", ".join(_NAMES)
            mistakes.append(
                Mistake(
                    str(path), line, 1, f"the column {cell.strip()!r}", f"each once of {names_text}"
                )
            )
        names.append(name)
        units[name] = (match[2] or "") if match else ""
    if mistakes:
        raise BadInput(mistakes=mistakes)
    return names, units


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if value and unit and re.fullmatch(r"[\d.eE+-]+", value) else value


def _yaml(raw: bytes, path: Path) -> tuple[dict[str, str], list[_Row]]:
    source = read_source(raw, str(path), WHAT)
    value: Any = source.value
    cells = value.get("cells") if isinstance(value, dict) else None
    if not isinstance(cells, list):
        source.mistake(() if cells is None else ("cells",), "no list `cells`", WHAT)
        raise BadInput(mistakes=source.mistakes)
    rows = []
    for n, cell in enumerate(cells):
        if not isinstance(cell, dict):
            source.mistake(("cells", n), "no mapping", "operation, pattern, size and rate")
            continue
        for name in cell:
            if name not in _NAMES:
                source.mistake(("cells", n, name), f"the name {name!r}", ", ".join(_NAMES))

        def place(name: str, n: int = n, cell: dict[str, Any] = cell) -> tuple[int, int]:
            position = source.at(("cells", n, name) if name in cell else ("cells", n))
            return position.line, position.column

        rows.append(_Row({str(k): str(v) for k, v in cell.items()}, place))
    if source.mistakes:
        raise BadInput(mistakes=source.mistakes)
    return {k: str(value[k]) for k in ("name", "source") if value.get(k)}, rows


def _cell(values: dict[str, str], mistake: Callable[[str, str, str], None]) -> Cell | None:
    """One row as a cell; None where it has mistakes."""
    failed = []

    def refuse(name: str, actual: str, expected: str) -> None:
        failed.append(name)
        mistake(name, actual, expected)

    def number(name: str, parse: Callable[[str], float], expected: str) -> float:
        text = values.get(name) or ""
        try:
            value = float(parse(text))
        except ValueError:
            value = 0.0
        if not 0 < value < 1e18:
            refuse(name, repr(text) if text else f"no {name}", expected)
        return value

    op = (values.get("operation") or "").lower()
    if op not in ("read", "write", "flush"):
        refuse("operation", repr(values.get("operation") or ""), "read, write or flush")
        return None
    quantiles = {
        name: number(name, parse_duration, "a duration, such as 80us")
        for name in ("mean", *_QUANTILES)
        if values.get(name)
    }
    for lower, upper in pairwise(name for name in _QUANTILES if name in quantiles):
        if quantiles[upper] < quantiles[lower]:
            refuse(upper, repr(values[upper]), f"at least {lower}, {values[lower]}")
    if op == "flush":
        if not quantiles and not failed:
            refuse("mean", "no latency", "mean or p50 of a flush, such as 80us")
        return None if failed else _sampled(op, False, 0, 1, 1, 0.0, quantiles)
    pattern = (values.get("pattern") or "").lower()
    if pattern not in _PATTERNS:
        refuse("pattern", repr(values.get("pattern") or ""), "sequential or random")
    size = int(
        number("size", lambda t: float(t) if t.isdigit() else parse_size(t), "a size, such as 4KiB")
    )
    jobs = int(number("jobs", int, "an integer from 1") if values.get("jobs") else 1)
    depth = int(number("depth", int, "an integer from 1") if values.get("depth") else 1)
    iops = number("rate", lambda t: _iops(t, size), "a rate, such as 136 MB/s or 9800 IOPS")
    if failed:
        return None
    return _sampled(op, _PATTERNS[pattern], size, depth * jobs, jobs, iops, quantiles)


def _iops(text: str, size: int) -> float:
    """Requests per second of a rate; ValueError if malformed."""
    value, unit = parse_quantity(text)
    if unit.dimension == "size/time":
        return value * unit.factor / max(size, 1)
    if unit.dimension == "1/time":
        return value * unit.factor
    raise ValueError(text)


def _sampled(
    op: str,
    sequential: bool,
    size: int,
    depth: int,
    jobs: int,
    iops: float,
    times: dict[str, float],
) -> Cell:
    """A cell whose sample has the given quantiles, with linear interpolation."""
    mean_s = times.get("mean") or (depth / iops if iops else times.get("p50", 0.0))
    points = sorted((_QUANTILES[name], value) for name, value in times.items() if name != "mean")
    sample = np.array([mean_s])
    if points:
        p, v = np.array(points).T
        p = np.concatenate([[0.0], p, [1.0]])
        v = np.maximum.accumulate(np.concatenate([[0.5 * v[0]], v, [v[-1]]]))
        sample = np.interp((np.arange(2000) + 0.5) / 2000, p, v)
    ones = np.ones(len(sample))
    return Cell(op, sequential, size, depth, jobs, iops, sample * 1e9, ones, mean_s)
