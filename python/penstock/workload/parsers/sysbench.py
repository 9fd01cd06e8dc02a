"""sysbench 0.4 to 1.1: its report on stdout, of one run of any of its tests."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured, Report
from penstock.workload.parsers.printed import (
    NUMBER,
    Printed,
    check_version,
    complete_lines,
    several,
)

_PERCENTILES = (50, 75, 90, 95, 99)

#: MB and Mb of sysbench 0.4 are MiB; `events_per_s` is computed from its total time if missing
RESPONSES: dict[str, str] = {
    "events": "events",
    "events_per_s": "1/s",
    "total_time": "s",
    "transactions": "transactions",
    "tps": "1/s",
    "queries": "requests",
    "qps": "1/s",
    "errors": "errors",
    "reconnects": "events",
    "read_iops": "1/s",
    "write_iops": "1/s",
    "fsync_iops": "1/s",
    "read_bandwidth": "MiB/s",
    "write_bandwidth": "MiB/s",
    "memory_bandwidth": "MiB/s",
    "latency_min": "ms",
    "latency_mean": "ms",
    "latency_max": "ms",
    **{f"latency_p{p}": "ms" for p in _PERCENTILES},
}
_NO_EVENTS = dict.fromkeys(
    ("events", "events_per_s", "total_time"), "sysbench 1.1 does not report it for fileio"
)
_VERSION = re.compile(r"^sysbench (?:v ?)?(\d+\.\d+)", re.MULTILINE)
_VERSIONS = ("0.4", "0.5", "1.0", "1.1")
_RATE = rf"(?P<value>{NUMBER})"
_EACH = r"^[ \t]*{}:\s+\d+\s+\({} per sec\.\)"
_AMOUNT = r"^[ \t]*{}:\s+(?P<value>\d+)"
#: lines below `Latency (ms):` of 1.0; 0.4 and 0.5 print the unit after each number
_LATENCY = r"^[ \t]+{}:\s+" + _RATE + r"(?P<unit>ms|s)?\s*$"
_LABELS = {
    "events": (r"^[ \t]*total number of events:\s+(?P<value>\d+)", "events"),
    "events_per_s": (rf"^[ \t]*events/s \(eps\):\s+{_RATE}", "1/s"),
    "total_time": (rf"^[ \t]*(?:total time|time elapsed):\s+{_RATE}s", "s"),
    "transactions": (_AMOUNT.format("transactions"), "transactions"),
    "tps": (_EACH.format("transactions", _RATE), "1/s"),
    "queries": (_AMOUNT.format("queries"), "requests"),
    "qps": (_EACH.format("queries", _RATE), "1/s"),
    "errors": (_AMOUNT.format("(?:ignored errors|deadlocks)"), "errors"),
    "reconnects": (_AMOUNT.format("reconnects"), "events"),
    "read_iops": (rf"^[ \t]*(?:reads/s:\s+|read:\s+IOPS=){_RATE}", "1/s"),
    "write_iops": (rf"^[ \t]*(?:writes/s:\s+|write:\s+IOPS=){_RATE}", "1/s"),
    "fsync_iops": (rf"^[ \t]*(?:fsyncs/s:\s+|fsync:\s+IOPS=){_RATE}", "1/s"),
    "read_bandwidth": (
        rf"^[ \t]*(?:read, MiB/s:\s+|read:\s+IOPS=\S+\s+){_RATE}(?:\s+MiB/s.*)?\s*$",
        "MiB/s",
    ),
    "write_bandwidth": (
        rf"^[ \t]*(?:written, MiB/s:\s+|write:\s+IOPS=\S+\s+){_RATE}(?:\s+MiB/s.*)?\s*$",
        "MiB/s",
    ),
    "memory_bandwidth": (rf"\btransferred \({_RATE} (?:MiB|MB)/sec\)", "MiB/s"),
    "latency_min": (_LATENCY.format("min"), "ms"),
    "latency_mean": (_LATENCY.format("avg"), "ms"),
    "latency_max": (_LATENCY.format("max"), "ms"),
    **{
        f"latency_p{p}": (_LATENCY.format(rf"(?:{p}th percentile|approx\.\s+{p} percentile)"), "ms")
        for p in _PERCENTILES
    },
}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> Report:
    """Final report of sysbench; PenstockError for another version, several reports, or checkpoints.

    With `--report-checkpoints` the last report covers only the time since the last checkpoint. The report of
    `fileio` of 1.1 has rates and latencies, but neither a number of events nor a time.
    """
    stdout = complete_lines(stdout)
    check_version(stdout, _VERSION, _VERSIONS, "sysbench 0.4, 0.5, 1.0 or 1.1")
    if re.search(r"Checkpoint report:", stdout):
        raise PenstockError(
            "found a checkpoint report of sysbench; expected none: no --report-checkpoints"
        )
    ends = max(
        len(re.findall(_LABELS[name][0], stdout, re.MULTILINE)) for name in ("events", "fsync_iops")
    )
    if ends != 1:
        raise (
            several("sysbench", ends)
            if ends
            else PenstockError("sysbench printed no 'total number of events:' line")
        )
    values = Printed("sysbench", stdout).labelled(_LABELS)
    seconds = values.get("total_time")
    events = values.get("events")
    if (
        "events_per_s" not in values
        and events is not None
        and seconds is not None
        and seconds.value
    ):
        values["events_per_s"] = Measured(events.value / seconds.value, "1/s")
    return Report({**values, "wall_s": Measured(wall_s, "s")}, {} if events else _NO_EVENTS)


def operations(command: str) -> list[JobSpec] | None:
    """None: a command line does not determine the test's file accesses."""
    return None
