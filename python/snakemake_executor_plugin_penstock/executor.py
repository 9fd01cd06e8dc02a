"""Executor of Snakemake; what it needs of penstock is imported when a run begins.

Every Snakemake on the host imports all its plug-ins, on the nodes for each job.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import ExecMode

if TYPE_CHECKING:
    from snakemake_executor_plugin_penstock.bridge import Bridge


class Executor(RealExecutor):  # type: ignore[misc]
    """Runs jobs on the client nodes of the store of `ExecutorSettings`."""

    def __post_init__(self) -> None:
        """Start the runner. Raises WorkflowError for a working directory outside of the store."""
        from snakemake_executor_plugin_penstock.bridge import Bridge

        self._bridge: Bridge = Bridge(self)

    @property
    def cores(self) -> str:
        """Limit of threads of another Snakemake on a node: none, as the job has its own number."""
        return "all"

    def get_exec_mode(self) -> ExecMode:
        """Jobs of another Snakemake are remote."""
        return ExecMode.REMOTE

    def get_python_executable(self) -> str:
        """This Python, as the nodes have the software of the host, and the module before Snakemake."""
        return f"{sys.executable} -m snakemake_executor_plugin_penstock.job_step"

    def run_job(self, job: JobExecutorInterface) -> None:
        """Hand a job to the runner."""
        self._bridge.run(job)

    def shutdown(self) -> None:
        """End the programs of the nodes, and print the summary."""
        self._bridge.close()

    def cancel(self) -> None:
        """Kill the jobs."""
        self._bridge.cancel()
        self.shutdown()
