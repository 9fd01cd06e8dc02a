"""Tasks in the format of a node's agent, and the outputs of their programs as files."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.parts.prediction.workloads.task import Task
from penstock.parts.stores.hints import attribute
from penstock.parts.stores.workflow.hints import tags_of
from penstock.parts.stores.workflow.running.journal import Row
from penstock.parts.stores.workflow.running.run_files import RunFiles, outputs_of

_FORBIDDEN = re.compile(r"[^0-9a-zA-Z_.#:-]")
_LONGEST_NAME = 150


@dataclass(frozen=True)
class TaskLines:
    """Lines of tasks: programs with their directory, environment and outputs; or operations.

    `speeds`: compute speed of a host (default: 1). `keep_cache`: data that tasks write may stay in the page
    cache of their node. `journal`: processes of programs append their entries themselves.
    """

    files: RunFiles
    mount: str
    keep_cache: bool = False
    speeds: Mapping[str, float] | None = None
    checksums: bool = False
    journal: bool = False

    def line(self, task: Task, host: str, echo: Row, *, keep_cache: bool | None = None) -> Row:
        """A task for the agent of a host. The answer repeats the fields of `echo`."""
        line: Row = {
            "task": task.name,
            "echo": echo,
            "keep_cache": self.keep_cache if keep_cache is None else keep_cache,
            "launch_s": task.launch or 0.0,
            "journal": self.journal,
        }
        if task.command is not None or self.journal:
            line["outputs"] = [self.files.inside(name) for name in outputs_of(task)]
            line["partial"] = [self.files.inside(name) for name in self.files.removable(task)]
        if task.command is not None:
            return line | self._program(task, host, echo)
        return line | {"operations": self._operations(task, host)}

    def _program(self, task: Task, host: str, echo: Row) -> Row:
        assert task.command is not None
        place = self.files.place
        return {
            "argv": task.command.argv,
            "cwd": place,
            "env": {
                "PENSTOCK_TASK": task.name,
                "PENSTOCK_ATTEMPT": str(echo["attempt"]),
                "PENSTOCK_NODE": host,
                "PENSTOCK_STORE": self.mount,
                "PENSTOCK_RUN": place,
            },
            "checksums": self.checksums,
        }

    def _operations(self, task: Task, host: str) -> list[Row]:
        operations = []
        for one in task.operations:
            row: Row = {"op": one.op}
            if one.op == "compute":
                assert isinstance(one.seconds, int | float)
                row["seconds"] = one.seconds / (self.speeds or {}).get(host, 1.0)
            elif one.file is not None:
                row |= {"path": self.files.inside(one.file)}
                row |= {"offset_bytes": one.offset_bytes, "size_bytes": one.size_bytes}
            if one.op == "set_xattr":
                row["attributes"] = {attribute(k): v for k, v in tags_of(one.hints).items()}
            operations.append(row)
        return operations


def save_texts(place: Path | None, answer: Row) -> None:
    """Write the outputs of a task's program to files `TASK.out` and `TASK.err`, if they are not empty.

    Those of further attempts are `TASK.out.2`: names of tasks may contain dots.
    """
    for key, end in (("stdout", "out"), ("stderr", "err")):
        text = answer.pop(key, "")  # also without a place: answers stay in memory
        if text and place is not None:
            number = answer.get("attempt", 1)
            attempt = "" if number == 1 else f".{number}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=0o700, exist_ok=True)
            path = place / f"{log_name(answer['task'])}.{end}{attempt}"
            path.write_text(text, encoding="utf-8", errors="surrogateescape")


def log_name(task: str) -> str:
    """Name of a task as a file name; distinct tasks have distinct names."""
    plain = _FORBIDDEN.sub("_", task)[:_LONGEST_NAME]
    if plain == task and not plain.startswith((".", "_")):
        return plain
    return f"_{plain}.{zlib.crc32(task.encode(errors='surrogateescape')):08x}"
