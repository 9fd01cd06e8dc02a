"""Commands of tasks in descriptions of workloads: `command: {program, arguments}`, as in WfFormat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.parts.prediction.workloads.formats.document import Document, shown
from penstock.parts.prediction.workloads.task import Command
from penstock.spec.source import Path

#: longest argument list that execve(2) surely accepts [bytes], and most arguments
_MOST_BYTES, _MOST_ARGUMENTS = 128 * 1024, 10_000


def command_of(
    document: Document, path: Path, row: Mapping[str, Any], whose: str
) -> Command | None:
    """The command of a task at `path`; None without one, or without a program. Records mistakes."""
    values = row.get("command")
    if values is None:
        return None
    if not isinstance(values, Mapping):
        expected = f"an object with `program` and `arguments` as `command` of {whose}"
        document.mistake((*path, "command"), shown(values), expected)
        return None
    program, arguments = values.get("program"), values.get("arguments") or []
    if program is None or program == "":
        return None
    if not isinstance(program, str) or "\0" in program:
        place = (*path, "command", "program")
        document.mistake(place, shown(program), f"the name of a program, of {whose}")
        return None
    if not isinstance(arguments, list) or any(
        not isinstance(one, str | int | float) or "\0" in str(one) for one in arguments
    ):
        place = (*path, "command", "arguments")
        document.mistake(place, shown(arguments), f"a list of texts as `arguments` of {whose}")
        return None
    for k, one in enumerate(arguments):
        # YAML reads 1.10 as 1.1
        if isinstance(one, bool) or (isinstance(one, float) and document.source is not None):
            place = (*path, "command", "arguments", k)
            document.mistake(place, shown(one), f"a text in quotes, an argument of {whose}")
    texts = tuple(str(one) for one in arguments)
    size = sum(len(one.encode(errors="surrogatepass")) + 1 for one in texts)
    if len(texts) > _MOST_ARGUMENTS or size > _MOST_BYTES:
        actual = f"{len(texts):,} arguments of {size:,} bytes"
        expected = f"at most {_MOST_ARGUMENTS:,}, of {_MOST_BYTES:,} bytes, of {whose}"
        document.mistake((*path, "command", "arguments"), actual, expected)
    return Command(program, texts)
