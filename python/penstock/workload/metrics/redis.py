"""`redis-cli INFO` once or many times in one file: each section `# Server` begins a new reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.workload.metrics import Readings, complete_lines, samples, text_of

WHAT = "the output of `redis-cli INFO` (again and again, with `>>`)"
#: units in the names of Redis' fields; others have none
_UNITS = (
    (re.compile(r"(_ratio|_policy)$"), "1"),
    (re.compile(r"^used_memory_peak_time$"), "s"),
    (re.compile(r"^(cmdstat\.usec.*|latency\.p[\d.]+)$"), "us"),
    (re.compile(r"\.avg_ttl$"), "ms"),
    (
        re.compile(
            r"(_bytes|^used_memory.*|^maxmemory|^total_system_memory|_size|^allocator_(allocated|active|resident)|"
            r"^mem_.*|^client_recent_max_(input|output)_buffer)$"
        ),
        "B",
    ),
    (re.compile(r"_kbps$"), "KiB/s"),
    (re.compile(r"_per_sec$"), "1/s"),
    (re.compile(r"_milliseconds$"), "ms"),
    (re.compile(r"_in_days$"), "d"),
    (re.compile(r"(_defrag_time|_exceeded_time)$"), "ms"),
    (re.compile(r"^eventloop_duration_(cmd_)?sum$"), "us"),
    (re.compile(r"(_seconds|_sec|_last_save_time|^used_cpu_.*)$"), "s"),
    (re.compile(r"_usec$"), "us"),
    (re.compile(r"_ms$"), "ms"),
    (re.compile(r"_perc$"), "%"),
)
_COUNTERS = re.compile(
    r"^(total_.*|used_cpu_.*|expired_keys|evicted_keys|keyspace_(hits|misses)|rejected_connections|"
    r".*_processed|.*\.(calls|usec|count)|io_threaded_.*|sync_.*)$"
)
_LINE = re.compile(r"^([A-Za-z][\w.|:-]*?):(.*)$")


def matches(path: Path, head: bytes) -> bool:
    """True for the output of INFO, by its first section."""
    return head.lstrip().startswith(b"# Server") and b"redis_version:" in head


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Numbers of all readings, at the server's own clock."""
    rows: list[tuple[Any, ...]] = []
    lines, notes = complete_lines(text_of(path))
    block: list[tuple[str, str, str]] = []
    at: int | None = None
    readings = 0

    def end() -> None:
        if not block:
            return
        if at is None:
            raise BadInput(
                f"{path}: found a reading without server_time_usec; expected INFO of Redis 7 or newer, "
                "or `server` among the requested sections"
            )
        rows.extend(
            (at, "redis", entity, metric, *_kind(metric), float(value))
            for entity, metric, value in block
        )

    for line in lines:
        if line.startswith("# Server"):
            end()
            block, at = [], None
            readings += 1
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        name, value = match.groups()
        if name == "server_time_usec":
            if not re.fullmatch(r"\s*\d{1,18}\s*", value):
                raise BadInput(f"{path}: found server_time_usec:{value!r}; expected microseconds")
            at = int(value) * 1000
        elif "=" in value:  # db0:keys=3,expires=0 or cmdstat_get:calls=4,usec=9
            for pair in value.split(","):
                key, _, number = pair.partition("=")
                if _number(number):
                    block.append((name, f"{name.split('_')[0]}.{key}", number))
        elif _number(value):
            block.append(("server", name, value))
    end()
    if readings == 1:
        notes.append("one reading: counters have no rate")
    order = ("utc_ns", "source", "entity", "metric", "unit", "cumulative", "value")
    shaped = [dict(zip(order, row, strict=True)) for row in rows]
    return Readings(samples(shaped), facts={"readings": readings}, notes=notes)


def _kind(metric: str) -> tuple[str, bool]:
    unit = next((u for pattern, u in _UNITS if pattern.search(metric)), "1")
    return unit, _COUNTERS.match(metric) is not None


def _number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text) is not None
