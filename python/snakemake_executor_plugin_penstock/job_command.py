"""The command of a job: its shell command, or else another Snakemake."""

from __future__ import annotations

import os
from typing import Any

from snakemake.io import is_flagged
from snakemake.shell import shell

#: flags of outputs that Snakemake treats in a special way on the node
_SPECIAL = ("pipe", "service", "update")
#: and those that are no file which the command writes
_NO_FILE = (*_SPECIAL, "directory", "touch")
#: numbers of threads of common libraries, which Snakemake sets for shell commands
_THREADS = ("OMP", "GOTO", "OPENBLAS", "MKL", "VECLIB", "NUMEXPR")


def is_direct(job: Any, workflow: Any) -> bool:
    """True if the job is a shell command for which nothing else is to be done on its node."""
    if job.is_group() or not job.is_shell or job.is_shadow or job.benchmark is not None:
        return False
    if job.is_containerized or job.env_modules or workflow.deployment_settings.deployment_method:
        return False
    if any(is_flagged(f, flag) for f in job.output for flag in _SPECIAL):
        return False
    if any(f.is_storage for f in (*job.input, *job.output)):
        return False
    if workflow.workflow_settings.cache is not None and job.rule.cache:
        return False
    # the temporary directory is that of the node, which only a Snakemake there can insert
    return "tmpdir" not in job.rule.shellcmd


def taggable(job: Any) -> list[Any]:
    """Outputs that may exist, empty, before the command starts."""
    if job.is_group() or job.is_shadow:
        return []
    return [f for f in job.output if not any(is_flagged(f, flag) for flag in _NO_FILE)]


def shell_command(job: Any) -> tuple[str, ...]:
    """Argument vector of a job's shell command, with the prefix and suffix of the workflow."""
    executable = job.resources.get("shell_exec") or shell.get_executable() or "/bin/sh"
    prefix, suffix = shell._get_process_prefix(executable), shell._process_suffix
    return (executable, "-c", f"{prefix} {job.shellcmd} {suffix}".strip())


def environment(threads: int) -> dict[str, str]:
    """Environment of a job: that of this process, with the number of its threads."""
    own = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
    return {**own, **{f"{name}_NUM_THREADS": str(threads) for name in _THREADS}}
