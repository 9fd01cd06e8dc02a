"""Snakemake on a node, for a job that is no plain shell command: hints are set before the job writes.

Snakemake removes the outputs of a job first, and files with hints must exist before they are written. So the
job asks for its hints when its outputs are removed, and waits for an answer.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from snakemake import cli
from snakemake.jobs import Job

from penstock.parts.stores.snakemake.node_jobs import HINTS_FD


def main() -> None:
    """Run `-m snakemake ARGUMENT…` of the command line."""
    connection = os.environ.pop(HINTS_FD, "")
    if connection:
        _ask_when_prepared(int(connection))
    cli.main(sys.argv[3:])


def _ask_when_prepared(connection: int) -> None:
    os.set_inheritable(connection, False)
    prepare = Job.prepare

    async def prepare_and_ask(job: Any) -> None:
        await prepare(job)
        os.write(connection, b"?")
        os.read(connection, 1)

    Job.prepare = prepare_and_ask


if __name__ == "__main__":
    main()
