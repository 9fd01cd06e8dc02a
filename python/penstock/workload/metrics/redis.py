"""`redis-cli INFO` once or many times in one file: each section `# Server` begins a new reading."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, printable
from penstock.workload.metrics import Readings, complete_lines, samples, text_of

WHAT = "the output of `redis-cli INFO` (again and again, with `>>`)"
#: units in the names of Redis' fields; others have none
_UNITS = (
    (re.compile(r"(_ratio|_policy)$"), "1"),
    (re.compile(r"_perc$"), "%"),
    (re.compile(r"^used_memory_peak_time$"), "s"),
    (re.compile(r"^(cmdstat\.usec.*|latency\.p[\d.]+)$"), "us"),
    (re.compile(r"\.avg_ttl$"), "ms"),
    (
        re.compile(
            r"(_bytes|^used_memory.*|^maxmemory|^total_system_memory|_size|^allocator_(allocated|active|resident)|"
            r"^mem_.*|^client_recent_max_(input|output)_buffer|_buffer_length|_offset|_histlen)$"
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
)
_COUNTERS = re.compile(
    r"^(total_(?!system_memory|blocking_keys|watched_keys).*|used_cpu_.*|expired_(keys|subkeys)|"
    r"evicted_.*|.*_reached_count|expire_cycle_cpu_milliseconds|active_defrag_(key_)?(hits|misses)|"
    r"keyspace_(hits|misses)|rejected_connections|.*_disconnections|lazyfreed_objects|"
    r"unexpected_error_replies|acl_access_denied_.*|aof_delayed_fsync|aof_rewrites|rdb_saves|"
    r"eventloop_(cycles|duration_sum|duration_cmd_sum)|(master|slave)_repl_offset|"
    r".*_processed|.*\.(calls|usec|count|rejected_calls|failed_calls)|io_threaded_.*|sync_.*)$"
)
#: fields that identify a server, and its start
_OF_A_SERVER = ("run_id", "tcp_port", "uptime_in_seconds")
#: uptimes are whole seconds
_ROUNDED_NS = 2_000_000_000
_LINE = re.compile(r"^([A-Za-z][\w.|:-]*?):(.*)$")


def matches(path: Path, head: bytes) -> bool:
    """True for the output of INFO, by its first section."""
    return head.lstrip().startswith(b"# Server") and b"redis_version:" in head


@dataclass
class _Reading:
    """One output of INFO: its time, and entity, metric and text of its numbers. `server`: its facts."""

    utc_ns: int | None = None
    server: dict[str, str] = field(default_factory=dict)
    numbers: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def port(self) -> str:
        return self.server.get("tcp_port", "")

    @property
    def start_ns(self) -> int:
        """Start of the server, as its uptime in whole seconds shows it."""
        uptime = self.server.get("uptime_in_seconds", "0")
        seconds = int(uptime) if re.fullmatch(r"\d{1,9}", uptime) else 0
        return (self.utc_ns or 0) - seconds * 1_000_000_000


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Numbers of all readings, at the server's own clock.

    Of servers on several ports, entities begin with the port; several servers of one port are refused.
    """
    lines, notes = complete_lines(text_of(path))
    readings = _readings(path, lines)
    _check_servers(path, readings)
    several = len({reading.port for reading in readings}) > 1
    if len(readings) == 1:
        notes.append("one reading: counters have no rate")
    rows: list[tuple[Any, ...]] = []
    for reading in readings:
        prefix = f"{reading.port} " if several else ""
        for entity, metric, value in reading.numbers:
            unit, cumulative = _kind(metric)
            own = (reading.utc_ns, "redis", f"{prefix}{entity}", metric, unit)
            rows.append((*own, float(value), cumulative))
    return Readings(samples(rows), facts={"readings": len(readings)}, notes=notes)


def _readings(path: Path, lines: Sequence[str]) -> list[_Reading]:
    readings: list[_Reading] = []
    for line in lines:
        if line.startswith("# Server"):
            readings.append(_Reading())
            continue
        match = _LINE.match(line)
        if match is None or not readings:
            continue
        name, value = match.groups()
        last = readings[-1]
        if name == "server_time_usec":
            if not re.fullmatch(r"\s*\d{1,18}\s*", value):
                raise BadInput(f"{path}: found server_time_usec:{value!r}; expected microseconds")
            last.utc_ns = int(value) * 1000
        elif "=" in value:  # db0:keys=3,expires=0 or cmdstat_get:calls=4,usec=9
            for pair in value.split(","):
                key, _, number = pair.partition("=")
                if _number(number):
                    last.numbers.append((name, f"{name.split('_')[0]}.{key}", number))
        elif _number(plain := value.removesuffix("%")):
            last.numbers.append(("server", name, plain))
        if name in _OF_A_SERVER:
            last.server[name] = value.strip()
    used = [reading for reading in readings if reading.numbers]
    if any(reading.utc_ns is None for reading in used):
        raise BadInput(
            f"{path}: found a reading without server_time_usec; expected INFO of Redis 7 or newer, "
            "or `server` among the requested sections"
        )
    return used


def _check_servers(path: Path, readings: Sequence[_Reading]) -> None:
    """BadInput for servers of one port that ran at the same time: each would be taken for a restart."""
    runs: dict[tuple[str, str], tuple[int, int]] = {}
    for reading in readings:
        run = (reading.port, reading.server.get("run_id", ""))
        at = reading.utc_ns or 0
        start, last = runs.get(run, (reading.start_ns, at))
        runs[run] = (min(start, reading.start_ns), max(last, at))
    in_order = sorted((port, *span) for (port, _), span in runs.items())
    for (port, _, last), (other, start, _) in pairwise(in_order):
        if port == other and start < last - _ROUNDED_NS:
            raise BadInput(
                f"{path}: found readings of several servers on port {printable(port)}; expected those of "
                "one, or of several ports"
            )


def _kind(metric: str) -> tuple[str, bool]:
    unit = next((u for pattern, u in _UNITS if pattern.search(metric)), "1")
    return unit, _COUNTERS.match(metric) is not None


def _number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text) is not None
