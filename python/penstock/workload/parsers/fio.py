"""fio: its JSON report (`--output-format=json+`, on stdout or in a file in {run_dir}), its command line."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured
from penstock.workload.parsers.json import document

_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
_DIRECTION = {
    "bandwidth": "B/s",
    "iops": "1/s",
    "bytes": "B",
    "requests": "requests",
    "mean_latency": "ns",
    "min_latency": "ns",
    "max_latency": "ns",
    **{f"{p}_latency": "ns" for p in _PERCENTILES},
}

#: latency is fio's completion latency (clat); bandwidth and iops are over the longest job's time
RESPONSES: dict[str, str] = {
    **{f"{d}_{name}": unit for d in ("read", "write") for name, unit in _DIRECTION.items()},
    "bandwidth": "B/s",
    "iops": "1/s",
    "bytes": "B",
    "sync_mean_latency": "ns",
    "user_cpu": "%",
    "system_cpu": "%",
}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
    """fio's totals over all jobs; a direction without requests gives no latencies.

    Percentiles come from the merged bins of `json+` as fio computes them: the middle of the first bin whose
    cumulated count reaches the share. Without bins, several jobs have no percentile. PenstockError if fio
    reported an error, or wrote no report such as fio writes.
    """
    report = read_report(run_dir, stdout)
    try:
        values = _totals(report)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise PenstockError(f"fio's report is not as fio writes it: {error}") from error
    return {**values, "wall_s": Measured(wall_s, "s")}


def _totals(report: dict[str, Any]) -> dict[str, Measured]:
    jobs = report.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise PenstockError("fio's report names no job")
    failed = [j for j in jobs if j.get("error")]
    if failed:
        raise PenstockError(
            f"fio's job {failed[0].get('jobname')} ended with error {failed[0]['error']}"
        )
    found: dict[str, float] = {}
    for direction in ("read", "write"):
        found |= _direction([j[direction] for j in jobs if direction in j], direction)
    for total in ("bandwidth", "iops", "bytes"):
        found[total] = found[f"read_{total}"] + found[f"write_{total}"]
    syncs = [
        (s["lat_ns"]["N"], s["lat_ns"]["mean"]) for s in (j.get("sync", {}) for j in jobs) if s
    ]
    if sum(n for n, _ in syncs):
        found["sync_mean_latency"] = sum(n * mean for n, mean in syncs) / sum(n for n, _ in syncs)
    found["user_cpu"] = sum(float(j.get("usr_cpu", 0)) for j in jobs)
    found["system_cpu"] = sum(float(j.get("sys_cpu", 0)) for j in jobs)
    odd = [name for name, value in found.items() if not math.isfinite(value)]
    if odd:
        raise ValueError(f"{odd[0]} is {found[odd[0]]}")
    return {name: Measured(float(value), RESPONSES[name]) for name, value in found.items()}


def read_report(run_dir: Path, stdout: str) -> dict[str, Any]:
    """fio's JSON report, from a file in `run_dir` or from stdout. Raises PenstockError if there is none."""
    files = [run_dir / "fio.json", *sorted(run_dir.glob("*.json"))] if run_dir.is_dir() else []
    texts = [(path.name, path.read_text(errors="replace")) for path in files if path.is_file()]
    for name, text in [*texts, ("stdout", stdout)]:
        try:
            value = document(text, name)
        except PenstockError:
            continue
        if isinstance(value, dict) and "fio version" in value:
            return value
    raise PenstockError(
        "fio left no JSON report; add --output-format=json+ (and --output={run_dir}/fio.json)"
    )


def _direction(parts: list[dict[str, Any]], direction: str) -> dict[str, float]:
    total_bytes = sum(p.get("io_bytes", 0) for p in parts)
    requests = sum(p.get("total_ios", 0) for p in parts)
    longest_s = max((p.get("runtime", 0) for p in parts), default=0) / 1000
    found: dict[str, float] = {
        f"{direction}_bytes": total_bytes,
        f"{direction}_requests": requests,
        # fio's own figures where its time is below its resolution of 1 ms
        f"{direction}_bandwidth": total_bytes / longest_s
        if longest_s
        else sum(p.get("bw_bytes", 0) for p in parts),
        f"{direction}_iops": requests / longest_s
        if longest_s
        else sum(p.get("iops", 0) for p in parts),
    }
    latencies = [p["clat_ns"] for p in parts if p.get("clat_ns", {}).get("N", 0)]
    if not latencies:
        return found
    counts = [float(c["N"]) for c in latencies]
    total = sum(n * float(c["mean"]) for n, c in zip(counts, latencies, strict=True))
    found[f"{direction}_mean_latency"] = total / sum(counts)
    found[f"{direction}_min_latency"] = min(c["min"] for c in latencies)
    found[f"{direction}_max_latency"] = max(c["max"] for c in latencies)
    return found | {
        f"{direction}_{name}_latency": value for name, value in _percentiles(latencies).items()
    }


