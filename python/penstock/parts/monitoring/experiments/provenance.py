"""Provenance of a monitored command: its arguments, its files, and its host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.archive.bundle import plain_argv
from penstock.errors import BadInput
from penstock.host.probe.facts import host_facts

#: facts that a server takes, as JSON
MOST_FACTS_BYTES = 64 << 10
#: of them what words of a command may take, where they are too many
_MOST_ARGV_BYTES = 32 << 10


def facts_of_command(argv: Sequence[str], config: Path | None = None) -> dict[str, Any]:
    """For a manifest: `command`, and `files`: path, size and SHA-256 of its executable and of `config`."""
    executable = shutil.which(argv[0])
    named = {"executable": None if executable is None else Path(executable), "config": config}
    files = {role: _about(path) for role, path in named.items() if path is not None}
    return {
        "command": plain_argv([*argv]),
        "files": {role: one for role, one in files.items() if one},
    }


def for_server(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with those of this host, within a server's limit; `command_left_out` counts omitted arguments."""
    complete = {"host": host_facts(), **facts}
    if len(json.dumps(complete)) <= MOST_FACTS_BYTES:
        return complete
    argv, budget = [], _MOST_ARGV_BYTES
    for argument in complete.get("command", ()):
        budget -= len(json.dumps(argument))
        if budget < 0:
            break
        argv.append(argument)
    return {**complete, "command": argv, "command_left_out": len(complete["command"]) - len(argv)}


def checked_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a client. BadInput for too many of them, and for numbers that are not finite."""
    try:
        text = json.dumps(dict(facts), default=float, allow_nan=False)
    except ValueError:
        raise BadInput("found facts with a number that JSON lacks; expected finite ones") from None
    if len(text) > MOST_FACTS_BYTES:
        raise BadInput(f"found {len(text)} bytes of facts; expected {MOST_FACTS_BYTES} at most")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def _about(path: Path) -> dict[str, Any] | None:
    """Facts of a regular file; None if it is not one or cannot be read."""
    try:
        # do not wait for the writer of a pipe
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
    return {"path": plain_argv([path.resolve()])[0], "size_bytes": status.st_size, "sha256": digest}
