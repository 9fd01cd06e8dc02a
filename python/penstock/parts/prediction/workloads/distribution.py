"""Distributions of times in workloads, as defined by the compiled module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.task import Time
from penstock.profile.model import SCHEMA_ID, StorageProfile


def _profile(distribution: Mapping[str, Any]) -> StorageProfile:
    """A storage whose service time has that distribution."""
    kind = {"overhead": dict(distribution)}
    both = {"sequential": kind, "random": kind}
    values = {"schema": SCHEMA_ID, "name": "time", "servers": 1, "read": both, "write": both}
    return StorageProfile.from_dict(values)


def wrong_with(distribution: Mapping[str, Any]) -> str:
    """Error of a distribution's fields; empty if valid."""
    try:
        _profile(distribution)
    except (BadInput, ValueError) as error:
        mistakes = getattr(error, "mistakes", [])
        text = mistakes[0].found if mistakes else str(error)
        return text.removeprefix("read.sequential.overhead").lstrip(". ") or "no distribution"
    return ""


def mean_s(time: Time) -> float:
    """Mean of a time in seconds."""
    if isinstance(time, Mapping):
        if time.get("kind") == "constant":
            return float(time["value_s"])
        return _profile(time).moments("read", True, 0).mean
    return float(time)