def _percentiles(latencies: list[dict[str, Any]]) -> dict[str, float]:
    if all(c.get("bins") for c in latencies):
        bins = np.concatenate([np.array(list(c["bins"]), dtype=np.int64) for c in latencies])
        counts = np.concatenate([np.array(list(c["bins"].values()), np.int64) for c in latencies])
        order = np.argsort(bins, kind="stable")
        cumulated = np.cumsum(counts[order])
        shares = np.array(list(_PERCENTILES.values())) / 100
        places = np.searchsorted(cumulated, np.ceil(shares * cumulated[-1] - 1e-9))
        return dict(zip(_PERCENTILES, bins[order][places].astype(float).tolist(), strict=True))
    if len(latencies) > 1:
        return {}
    said = {float(k): float(v) for k, v in latencies[0].get("percentile", {}).items()}
    return {name: said[p] for name, p in _PERCENTILES.items() if p in said}


# ---------------------------------------------------------------- the command line

_NAMES = {"readwrite": "rw", "blocksize": "bs", "rwmixwrite": "rwmixwrite", "io_limit": "io_size"}
_FLAGS = {"time_based", "group_reporting", "thread", "direct", "end_fsync", "minimal", "invalidate"}
_MODES = "read write trim randread randwrite randtrim rw readwrite randrw trimwrite".split()
_POWERS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "h": 3600.0, "d": 86400.0}


def operations(command: str) -> list[JobSpec] | None:
    """The jobs of every `fio` in a shell command; None if there is none or it cannot be told (job files,
    shell variables, ranges of block sizes)."""
    try:
        lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=";&|()<>\n")
        lexer.whitespace = " \t\r"
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return None
    found: list[JobSpec] = []
    try:
        for arguments in _calls(words):
            found += _jobs(arguments)
    except (_Untold, ValueError):
        return None
    return found or None


class _Untold(Exception):  # noqa: N818
    """The command line does not say it."""


def _calls(words: list[str]) -> Iterator[list[str]]:
    """Arguments of each `fio` in a list of shell words."""
    call: list[str] | None = None
    skip = False
    for word in [*words, ";"]:
        if word and set(word) <= set(";&|()\n"):
            if call is not None:
                yield call
            call = None
        elif word and set(word) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        elif call is not None:
            call.append(word)
        elif word.rpartition("/")[2] == "fio":
            call = []


def _jobs(arguments: list[str]) -> Iterator[JobSpec]:
    """Options before the first --name and after --name=global are for all jobs."""
    shared: dict[str, str] = {}
    jobs: list[dict[str, str]] = []
    current = shared
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            if argument.isdigit() and current is not shared:
                continue  # the end of a redirection such as 2>
            raise _Untold(argument)
        name, equals, value = argument[2:].partition("=")
        name = _NAMES.get(name.replace("-", "_"), name.replace("-", "_"))
        if not equals:
            value = "1" if name in _FLAGS else next(rest, "1")
        if name == "name" and value == "global":
            current = shared
        elif name == "name":
            current = dict(shared)
            jobs.append(current)
            current["name"] = value
        else:
            current[name] = value
    for job in jobs:
        yield _job(job)


def _job(job: dict[str, str]) -> JobSpec:
    base = int(job.get("kb_base", "1024"))
    mode = job.get("rw", "read").partition(":")[0]
    if mode not in _MODES or "bsrange" in job or "bssplit" in job:
        raise _Untold(mode)
    blocks = [part for part in job.get("bs", "4k").split(",") if part]
    if not blocks:
        raise _Untold("bs")
    size = job.get("size", job.get("io_size"))
    runtime = job.get("runtime")
    mix = 100 - int(job["rwmixwrite"]) if "rwmixwrite" in job else int(job.get("rwmixread", "50"))
    return JobSpec(
        rw=mode,
        bs_bytes=_bytes(blocks[0], base),
        numjobs=int(job.get("numjobs", "1")),
        iodepth=int(job.get("iodepth", "1")),
        direct=job.get("direct", "0") != "0",
        size_bytes=_bytes(size, base) if size is not None and not size.endswith("%") else None,
        runtime_s=_seconds(runtime) if runtime is not None else None,
        name=job["name"],
        ioengine=job.get("ioengine", "psync"),
        number_ios=int(job["number_ios"]) if "number_ios" in job else None,
        rwmixread=mix,
        fsync=int(job.get("fsync", job.get("fdatasync", "0"))),
        end_fsync=job.get("end_fsync", "0") != "0",
        filename=job.get("filename"),
        directory=job.get("directory"),
        time_based=job.get("time_based", "0") != "0",
        offset_bytes=_bytes(job.get("offset", "0"), base),
        offset_increment_bytes=_bytes(job.get("offset_increment", "0"), base),
    )


def _bytes(text: str, base: int) -> int:
    """fio's sizes: with kb_base 1024, its default, k is 1024 and ki is 1000."""
    match = re.fullmatch(r"(\d+)([kmgtp]?)(i?)b?", text.strip().lower())
    if match is None:
        raise _Untold(text)
    other = 1000 if base == 1024 else 1024
    step = other if match.group(3) else base
    return int(match.group(1)) * int(step ** _POWERS[match.group(2)])


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.strip().lower())
    if match is None or match.group(2) not in _TIMES:
        raise _Untold(text)
    return float(match.group(1)) * _TIMES[match.group(2)]
