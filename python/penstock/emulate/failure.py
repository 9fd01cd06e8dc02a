"""Failures of the parts of something that is up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A failed part that others depend on (`relay`, `disk server`, …), and its process if any."""

    part: str
    message: str
    pid: int | None = None
