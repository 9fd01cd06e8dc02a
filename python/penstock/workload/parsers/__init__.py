"""Parsers: what a program reports of its own run. One file each, found by name.

Protocol of a parser module:

- `RESPONSES: dict[str, str]`: what it can give, with units (`wall_s` comes with every parser);
- `parse(run_dir, stdout, stderr, wall_s) -> dict[str, Measured]`: called once after a run that ended
  well; `run_dir` is what templates call `{run_dir}`; PenstockError if the program did not report;
- `operations(command) -> list[JobSpec] | None`: what I/O the command line asks for, None if
  that cannot be told.
"""

from __future__ import annotations

import importlib
from typing import cast

from penstock.workload.measured import JobSpec, Measured, ParserModule

__all__ = ["NAMES", "JobSpec", "Measured", "ParserModule", "parser"]

#: name in the study file → module
_MODULES = {"fio": "fio", "pgbench": "pgbench", "none": "wall", "wall": "wall"}
NAMES = tuple(_MODULES)


def parser(name: str) -> ParserModule:
    """The parser called `name`; KeyError if there is none."""
    return cast(ParserModule, importlib.import_module(f"{__name__}.{_MODULES[name]}"))
