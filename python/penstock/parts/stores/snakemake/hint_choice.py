"""Hints of a workflow of jobs that pay according to the prediction: `--penstock-hints auto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.parts.prediction.workloads.task import (
    File,
    Hints,
    Operation,
    Task,
    compute,
    full_reads,
    full_writes,
)
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.snakemake.job_hints import GraphJob, Tags, tags_of_written
from penstock.parts.stores.snakemake.measured_jobs import MeasuredJob, Measurements, earlier_jobs
from penstock.parts.stores.snakemake.store_view import StoreView
from penstock.parts.stores.workflow.benefit import chosen_hints
from penstock.platform.hosts import Platform
from penstock.spec.store import Support
from penstock.text import first_of, listed

#: rules that a message names
_NAMED = 10


@dataclass(frozen=True)
class HintChoice:
    """Choice of hints by their predicted gain on a platform; `support`: that of its store.

    `earlier`: jobs of earlier runs, whose records are in `directory`.
    """

    platform: Platform
    support: Mapping[str, Support]
    directory: Path
    earlier: Sequence[MeasuredJob]

    @classmethod
    def of_store(
        cls, view: StoreView, slots: Mapping[str, int], directory: Path, *, by_data: bool
    ) -> HintChoice:
        """The choice for a store with these slots of each client node. BadInput without a platform file."""
        platform = view.predicted(slots, by_data=by_data)
        return cls(platform, view.store.support(), directory, earlier_jobs(directory))

    def tags(
        self, jobs: Sequence[GraphJob], sizes: Mapping[str, int], recent: Iterable[MeasuredJob]
    ) -> tuple[dict[str, Tags], list[str]]:
        """Tags by file, and the reason of each decision.

        `sizes`: bytes of the inputs that no job writes; `recent`: jobs of this run. Without measurements of
        all rules there are no tags.
        """
        measurements = Measurements([*self.earlier, *recent])
        lacking = measurements.lacking(jobs)
        if lacking:
            names = listed(first_of(lacking, _NAMED))
            reason = f"no run with records in {self.directory} has measured the rules {names}"
            return {}, [f"no hints: {reason}"]
        workload = workload_of(jobs, sizes, measurements)
        try:
            workload, decisions = chosen_hints(workload, self.platform, self.support)
        except PenstockError as error:  # the workflow runs on without them
            return {}, [f"no hints: their gain cannot be predicted: {error}"]
        return tags_of_written(workload), [str(one) for one in decisions]


def workload_of(
    jobs: Sequence[GraphJob], sizes: Mapping[str, int], measurements: Measurements
) -> Workload:
    """The graph with sizes and run times. Outputs that may have no hints have empty ones."""
    written = {
        path: measurements.size_bytes(job, path) or 0 for job in jobs for path in job.outputs
    }
    tagged = {path for job in jobs for path in job.taggable}
    files = [File(path, size, preloaded=True) for path, size in sizes.items()]
    files += [File(path, hints=Hints()) for path in written if path not in tagged]
    tasks = []
    for job in jobs:
        inputs = dict.fromkeys(job.inputs)  # a job may name one twice
        reads = [(p, s) for p in inputs if (s := written.get(p, sizes.get(p))) is not None]
        work = (
            *full_reads(reads),
            *compute(0.0 if job.local else measurements.seconds(job) or 0.0),
            *full_writes([(path, written[path]) for path in job.outputs]),
        )
        tasks.append(Task(job.name, work or (Operation("compute"),), job.rule))
    return Workload("jobs", tuple(files), tuple(tasks))
