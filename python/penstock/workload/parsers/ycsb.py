"""YCSB 0.1 to 0.18: the text report of one load or run, on stdout."""

from __future__ import annotations

import math
import re
from pathlib import Path

from penstock.errors import PenstockError, printable
from penstock.workload.measured import JobSpec, Measured, Report
from penstock.workload.parsers.printed import Printed, check_version, complete_lines, several

_OPERATIONS = ("read", "update", "insert", "scan", "delete", "read_modify_write")
_LATENCIES = {
    "AverageLatency": "mean",
    "MinLatency": "min",
    "MaxLatency": "max",
    "50thPercentileLatency": "p50",
    "90thPercentileLatency": "p90",
    "95thPercentileLatency": "p95",
    "99thPercentileLatency": "p99",
    "99.9PercentileLatency": "p999",
    "99.99PercentileLatency": "p9999",
}
RESPONSES: dict[str, str] = {
    "throughput": "1/s",
    "run_time": "s",
    "operations": "operations",
    "failed_operations": "operations",
    **{
        f"{op}_{name}": unit
        for op in _OPERATIONS
        for name, unit in (
            ("operations", "operations"),
            ("failed_operations", "operations"),
            *((f"{latency}_latency", "us") for latency in _LATENCIES.values()),
        )
    },
}
_LINE = re.compile(r"^[ \t]*\[([A-Za-z_-]+)\], ([^,\n]+), (\S+)\s*$", re.MULTILINE)
_MEASURED = re.compile(r"([\w.]+?)(?:\((\w+(?:/\w+)?)\))?")
_UNITS = ("us", "ms", "ns")
#: statuses of successful operations; a binding with batches (`jdbc.batchupdateapi`) reports the second
_GOOD = ("Return=OK", "Return=BATCHED_OK", "Return=0")
_VERSION = re.compile(r"^YCSB Client (\d+\.\d+)", re.MULTILINE)
_GO = re.compile(r"^\w+ +- Takes\(s\): ", re.MULTILINE)
_JSON = re.compile(r'"metric"\s*:\s*"OVERALL"')


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> Report:
    """Throughput, and latencies of each kind of operation in the unit of its label.

    Failed operations are excluded from the latencies of their kind. PenstockError for no or several reports
    (a load and a run), another format, or a run without operations, after which YCSB ends with 0.
    """
    supported = [f"0.{n}" for n in range(1, 19)]
    check_version(stdout, _VERSION, supported, "YCSB 0.1 to 0.18")
    if _GO.search(stdout):
        raise PenstockError("found a report of go-ycsb; expected one of YCSB 0.1 to 0.18")
    if _JSON.search(stdout):
        raise PenstockError(
            "found a JSON report of YCSB; expected the text of its default exporter"
        )
    stdout = complete_lines(stdout)
    lines = [(m[1], m[2], m[3]) for m in _LINE.finditer(stdout)]
    ends = sum(head == "OVERALL" and what.startswith("Throughput") for head, what, _ in lines)
    if ends != 1:
        raise (
            several("YCSB", ends)
            if ends
            else PenstockError("YCSB printed no '[OVERALL], Throughput(ops/sec), …' line")
        )
    printed = Printed("YCSB", stdout)
    values: dict[str, Measured] = {}
    failed: dict[str, float] = {}
    returned: dict[str, float] = {}
    for head, what, value in lines:
        named = _MEASURED.fullmatch(what)
        name, unit = (named[1], named[2] or "") if named else (what, "")
        kind = head.lower().replace("-", "_")
        if head == "OVERALL" and name == "Throughput" and unit == "ops/sec":
            _add(values, "throughput", printed.number(value, what), "1/s")
        elif head == "OVERALL" and name == "RunTime" and unit == "ms":
            _add(values, "run_time", printed.number(value, what) / 1000, "s")
        elif name == "Operations" and kind in _OPERATIONS:
            _add(values, f"{kind}_operations", printed.number(value, what), "operations")
        elif name == "Operations" and kind.removesuffix("_failed") in _OPERATIONS:
            failed[kind.removesuffix("_failed")] = printed.number(value, what)
        elif what.startswith("Return=") and what not in _GOOD and kind in _OPERATIONS:
            returned[kind] = returned.get(kind, 0.0) + printed.number(value, what)
        elif name in _LATENCIES and kind in _OPERATIONS and value != "NaN":
            if unit not in _UNITS:
                raise PenstockError(
                    f"found {printable(what[:60])!r} in YCSB's report; expected a latency in us, ms or ns"
                )
            latency = f"{kind}_{_LATENCIES[name]}_latency"
            _add(values, latency, printed.number(value, what), unit)
    if "throughput" in values and not values["throughput"].value:
        raise PenstockError(
            "found a report of YCSB without operations; expected a run that made some"
        )
    kinds = [values[f"{op}_operations"].value for op in _OPERATIONS if f"{op}_operations" in values]
    # a read-modify-write is also counted as a read and an update
    if kinds and "read_modify_write_operations" not in values:
        values["operations"] = Measured(math.fsum(kinds), "operations")
    # failures have a section of their own (0.2 on) and a status, or a status only
    for kind in {**failed, **returned}:
        count = max(failed.get(kind, 0.0), returned.get(kind, 0.0))
        values[f"{kind}_failed_operations"] = Measured(count, "operations")
    bad = [values[f"{kind}_failed_operations"].value for kind in {**failed, **returned}]
    values["failed_operations"] = Measured(math.fsum(bad), "operations")
    return Report({**values, "wall_s": Measured(wall_s, "s")})


def _add(values: dict[str, Measured], name: str, value: float, unit: str) -> None:
    if name in values:
        raise several("YCSB", 2)
    values[name] = Measured(value, unit)


def operations(command: str) -> list[JobSpec] | None:
    """None: a command line does not determine a database's file accesses."""
    return None
