"""Jobs of Snakemake as jobs of `penstock.parts.stores.snakemake.job_runner`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor

from penstock.errors import PenstockError
from penstock.parts.stores.snakemake.job_hints import GraphJob, Tags, tags_by_file
from penstock.parts.stores.snakemake.job_records import JobRecords
from penstock.parts.stores.snakemake.job_runner import Job, JobEnd, JobRunner
from penstock.parts.stores.snakemake.measured_jobs import measured
from penstock.parts.stores.snakemake.slots import Slots
from penstock.parts.stores.workflow.running.task_lines import log_name
from snakemake_executor_plugin_penstock.job_command import (
    environment,
    is_direct,
    shell_command,
    taggable,
)

if TYPE_CHECKING:
    from penstock.parts.stores.snakemake.hint_choice import HintChoice

#: lines of a failed job's output in Snakemake's message
_LAST_LINES = 20
#: interval between two looks for an output that another node has just written [s]
_LOOK_EVERY_S = 0.02


class Bridge:
    """The runner of an executor, and the hints of its workflow."""

    def __init__(self, executor: RealExecutor) -> None:
        """Start the runner. Raises WorkflowError for a working directory outside of the store."""
        self._executor, self._workflow = executor, executor.workflow
        settings = self._workflow.executor_settings
        view = settings.view
        self._records_dir = Path(settings.records)
        by_data = settings.scheduler == "data-location"
        self._choice: HintChoice | None = None
        try:
            self._workdir = view.inside(os.getcwd())
            slots = Slots(view.slots(settings.slots), by_data)
            if settings.hints == "auto":
                from penstock.parts.stores.snakemake.hint_choice import HintChoice

                self._choice = HintChoice.of_store(
                    view, slots.total, self._records_dir, by_data=by_data
                )
        except PenstockError as error:
            raise WorkflowError(f"penstock: {error}") from None
        stamp = time.strftime("%Y-%m-%dT%H%M%S")
        self._records = JobRecords(self._records_dir / f"jobs-{stamp}-{os.getpid()}.jsonl")
        self._runner = JobRunner(view.store, slots, self._records)
        self._store = view.store
        self._hinted = settings.hints != "never"
        self._tags: dict[str, Tags] = {}
        self._graph_size = -1

    def run(self, job: Any) -> None:
        """Submit a job, and report its end to Snakemake."""
        direct = is_direct(job, self._workflow)
        if direct:
            self._workflow.async_run(_prepare(job))
        info = SubmittedJobInfo(job=job)
        self._executor.report_job_submission(info)
        self._runner.submit(self._described(job, direct), lambda end: self._ended(info, end))

    def _described(self, job: Any, direct: bool) -> Job:
        rule = job.groupid if job.is_group() else job.rule.name
        command = shell_command(job) if direct else ("/bin/sh", "-c", self._spawned(job))
        return Job(
            name=f"{rule}-{job.jobid}-{job.attempt}",
            rule=rule,
            argv=command,
            cwd=self._workdir,
            env=environment(job.threads),
            threads=job.threads,
            inputs=self._paths(job.get_wait_for_files()),
            outputs=self._paths(job.output),
            tags=self._tags_of(job),
            asks=not direct,
            patience_s=self._workflow.execution_settings.latency_wait,
        )

    def _spawned(self, job: Any) -> str:
        return str(self._executor.format_job_exec(job))

    def _paths(self, files: Any) -> tuple[str, ...]:
        return tuple(os.path.join(self._workdir, str(f)) for f in files)

    def _tags_of(self, job: Any) -> dict[str, Tags]:
        """Tags of a job's outputs, from the current graph, which checkpoints extend."""
        files = self._paths(taggable(job)) if self._hinted else ()
        if not files:
            return {}
        dag = self._executor.dag
        jobs = [j for j in dag.needrun_jobs(exclude_finished=False) if not j.is_norun]
        if len(jobs) != self._graph_size:
            self._graph_size = len(jobs)
            self._tags = self._tags_of_graph([self._graph_job(j) for j in jobs])
        return {path: self._tags[path] for path in files if path in self._tags}

    def _graph_job(self, job: Any) -> GraphJob:
        return GraphJob(
            f"{job.rule.name}-{job.jobid}",
            self._paths(job.input),
            self._paths(job.output),
            job.rule.name,
            () if job.is_local else self._paths(taggable(job)),
            job.is_local,
        )

    def _tags_of_graph(self, jobs: list[GraphJob]) -> dict[str, Tags]:
        """Tags by file; the reasons of a choice are logged."""
        if self._choice is None:
            return tags_by_file(jobs, len(self._store.roles.storage))
        written = {path for job in jobs for path in job.outputs}
        inputs = {path for job in jobs for path in job.inputs} - written
        mount = f"{self._store.spec.mount}/"
        sizes = {
            p: os.path.getsize(p)
            for p in sorted(inputs)
            if p.startswith(mount) and os.path.isfile(p)
        }
        recent = [measured(row) for row in self._records.rows if row.status == 0]
        tags, reasons = self._choice.tags(jobs, sizes, recent)
        for reason in reasons:
            self._executor.logger.info(f"penstock: {reason}")
        return tags

    def _ended(self, info: SubmittedJobInfo, end: JobEnd) -> None:
        """Report the end of a job; keep its output."""
        logs = []
        if end.output:
            # names of rules and groups are any text
            log = self._records_dir / "logs" / f"{log_name(end.record.job)}.log"
            with contextlib.suppress(OSError):  # a full disk does not make the job a failed one
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(end.output, encoding="utf-8")
                logs.append(str(log))
        if not end.error:
            self._await_outputs(info.job)
            self._executor.report_job_success(info)
            return
        lines = "".join(f"\n    {line}" for line in end.output.splitlines()[-_LAST_LINES:])
        where = f" on {end.record.node}" if end.record.node else ""
        message = f"penstock: {end.error}{where}{lines}\n"
        self._executor.report_job_error(info, msg=message, aux_logs=logs)

    def _await_outputs(self, job: Any) -> None:
        """Wait until this process sees the outputs; Snakemake looks for them once a second only."""
        patience_s = self._workflow.execution_settings.latency_wait
        paths, until = self._paths(job.output), time.monotonic() + patience_s
        while time.monotonic() < until and not all(map(os.path.lexists, paths)):
            time.sleep(_LOOK_EVERY_S)

    def cancel(self) -> None:
        """Kill the jobs."""
        self._runner.cancel()

    def close(self) -> None:
        """End the programs of the nodes, and print the summary."""
        self._runner.close()
        if self._records.rows:
            self._executor.logger.info(f"penstock: {self._records.summary()}")


async def _prepare(job: Any) -> None:
    """Remove the outputs of an earlier run and create directories for new ones, as Snakemake does."""
    await job.check_protected_output()
    await job.remove_existing_output()
    for file in (*job.output, *job.log):
        file.prepare()
