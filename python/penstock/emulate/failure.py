"""Failures of the parts of something that is up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A part that others depend on (`relay`, `disk server`, …) and does not work, in words; its process if it
    has one."""

    part: str
    words: str
    pid: int | None = None
