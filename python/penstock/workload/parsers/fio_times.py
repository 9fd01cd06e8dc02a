"""Run time of the jobs of a fio report: concurrent, or group after group.

A group (`groupid`) begins with `stonewall`, after all preceding jobs, or with `new_group`, concurrently. The
report distinguishes them in one of three ways: by the start of each job (fio 3.36), by the option of the job,
if given as `stonewall=1`, or by the elapsed time, which must fit exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from penstock.workload.parsers.fio_report import DIRECTIONS

#: overhead of fio: constant [s], and as a share of the time of sequential jobs
_START_S, _START_SHARE = 2.0, 0.1
#: overhead with concurrent jobs [s]; the elapsed time is rounded up
_START_BESIDE_S = 1.2
#: share of the longest run time within which starts count as simultaneous
_TOGETHER = 0.1
#: kinds of jobs that read only to verify, and values of `verify` without reads
_WRITES = ("write", "randwrite")
_NO_VERIFY = ("0", "null")

_UNKNOWN = (
    "fio does not say whether its {n} groups of jobs ran one after another; write stonewall=1 or "
    "new_group=1, use fio 3.36, or run each group separately"
)
_DELAYED = "before fio 3.36 a report does not say when a job with {option} ran"


class Times:
    """Times of the jobs of one report; `unknown` is the reason if they cannot be added."""

    def __init__(self, jobs: Sequence[dict[str, Any]], shared: dict[str, Any]) -> None:
        self.unknown = ""
        self._jobs = jobs
        self._options = [{**shared, **(job.get("job options") or {})} for job in jobs]
        self._groups = [int(job.get("groupid", 0)) for job in jobs]
        begins = [job.get("job_start") for job in jobs]
        #: start of each job [ms], if fio reports it
        self._begins = [b for b in begins if isinstance(b, int) and b > 0]
        self._complete = len(self._begins) == len(jobs)
        self._longest = [
            self._runtime(i, [job[d] for d in DIRECTIONS if d in job]) for i, job in enumerate(jobs)
        ]
        #: stage of each group: groups of one stage ran concurrently, stages sequentially
        self._stages = {} if self._complete else self._staged()

    def seconds(self, parts: Sequence[Sequence[dict[str, Any]]]) -> float | None:
        """Seconds with requests of these `parts`, a sequence per job; None if unknown."""
        runtimes = [self._runtime(i, of) for i, of in enumerate(parts)]
        stages = self._together(runtimes)
        return None if stages is None else sum(longest for longest, _ in stages) / 1000

    def _runtime(self, i: int, parts: Sequence[Mapping[str, Any]]) -> int:
        """Run time [ms] of a job in these of its directions: together, but after writes to verify them."""
        runtimes = [p.get("runtime", 0) for p in parts]
        options = self._options[i]
        # the option as a user wrote it, such as `randwrite:8`
        kind = str(options.get("rw", options.get("readwrite", ""))).partition(":")[0]
        after_writes = (
            kind in _WRITES
            and options.get("verify", "0") not in _NO_VERIFY
            and options.get("verify_backlog", "0") == "0"  # verifies between the writes
        )
        return (
            sum(runtimes)
            if after_writes and "mixed" not in self._jobs[i]
            else max(runtimes, default=0)
        )

    def processor_percent(self, key: str) -> float | None:
        """Processor time (`usr_cpu`, `sys_cpu`) of all jobs in per cent of their run time.

        fio's shares are of `job_runtime`, with `group_reporting` the sum over the jobs of a group.
        """
        stages = self._together(self._longest)
        if stages is None:
            return None
        total = sum(longest for longest, _ in stages)
        if not total:
            return sum(float(job.get(key, 0)) for job in self._jobs)
        used = sum(self._processor_ms(i, key) for _, members in stages for i in members)
        return used / total

    def _processor_ms(self, i: int, key: str) -> float:
        job = self._jobs[i]
        return float(job.get(key, 0)) * float(job.get("job_runtime") or self._longest[i])

    def _together(self, runtimes: Sequence[int]) -> list[tuple[float, list[int]]] | None:
        """Concurrent jobs, with their time [ms]; None if the times are unknown."""
        members = [i for i, n in enumerate(runtimes) if n]
        if len(members) < 2:
            return [(runtimes[i], [i]) for i in members]
        if self._complete:
            return _overlapping(
                [(self._begins[i], self._begins[i] + runtimes[i], i) for i in members]
            )
        if self._stages is None:
            return None
        by_stage: dict[int, list[int]] = {}
        for i in members:
            by_stage.setdefault(self._stages[self._groups[i]], []).append(i)
        return [(max(runtimes[i] for i in of), of) for of in by_stage.values()]

    def _staged(self) -> dict[int, int] | None:
        """Stage of each group; None, and `unknown`, if the report does not determine it."""
        waits = [o["wait_for"] for o in self._options if "wait_for" in o]
        delays = {o.get("startdelay", "0") for o in self._options}
        if len(self._jobs) > 1 and (waits or len(delays) > 1):
            self.unknown = _DELAYED.format(option="wait_for" if waits else "startdelay")
            return None
        groups = list(dict.fromkeys(self._groups))
        first = [self._options[self._groups.index(g)] for g in groups[1:]]
        if all("stonewall" in o or "new_group" in o for o in first):
            stages, stage = {groups[0]: 0}, 0
            for group, options in zip(groups[1:], first, strict=True):
                stage += "stonewall" in options
                stages[group] = stage
            return stages
        times = [
            max(n for n, g in zip(self._longest, self._groups, strict=True) if g == group) / 1000
            for group in groups
        ]
        in_turn = self._by_elapsed(times)
        if in_turn is None:
            self.unknown = _UNKNOWN.format(n=len(groups))
            return None
        return {g: i if in_turn else 0 for i, g in enumerate(groups)}

    def _by_elapsed(self, times: Sequence[float]) -> bool | None:
        """True: sequential, False: all concurrent, None: the elapsed time fits both, or neither."""
        elapsed = max(int(job.get("elapsed", 0)) for job in self._jobs)
        every = sum(times)
        # partially concurrent orders: the slowest and the fastest
        slowest = every - min(min(a, b) for a, b in pairwise(times))
        quickest = min(
            (max(times[:i]) + max(times[i:]) for i in range(1, len(times))), default=every
        )
        if every <= elapsed <= every * (1 + _START_SHARE) + _START_S:
            return True if elapsed - slowest > _START_BESIDE_S else None
        if elapsed < quickest:
            return False if max(times) <= elapsed else None
        return None


def _overlapping(intervals: list[tuple[int, int, int]]) -> list[tuple[float, list[int]]]:
    """Overlapping intervals (begin, end, job), with their total time."""
    clusters: list[list[tuple[int, int, int]]] = []
    end = 0
    for one in sorted(intervals):
        if clusters and one[0] < end:
            clusters[-1].append(one)
        else:
            clusters.append([one])
        end = max(end, one[1])
    return [(_taken(of), [i for _, _, i in of]) for of in clusters]


def _taken(of: list[tuple[int, int, int]]) -> float:
    """fio's longest run time; for jobs with different starts, from first start to last end."""
    longest = max(end - begin for begin, end, _ in of)
    begins = [begin for begin, _, _ in of]
    if max(begins) - min(begins) <= _TOGETHER * longest:
        return longest
    return max(end for _, end, _ in of) - min(begins)
