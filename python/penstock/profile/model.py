"""A validated storage profile in Python: its JSON, and the moments of its service times."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import BadInput, Mistake

SCHEMA_ID = "penstock/storage-profile/1"

#: entry of a profile's source for uses that it excludes
NOT_MET = "not to be used: the fit does not meet what was measured"

#: the compiled part, the only implementation of the model
native: Any = importlib.import_module("penstock._native")


@dataclass(frozen=True)
class Moments:
    """Service time of one server in seconds, and the most requests per second of all servers."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    capacity_iops: float


@dataclass(frozen=True)
class StorageProfile:
    """A validated profile; `json` is the input of the disk server and the simulator."""

    json: str

    @classmethod
    def from_json(cls, text: str, where: str = "profile") -> StorageProfile:
        """Validate `text`; BadInput with the line in `where` if it is not a profile."""
        try:
            return cls(native.profile_check(text))
        except ValueError as error:
            message, line, column = (*error.args, None, None)[:3]
            if line is None:
                line, column = _line_of(text, str(message))
            actual, _, expected = str(message).partition("; ")
            if not expected:
                actual, _, expected = str(message).partition(", expected ")
            mistake = Mistake(
                where, line or 1, column or 1, actual, _plain(expected) or "a storage profile"
            )
            raise BadInput(mistakes=[mistake]) from None

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "profile") -> StorageProfile:
        """As `from_json`, from plain values."""
        return cls.from_json(json.dumps(values), where)

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain values."""
        values: dict[str, Any] = json.loads(self.json)
        return values

    @property
    def name(self) -> str:
        return str(self.to_dict()["name"])

    @property
    def time_scale(self) -> float:
        """Factor by which its times have been multiplied; 1 for the device itself."""
        return float(self.to_dict()["time_scale"])

    @property
    def servers(self) -> int:
        """Number of requests served at the same time."""
        return int(self.to_dict()["servers"])

    def moments(self, op: str, sequential: bool, size_bytes: int) -> Moments:
        """Moments of one server's service time for `op` ('read', 'write', 'flush')."""
        return Moments(**native.profile_moments(self.json, op, sequential, size_bytes))

    def quantiles_s(
        self, op: str, sequential: bool, size_bytes: int, p: list[float]
    ) -> list[float]:
        """Quantiles in seconds of one server's service time at the probabilities `p`."""
        quantiles: list[float] = native.profile_quantiles(self.json, op, sequential, size_bytes, p)
        return quantiles

    def scaled(self, time_scale: float) -> StorageProfile:
        """The device slowed by `time_scale`: times multiplied, rates divided; BadInput if not above 0."""
        if not time_scale > 0:
            raise BadInput(f"time_scale {time_scale}: a number above 0 is expected")
        if time_scale == 1:
            return self
        return StorageProfile(native.profile_scaled(self.json, float(time_scale)))


def scaled(profile: StorageProfile, time_scale: float) -> StorageProfile:
    """The device slowed by `time_scale`; its own `time_scale` field is the total factor."""
    return profile.scaled(time_scale)


def _plain(expected: str) -> str:
    for ending in (" is expected", " are expected"):
        expected = expected.removesuffix(ending)
    return expected.replace("`", "")


def _line_of(text: str, message: str) -> tuple[int, int]:
    """Line and column of the field in a message; (1, 1) if the text does not have it."""
    path = message.split(" ", 1)[0]
    at = 0
    for step in path.replace("]", "").replace("[", ".").split("."):
        if step.isdigit():
            continue
        place = text.find(f'"{step}"', at)
        if place < 0:
            break
        at = place
    line = text.count("\n", 0, at) + 1
    return line, at - (text.rfind("\n", 0, at) + 1) + 1


def ruled_out(profile: Mapping[str, Any]) -> list[str]:
    """Uses that a profile's `source` excludes."""
    return [str(row["what"]) for row in profile.get("source") or [] if row.get("where") == NOT_MET]
