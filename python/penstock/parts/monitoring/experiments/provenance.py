"""What a monitored command was: its words, the files that it was made of, and the host that it ran on."""

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
_MOST_WORDS_BYTES = 32 << 10


def facts_of_command(words: Sequence[str], config: Path | None = None) -> dict[str, Any]:
    """For a manifest: `command`, and `files`: path, size and SHA-256 of its executable and of `config`."""
    found = shutil.which(words[0])
    named = {"executable": None if found is None else Path(found), "config": config}
    files = {role: _about(path) for role, path in named.items() if path is not None}
    return {
        "command": plain_argv([*words]),
        "files": {role: one for role, one in files.items() if one},
    }


def for_server(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with those of this host, cut to what a server takes: `command_left_out` counts words."""
    said = {"host": host_facts(), **facts}
    if len(json.dumps(said)) <= MOST_FACTS_BYTES:
        return said
    words, room = [], _MOST_WORDS_BYTES
    for word in said.get("command", ()):
        room -= len(json.dumps(word))
        if room < 0:
            break
        words.append(word)
    return {**said, "command": words, "command_left_out": len(said["command"]) - len(words)}


def checked_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a client. BadInput for too many of them."""
    text = json.dumps(dict(facts), default=float)
    if len(text) > MOST_FACTS_BYTES:
        raise BadInput(f"found {len(text)} bytes of facts; expected {MOST_FACTS_BYTES} at most")
    found: dict[str, Any] = json.loads(text)
    return found


def _about(path: Path) -> dict[str, Any] | None:
    """Of an ordinary file; None where it is none, or not to be read."""
    try:
        # not what would wait for a writer
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return None
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
    return {"path": plain_argv([path.resolve()])[0], "size_bytes": found.st_size, "sha256": digest}
