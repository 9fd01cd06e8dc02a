"""fio's JSON report: its location, its version, and its values in the units of fio 3.

fio 2.0 to 2.20 counts `io_bytes` in KiB; 2.21 and later in bytes, in addition to `io_kbytes`. Latencies are
in microseconds (`clat`, `lat`) to 2.21 and in nanoseconds (`clat_ns`, `lat_ns`) from 2.99 on. The names of
the bins of `json+` are bin numbers to 2.19, which are ignored here, and latencies from 2.20 on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, printable
from penstock.workload.parsers.json import documents

DIRECTIONS = ("read", "write", "trim", "mixed")
VERSIONS = "fio 2 or 3"
_VERSION = re.compile(r"(?:fio-)?v?(\d+)\.(\d+)")
#: first versions with `io_bytes` in bytes, and with latencies in nanoseconds
_BYTES, _NANOSECONDS = (2, 21), (2, 99)
_US = 1000
#: tolerance for the start of a run, computed from rounded times of its reports [s]
_ROUNDED_S = 1


def read_report(run_dir: Path, stdout: str) -> dict[str, Any]:
    """fio's report, as `normalised`, from the one file in `run_dir` that has one, or from stdout.

    Raises PenstockError without a report, for several of them, and for an unsupported version or mode.
    """
    files = sorted(run_dir.glob("*.json")) if run_dir.is_dir() else []
    texts = [(p.name, p.read_text(errors="replace")) for p in files if p.is_file()]
    texts.append(("stdout", stdout))
    reports = {name: text for name, text in texts if '"fio version"' in text}
    if len(reports) > 1:
        raise PenstockError(
            f"found fio's reports in {', '.join(map(printable, reports))}; expected one (a fio whose report "
            "is not the result needs --output=/dev/null)"
        )
    for name, text in reports.items():
        return report_of(text, name)
    raise PenstockError(
        "fio left no JSON report; add --output-format=json+ (and --output={run_dir}/fio.json)"
    )


def report_of(text: str, where: str) -> dict[str, Any]:
    """The report in a text, as `normalised`: with `--status-interval` its last document, the final one.

    Raises PenstockError as `read_report`.
    """
    try:
        values = documents(text, where)
    except PenstockError as error:
        raise PenstockError(f"fio left no JSON report: {error}") from None
    reports = [d for d in values if isinstance(d, dict) and "fio version" in d]
    if not reports:
        raise PenstockError(f"fio left no JSON report: {where} has other JSON")
    try:
        normal = [normalised(report) for report in reports]
        for before, after in pairwise(normal):
            _check_one_run(before, after, len(reports), where)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise PenstockError(f"fio's report is not as fio writes it: {error}") from error
    return normal[-1]


def version_of(report: Mapping[str, Any]) -> tuple[int, int]:
    """Major and minor version; PenstockError for an unsupported one."""
    name = str(report["fio version"])
    match = _VERSION.match(name)
    if match is None or int(match[1]) not in (2, 3):
        raise PenstockError(f"found a report of {printable(name[:40])}; expected {VERSIONS}")
    return int(match[1]), int(match[2])


def normalised(report: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a report in the units of fio 3: bytes, and nanoseconds in `slat_ns`, `clat_ns`, `lat_ns`."""
    version = version_of(report)
    if "client_stats" in report:
        raise PenstockError(
            "found a report of fio's client mode (client_stats); expected one of fio itself, without --client"
        )
    jobs = report.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise PenstockError("fio's report names no job")
    return {**report, "jobs": [_job(job, version) for job in jobs]}


def _job(job: Mapping[str, Any], version: tuple[int, int]) -> dict[str, Any]:
    sides = {name: _side(job[name], version) for name in DIRECTIONS if name in job}
    return {**job, **sides}


def _side(side: Mapping[str, Any], version: tuple[int, int]) -> dict[str, Any]:
    converted = dict(side)
    if "io_kbytes" in side:
        if int(side["io_bytes"]) >> 10 != int(side["io_kbytes"]):
            raise ValueError(f"io_bytes {side['io_bytes']} with io_kbytes {side['io_kbytes']}")
    elif version < _BYTES:
        converted["io_bytes"] = int(side.get("io_bytes", 0)) * 1024
        if "bw" in side:
            converted["bw_bytes"] = int(side["bw"]) * 1024
    for name in ("slat", "clat", "lat"):
        if name in side and f"{name}_ns" not in side:
            if version >= _NANOSECONDS:
                raise ValueError(
                    f"{name} without a unit in a report of fio {version[0]}.{version[1]}"
                )
            converted[f"{name}_ns"] = _nanoseconds(converted.pop(name))
    return converted


def _nanoseconds(latency: Mapping[str, Any]) -> dict[str, Any]:
    """A latency in microseconds, with its percentiles and bins, in nanoseconds."""
    converted = dict(latency)
    for name in ("min", "max", "mean", "stddev"):
        if name in converted:
            converted[name] = converted[name] * _US
    if "percentile" in converted:
        # fio 2 writes 0.00 for unused entries
        converted["percentile"] = {
            k: v * _US for k, v in converted["percentile"].items() if float(k) > 0
        }
    bins = converted.pop("bins", None)
    if bins and "FIO_IO_U_PLAT_BITS" not in bins:
        converted["bins"] = {str(int(k) * _US): v for k, v in bins.items()}
    return converted


def _check_one_run(before: Any, after: Any, number: int, where: str) -> None:
    """PenstockError unless two consecutive reports are of one run, as with `--status-interval`."""
    if not _is_one_run(before, after):
        raise PenstockError(
            f"found {number} reports of fio in {where}, not all of one run; expected one report (a fio whose "
            "report is not the result needs --output=/dev/null)"
        )


def _is_one_run(before: Any, after: Any) -> bool:
    """True for the same jobs with the same start, if the second report continues the first.

    The byte count may decrease: at the end of `ramp_time` fio resets it to 0.
    """
    names = [[(j.get("jobname"), j.get("groupid")) for j in r["jobs"]] for r in (before, after)]
    began = [_began_s(r) for r in (before, after)]
    if names[0] != names[1] or began[0] is None or began[1] is None:
        return False
    if abs(began[0] - began[1]) > _ROUNDED_S:
        return False
    elapsed = [int(r["jobs"][0]["elapsed"]) for r in (before, after)]
    if elapsed[0] != elapsed[1]:
        return elapsed[0] < elapsed[1]
    counted = [_totals(r) for r in (before, after)]
    return counted[0] == counted[1] or counted[0][0] < counted[1][0]


def _totals(report: Any) -> tuple[int, int]:
    """Bytes and run time [ms] over all jobs."""
    sides = [job[d] for job in report["jobs"] for d in DIRECTIONS if d in job]
    return sum(int(s.get("io_bytes", 0)) for s in sides), sum(
        int(s.get("runtime", 0)) for s in sides
    )


def _began_s(report: Any) -> float | None:
    """Start of the run: time of its report minus elapsed time, rounded up; None if not given."""
    at_s, elapsed = report.get("timestamp"), report["jobs"][0].get("elapsed")
    if at_s is None or elapsed is None:
        return None
    return float(report.get("timestamp_ms", int(at_s) * 1000)) / 1000 - int(elapsed)
