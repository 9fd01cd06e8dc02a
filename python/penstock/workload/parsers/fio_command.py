"""Declared I/O of fio's command line."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator

from penstock.workload.measured import JobSpec

_NAMES = {"readwrite": "rw", "blocksize": "bs", "rwmixwrite": "rwmixwrite", "io_limit": "io_size"}
#: options without a value
_FLAGS = {"time_based", "group_reporting", "thread", "minimal"}
#: options whose value may be missing at the end of a command
_SWITCHES = {"direct", "end_fsync", "invalidate"}
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
        for arguments in _calls(tokens):
            jobs += _jobs(arguments)
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
