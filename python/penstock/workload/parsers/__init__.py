"""Parsers of programs' reports. One file each, a row of `plugins.WORKLOAD_PARSERS`.

Protocol of a parser module:

- `RESPONSES: dict[str, str]`: available responses, with units (every parser has `wall_s`);
- `parse(run_dir, stdout, stderr, wall_s) -> dict[str, Measured]`: called once after a run that ended
  well; `run_dir` is `{run_dir}` of templates; PenstockError without a report of the program;
- `operations(command) -> list[JobSpec] | None`: declared I/O of the command line, None if undetermined.
"""

from __future__ import annotations

from typing import cast

from penstock.plugins import WORKLOAD_PARSERS
from penstock.workload.measured import JobSpec, Measured, ParserModule

__all__ = ["JobSpec", "Measured", "ParserModule", "parser"]


def parser(name: str) -> ParserModule:
    """The parser called `name`; BadInput if unknown."""
    return cast(ParserModule, WORKLOAD_PARSERS.load(name))
