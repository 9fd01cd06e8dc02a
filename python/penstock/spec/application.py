"""Sources of a monitor in addition to the host: processes, files with a number, commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

#: limits of the sampler
MOST_FILES, MOST_COMMANDS, MOST_PATTERNS = 64, 16, 16
#: shortest interval of a command [s]
SHORTEST_COMMAND_S = 1.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
NAME_EXPECTED = (
    "a name of letters, digits, '_', '.' and '-' (at most 64), which begins with a letter or '_'"
)


class Application(BaseModel):
    """Processes of the run, processes of the host by patterns of their names, and numbers by name: paths of
    files, and commands for /bin/sh, which are run every `metric_interval_s`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: bool = False
    processes_named: tuple[str, ...] = ()
    files: dict[str, str] = {}
    metrics: dict[str, str] = {}
    metric_interval_s: float = 1.0


def checked_patterns(patterns: Sequence[str]) -> Sequence[str]:
    """Patterns of process names. ValueError with the expected form."""
    if len(patterns) > MOST_PATTERNS:
        raise ValueError(f"at most {MOST_PATTERNS} patterns")
    for pattern in patterns:
        if not pattern or len(pattern) > 64 or "/" in pattern:
            raise ValueError("patterns of names (* and ?), such as postgres*; a name has no path")
    return patterns


def checked_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """Paths by name. ValueError with the expected form."""
    _names(files, MOST_FILES, "files")
    for path in files.values():
        if not path.startswith("/") or "\0" in path or len(path) > 4095:
            raise ValueError("absolute paths, such as /run/app/queue")
    return files


def checked_commands(commands: Mapping[str, str]) -> Mapping[str, str]:
    """Commands by name. ValueError with the expected form."""
    _names(commands, MOST_COMMANDS, "commands")
    for argv in commands.values():
        if not argv.strip() or "\0" in argv or len(argv) > 4095:
            raise ValueError("commands for /bin/sh, such as 'pgrep -c postgres'")
    return commands


def checked_command_interval(seconds: float) -> float:
    """Interval of commands [s]. ValueError with the expected form."""
    if not SHORTEST_COMMAND_S <= seconds <= 86400:
        raise ValueError("1 s to a day between two runs of a command")
    return seconds


def _names(named: Mapping[str, str], most: int, what: str) -> None:
    if len(named) > most:
        raise ValueError(f"at most {most} {what}")
    if not all(_NAME.fullmatch(name) for name in named):
        raise ValueError(NAME_EXPECTED)
