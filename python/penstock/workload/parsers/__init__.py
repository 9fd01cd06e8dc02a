"""Parsers: what a program reports of its own run. One file each, a row of `plugins.WORKLOAD_PARSERS`.

Protocol of a parser module:

- `RESPONSES: dict[str, str]`: what it can give, with units (`wall_s` comes with every parser);
- `parse(run_dir, stdout, stderr, wall_s) -> dict[str, Measured]`: called once after a run that ended
  well; `run_dir` is what templates call `{run_dir}`; PenstockError if the program did not report;
- `operations(command) -> list[JobSpec] | None`: what I/O the command line asks for, None if
  that cannot be told.
"""

from __future__ import annotations

from typing import cast

from penstock.plugins import WORKLOAD_PARSERS
from penstock.workload.measured import JobSpec, Measured, ParserModule

__all__ = ["JobSpec", "Measured", "ParserModule", "parser"]


def parser(name: str) -> ParserModule:
    """The parser called `name`; BadInput if there is none."""
    return cast(ParserModule, WORKLOAD_PARSERS.load(name))
