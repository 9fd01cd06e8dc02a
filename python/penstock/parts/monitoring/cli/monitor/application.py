"""What `penstock monitor run` is told to sample besides the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.spec.application import Application


def application(
    processes: bool,
    processes_named: list[str],
    files: list[str],
    metrics: list[str],
    metric_interval_s: float,
) -> Application:
    """The options, checked; paths from here. Raises BadInput."""
    from penstock.spec.application import (
        Application,
        checked_command_interval,
        checked_commands,
        checked_files,
        checked_patterns,
    )

    paths = {name: os.path.abspath(path) for name, path in _named("--file", "PATH", files).items()}
    commands = _named("--metric", "COMMAND", metrics)
    _expect("--processes-named", processes_named, checked_patterns)
    _expect("--file", paths, checked_files)
    _expect("--metric", commands, checked_commands)
    _expect("--metric-interval", metric_interval_s, checked_command_interval)
    return Application(
        processes=processes,
        processes_named=tuple(processes_named),
        files=paths,
        metrics=commands,
        metric_interval_s=metric_interval_s,
    )


def lacking(receipt: Mapping[str, Any]) -> Iterator[str]:
    """What was not sampled of processes, commands and sources, in words."""
    processes = receipt.get("process") or {}
    if left_out := processes.get("most_not_sampled"):
        yield f"{left_out} processes were not sampled: there is room for {processes['most']}"
    for name, told in (receipt.get("command") or {}).items():
        failed = {why.replace("_", " "): n for why, n in told.items() if why != "runs"}
        if failed:
            said = ", ".join(f"{n} {why}" for why, n in sorted(failed.items()))
            yield f"metric {name}: of {told['runs']} runs {said}"
    for name, told in (receipt.get("sources") or {}).items():
        if told.get("failed"):
            yield f"source {name}: {told['failed']} of {told['readings']} readings failed"


def _named(option: str, what: str, said: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise BadInput(f"{option}: found {text!r}; expected NAME={what}")
        if name in found:
            raise BadInput(f"{option}: found {name!r} twice; expected each name once")
        found[name] = value
    return found


def _expect(option: str, said: Any, check: Callable[[Any], object]) -> None:
    try:
        check(said)
    except ValueError as error:
        found = list(said) if isinstance(said, dict) else said
        raise BadInput(f"{option}: found {found!r}; expected {error}") from None
