"""Run times of jobs and sizes of their outputs, from the records of earlier runs (`job_records`)."""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from penstock.parts.prediction.workloads.sizes import suffix_of
from penstock.parts.stores.snakemake.job_hints import GraphJob
from penstock.parts.stores.snakemake.job_records import RECORDS, JobRecord
from penstock.spec.units import MOST_BYTES


@dataclass(frozen=True)
class MeasuredJob:
    """A job that succeeded: run time [s], with input and output, and bytes of its outputs by path."""

    rule: str
    seconds: float
    outputs: Mapping[str, int]


class Measurements:
    """Run times and sizes: of the last job with an output of that path, else the mean of its rule.

    Sizes of outputs of one rule differ by the suffix of their names.
    """

    def __init__(self, jobs: Iterable[MeasuredJob]) -> None:
        self._jobs: dict[tuple[str, str], float] = {}
        self._files: dict[tuple[str, str], int] = {}
        of_rule, of_kind = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
        for job in jobs:
            of_rule[job.rule].append(job.seconds)
            for path, size in job.outputs.items():
                self._jobs[job.rule, path] = job.seconds
                self._files[job.rule, path] = size
                of_kind[_kind(job.rule, path)].append(size)
        self._of_rule = {rule: fmean(values) for rule, values in of_rule.items()}
        self._of_kind = {kind: round(fmean(values)) for kind, values in of_kind.items()}

    def seconds(self, job: GraphJob) -> float | None:
        """Run time of a job; None if none of its rule was measured."""
        same = (self._jobs.get((job.rule, path)) for path in job.outputs)
        return next((s for s in same if s is not None), self._of_rule.get(job.rule))

    def size_bytes(self, job: GraphJob, path: str) -> int | None:
        """Bytes of an output of a job; None if none of its kind was measured."""
        return self._files.get((job.rule, path), self._of_kind.get(_kind(job.rule, path)))

    def lacking(self, jobs: Iterable[GraphJob]) -> list[str]:
        """Rules of jobs without measured run time, or size of an output that may have hints."""
        return sorted(
            {
                job.rule
                for job in jobs
                if not job.local
                and (
                    self.seconds(job) is None
                    or any(self.size_bytes(job, path) is None for path in job.taggable)
                )
            }
        )


def measured(record: JobRecord) -> MeasuredJob:
    """Measurements of a job that succeeded."""
    return MeasuredJob(record.rule, record.ended_s - record.started_s, record.outputs)


def earlier_jobs(directory: Path) -> list[MeasuredJob]:
    """Jobs of all runs with records in a directory, the last run at the end."""
    texts = (path.read_text(errors="replace") for path in sorted(directory.glob(RECORDS)))
    return [job for text in texts for job in jobs_of(text)]


def jobs_of(text: str) -> Iterator[MeasuredJob]:
    """Jobs of a table of records that succeeded; lines without these values are skipped."""
    for line in text.split("\n"):
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            row = json.loads(line)
            seconds = float(row["ended_s"]) - float(row["started_s"])
            sizes = {str(path): int(size) for path, size in dict(row["outputs"]).items()}
            valid = math.isfinite(seconds) and seconds >= 0 and row["status"] == 0
            if valid and all(0 <= size <= MOST_BYTES for size in sizes.values()):
                yield MeasuredJob(str(row["rule"]), seconds, sizes)


def _kind(rule: str, path: str) -> str:
    return f"{rule} {suffix_of(path)}"
