"""Engines packaged by Debian: missing programs and their installation."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from penstock.host.nodes.spawner import PATH


def missing(programs: Iterable[str], packages: str) -> str:
    """A program missing for nodes, with the command that installs all; empty if none."""
    lacking = [program for program in programs if shutil.which(program, path=PATH) is None]
    return absent(lacking[0], packages) if lacking else ""


def absent(what: str, packages: str) -> str:
    """Message that a program is missing, with the command that installs it."""
    return f"no {what} here; `apt-get install {packages}`"
