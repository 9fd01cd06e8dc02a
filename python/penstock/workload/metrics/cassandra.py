"""Output of Cassandra's `nodetool`, repeated in one file, each preceded by a line with the time.

    while sleep 10; do
      date +%s.%N
      timeout 9 nodetool tablestats -F json; timeout 9 nodetool tpstats -F json
    done >> FILE

`tablestats` and `tpstats` are read as JSON, `compactionstats` and `proxyhistograms` as text, their only form.
Output of a nodetool that hung, failed or printed something else is counted and reported as failed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import BadInput, printable
from penstock.workload.metrics import Readings, contradictory, samples, text_of

WHAT = "what nodetool of Cassandra prints, each time after a line of `date +%s.%N`"
MOST_VALUES = 200_000
_MOST_NAME = 200
#: longest line of a header; its kinds are found in a time that grows with the square of its length
_MOST_LINE = 2_000
_TIME = re.compile(r"^(\d{9,11})(?:\.(\d{1,9}))?[ \t]*$", re.MULTILINE)
#: start of an output, at the start of a line
_BEGIN = re.compile(r"^(?=\{|proxy histograms|concurrent compactors)", re.MULTILINE)
#: units in the names of tablestats; others have none
_UNITS = (
    (re.compile(r"_ms$"), "ms"),
    (re.compile(r"^percent_"), "%"),
    (
        re.compile(r"(_bytes|^bytes_.*|^space_used_.*|_memory_used(_total)?|_space_used|_size)$"),
        "B",
    ),
)
_COUNTERS = re.compile(
    r"^((local_)?(read|write)_count|memtable_switch_count|speculative_retries|bloom_filter_false_positives|"
    r"sai_total_query_timeouts|CompletedTasks|TotalBlockedTasks|Dropped)$"
)
#: duplicates of values that also have a name with a unit
_TWICE = ("read_latency", "write_latency")
#: lines of compactionstats: metric, unit, True for counters
_COMPACTION = {
    "concurrent compactors": ("concurrent_compactors", "1", False),
    "pending tasks": ("pending_compactions", "1", False),
    "compactions completed": ("compactions_completed", "1", True),
    "data compacted": ("compacted_bytes", "B", True),
    "compactions aborted": ("compactions_aborted", "1", True),
    "compactions reduced": ("compactions_reduced", "1", True),
    "sstables dropped from compaction": ("compaction_sstables_dropped", "1", True),
    "compaction throughput (MiB/s)": ("compaction_throughput_limit", "MiB/s", False),
}


class Value(NamedTuple):
    """One number of an output: entity, metric, unit, value, True for counters."""

    entity: str
    metric: str
    unit: str
    value: float
    cumulative: bool


def values_of(statistic: str, text: str) -> list[Value]:
    """Numbers of one output, without NaN. ValueError for other text."""
    values: list[Value] = []
    for value in STATISTICS[statistic][1](text):
        if len(values) >= MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values")
        for name in (value.entity, value.metric):
            if not 0 < len(name) <= _MOST_NAME or not name.isprintable():
                raise ValueError(f"the name {printable(name[:80])!r}")
        values.append(value)
    if not values:
        raise ValueError(f"{_shown(text)}, in which there is no number")
    return values


def _tables(text: str) -> Iterator[Value]:
    """Values of `tablestats -F json`: keyspaces, and their tables."""
    for keyspace, own in _json(text).items():
        if not isinstance(own, dict):  # total_number_of_tables
            continue
        tables = own.get("tables")
        if not isinstance(tables, dict):
            raise ValueError(f"a keyspace {printable(str(keyspace)[:80])!r} without tables")
        yield from _numbers(keyspace, own)
        for table, of_table in tables.items():
            if isinstance(of_table, dict):
                yield from _numbers(f"{keyspace}.{table}", of_table)


def _pools(text: str) -> Iterator[Value]:
    """Values of `tpstats -F json`: thread pools, and dropped messages by kind."""
    document = _json(text)
    pools, dropped = document.get("ThreadPools"), document.get("DroppedMessage", {})
    if not isinstance(pools, dict) or not isinstance(dropped, dict):
        raise ValueError("an object without ThreadPools")
    for pool, own in pools.items():
        if isinstance(own, dict):
            yield from _numbers(str(pool), own)
    for message, number in dropped.items():
        yield from _numbers(str(message), {"Dropped": number})


def _compactions(text: str) -> Iterator[Value]:
    """Values of `compactionstats`, which has no JSON."""
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        column = _COMPACTION.get(name.strip())
        value = _number(number)
        if column is not None and value is not None:
            yield Value("node", column[0], column[1], value, column[2])


def _latencies(text: str) -> Iterator[Value]:
    """Values of `proxyhistograms`, which has no JSON: percentiles of requests coordinated by this node."""
    kinds: list[str] = []
    for line in text.splitlines():
        head, *cells = line.split() or [""]
        if head == "Percentile" and len(line) <= _MOST_LINE:
            kinds = [kind.lower() for kind in re.findall(r"(\S[\w ]*?) Latency", " ".join(cells))]
        elif kinds and len(cells) == len(kinds) and re.fullmatch(r"\d+%|Min|Max", head):
            name = f"p{head[:-1]}" if head.endswith("%") else head.lower()
            for kind, cell in zip(kinds, cells, strict=True):
                value = _number(cell)
                if value is not None:
                    yield Value(kind, f"request_latency_{name}", "us", value, False)


#: name → arguments of nodetool, and the parser of its output
STATISTICS: Mapping[str, tuple[tuple[str, ...], Callable[[str], Iterator[Value]]]] = {
    "tablestats": (("tablestats", "-F", "json"), _tables),
    "tpstats": (("tpstats", "-F", "json"), _pools),
    "compactionstats": (("compactionstats",), _compactions),
    "proxyhistograms": (("proxyhistograms",), _latencies),
}


def matches(path: Path, head: bytes) -> bool:
    """True if a line with a time precedes output of nodetool."""
    text = head.decode("utf-8", "replace").lstrip()
    markers = ('"ThreadPools"', '"tables"', "concurrent compactors", "proxy histograms")
    return _TIME.match(text) is not None and any(word in text for word in markers)


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Numbers of all outputs, at the time of the preceding line."""
    text = text_of(path)
    times = list(_TIME.finditer(text))
    if not times or text[: times[0].start()].strip():
        raise BadInput(f"{path}:1: found no time; expected {WHAT}")
    ends = [*(t.start() for t in times[1:]), len(text)]
    rows: list[tuple[Any, ...]] = []
    readings: list[set[str]] = []
    first_error = ""
    for time, end in zip(times, ends, strict=True):
        utc_ns = int(time[1]) * 1_000_000_000 + int((time[2] or "").ljust(9, "0"))
        present: set[str] = set()
        for output in filter(str.strip, _BEGIN.split(text[time.end() : end])):
            statistic = _statistic(output)
            try:
                values = values_of(statistic, output)
            except ValueError as error:
                if not first_error:
                    at = text.count("\n", 0, time.start()) + 1
                    first_error = f"line {at}: found {error}"
                continue
            present.add(statistic)
            rows += [(utc_ns, f"cassandra {statistic}", *value) for value in values]
        readings.append(present)
    expected: set[str] = set().union(*readings)
    if not expected:
        raise BadInput(f"{path}: {first_error or 'found nothing after any time'}; expected {WHAT}")
    failed = sum(len(expected - present) for present in readings)
    notes = ["one reading: counters have no rate"] if len(readings) == 1 else []
    if failed:
        total = len(readings) * len(expected)
        notes.append(
            f"{failed} of {total} outputs failed{f' ({first_error})' if first_error else ''}"
        )
    frame = samples(rows)
    notes += contradictory(frame)
    return Readings(frame, facts={"readings": len(readings), "failed": failed}, notes=notes)


def _statistic(output: str) -> str:
    if output.startswith("proxy histograms"):
        return "proxyhistograms"
    if output.startswith("concurrent compactors"):
        return "compactionstats"
    return "tpstats" if '"ThreadPools"' in output else "tablestats"


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{_shown(text)}, which is no JSON ({what})") from None
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} and no object")
    return document


def _shown(text: str) -> str:
    return repr(printable(" ".join(text[:200].split())[:60]))


def _numbers(entity: str, own: Mapping[str, Any]) -> Iterator[Value]:
    for name, raw in own.items():
        value = None if name in _TWICE else _number(raw)
        if value is not None:
            unit = next((u for pattern, u in _UNITS if pattern.search(name)), "1")
            yield Value(entity, name, unit, value, _COUNTERS.match(name) is not None)


def _number(raw: Any) -> float | None:
    """A number, also as text, which has the decimal mark of Java's locale; None for NaN and others."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    if isinstance(raw, str) and re.fullmatch(r"-?\d+,\d+", raw):
        raw = raw.replace(",", ".")
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
