"""Declared I/O of fio's command line."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from penstock.workload.measured import SYNCHRONOUS_ENGINES, JobSpec

_NAMES = {
    "readwrite": "rw",
    "blocksize": "bs",
    "io_limit": "io_size",
    "timeout": "runtime",
    "start_delay": "startdelay",
    "wait_for_previous": "stonewall",
}
#: options without a value
_FLAGS = {
    *("time_based", "group_reporting", "thread", "minimal", "stonewall", "exitall"),
    *("norandommap", "new_group", "zero_buffers"),
}
#: options whose value may be missing at the end of a command
_SWITCHES = {"direct", "end_fsync", "invalidate", "fill_device"}
#: options that change the I/O beyond the fields of a JobSpec, and their values without an effect
_BEYOND = {
    "rate": ("0",),
    "rate_iops": ("0",),
    "thinktime": ("0",),
    "flow": ("0",),
    "latency_target": ("0",),
    "startdelay": ("0",),
    "stonewall": ("0",),
    "wait_for": (),
    "exitall": ("0",),
    "loops": ("1",),
    "nrfiles": ("1",),
    "filesize": (),
    "fill_device": ("0",),
    "verify": ("0",),
    "read_iolog": (),
    "random_distribution": ("random",),
    "percentage_random": ("100",),
    "trim_percentage": ("0",),
    "bs_is_seq_rand": ("0",),
    "zonemode": ("none",),
    "zonesize": ("0",),
}
_ENGINES = SYNCHRONOUS_ENGINES | {"libaio", "posixaio", "io_uring"}
_MODES = "read write trim randread randwrite randtrim rw readwrite randrw trimwrite".split()
_POWERS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "h": 3600.0, "d": 86400.0}


def operations(command: str) -> list[JobSpec] | None:
    """Jobs of every `fio` in a shell command; None if there is none or it is undetermined (job files, shell
    variables, ranges of block sizes)."""
    try:
        lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=";&|()<>\n")
        lexer.whitespace = " \t\r"
        lexer.whitespace_split = True
        tokens = list(lexer)
    except ValueError:
        return None
    jobs: list[JobSpec] = []
    try:
        for number, arguments in enumerate(_calls(tokens)):
            jobs += (replace(job, call=number) for job in _jobs(arguments))
    except (_Untold, ValueError):
        return None
    return jobs or None


class _Untold(Exception):  # noqa: N818
    """The command line does not determine it."""


def _calls(tokens: list[str]) -> Iterator[list[str]]:
    """Arguments of each `fio` in a list of shell words."""
    call: list[str] | None = None
    skip = False
    for word in [*tokens, ";"]:
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
    """Options before the first --name and after --name=global apply to all jobs."""
    shared: dict[str, str] = {}
    jobs: list[dict[str, str]] = []
    current = shared
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        if not argument.startswith("--"):
            if argument.isdigit() and current is not shared:
                continue  # the end of a redirection such as 2>
            raise _Untold(argument)
        name, equals, value = argument[2:].partition("=")
        name = _NAMES.get(name.replace("-", "_"), name.replace("-", "_"))
        if not equals:
            bare = name in _FLAGS or (name in _SWITCHES and rest and rest[0].startswith("--"))
            value = rest.popleft() if rest and not bare else "1"
        if name == "name" and value == "global":
            current = shared
        elif name == "name":
            current = dict(shared)
            jobs.append(current)
            current["name"] = value
        else:
            current[name] = value
    for number, job in enumerate(jobs):
        if not number:
            job.pop("stonewall", None)
        yield _job(job)


def _job(job: dict[str, str]) -> JobSpec:
    base = int(job.get("kb_base", "1024"))
    mode = job.get("rw", "read").partition(":")[0]
    if mode not in _MODES or "bsrange" in job or "bssplit" in job:
        raise _Untold(mode)
    reads, writes = (_bytes(block, base) for block in _blocks(job.get("bs", "4k")))
    size, amount = (job.get(name) for name in ("size", "io_size"))
    share = [name for name in ("size", "io_size") if job.get(name, "").endswith("%")]
    size_bytes, io_bytes = (
        None if text is None or text.endswith("%") else _bytes(text, base)
        for text in (size, amount)
    )
    runtime = job.get("runtime")
    mix = 100 - int(job["rwmixwrite"]) if "rwmixwrite" in job else int(job.get("rwmixread", "50"))
    synced = job.get("sync", "0") not in ("0", "none")
    spec = JobSpec(
        rw=mode,
        bs_bytes=reads,
        numjobs=int(job.get("numjobs", "1")),
        iodepth=int(job.get("iodepth", "1")),
        direct=job.get("direct", "0") != "0" or job.get("buffered") == "0",
        size_bytes=size_bytes if size is not None else io_bytes,
        runtime_s=_seconds(runtime) if runtime is not None else None,
        name=job["name"],
        ioengine=job.get("ioengine", "psync"),
        number_ios=int(job["number_ios"]) if "number_ios" in job else None,
        rwmixread=mix,
        fsync=int(job.get("fsync", job.get("fdatasync", "1" if synced else "0"))),
        end_fsync=job.get("end_fsync", "0") != "0",
        filename=job.get("filename"),
        directory=job.get("directory"),
        time_based=job.get("time_based", "0") != "0",
        offset_bytes=_bytes(job.get("offset", "0"), base),
        offset_increment_bytes=_bytes(job.get("offset_increment", "0"), base),
        io_bytes=io_bytes,
    )
    beyond = [*_beyond(job), *share]
    if spec.direction == "write":
        spec = replace(spec, bs_bytes=writes)
    elif spec.direction == "mixed" and reads != writes:
        beyond.append("bs")
    return replace(spec, beyond=tuple(beyond))


def _beyond(job: dict[str, str]) -> Iterator[str]:
    """Options of a job that change its I/O beyond the fields of a JobSpec."""
    for name, without_effect in _BEYOND.items():
        if name in job and job[name] not in without_effect:
            yield name
    if ":" in job.get("rw", "") or "trim" in job.get("rw", ""):
        yield "rw"
    if job.get("ioengine", "psync") not in _ENGINES:
        yield "ioengine"


def _blocks(text: str) -> tuple[str, str]:
    """Block sizes of reads and writes; fio's default, 4 KiB, for one that is left out."""
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise _Untold("bs")
    reads = parts[0] or "4k"
    return reads, reads if len(parts) == 1 else parts[1] or "4k"


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
