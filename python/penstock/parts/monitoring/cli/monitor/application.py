"""Options of `penstock monitor run` for sampling besides the host."""

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
    """Messages about processes, commands and sources that were not sampled."""
    processes = receipt.get("process") or {}
    if omitted := processes.get("most_not_sampled"):
        yield f"{omitted} processes were not sampled: there is room for {processes['most']}"
    for name, stats in (receipt.get("command") or {}).items():
        failed = {why.replace("_", " "): n for why, n in stats.items() if why != "runs"}
        if failed:
            failures = ", ".join(f"{n} {why}" for why, n in sorted(failed.items()))
            yield f"metric {name}: of {stats['runs']} runs {failures}"
    for name, stats in (receipt.get("sources") or {}).items():
        if stats.get("failed"):
            yield f"source {name}: {stats['failed']} of {stats['readings']} readings failed"


def _named(option: str, what: str, texts: list[str]) -> dict[str, str]:
    by_name: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise BadInput(f"{option}: found {text!r}; expected NAME={what}")
        if name in by_name:
            raise BadInput(f"{option}: found {name!r} twice; expected each name once")
        by_name[name] = value
    return by_name


def _expect(option: str, value: Any, check: Callable[[Any], object]) -> None:
    try:
        check(value)
    except ValueError as error:
        shown = list(value) if isinstance(value, dict) else value
        raise BadInput(f"{option}: found {shown!r}; expected {error}") from None
