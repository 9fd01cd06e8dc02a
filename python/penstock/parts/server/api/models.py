"""Models of request bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Pattern = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.*?-]+$")]
Word = Annotated[str, Field(max_length=131072, pattern=r"^[^\x00]*$")]
Resource = Literal["disk", "network", "cpu", "memory", "node"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PutUp(_Strict):
    """A cluster to start: text or content of a platform file, or a saved specification."""

    platform: str | dict[str, Any] | None = None
    spec: dict[str, Any] | None = None
    set: list[str] = []
    name: Name | None = None
    runtime: Name | None = None
    ssh: bool = False


class Change(_Strict):
    """A patch of one resource of several nodes (names, or patterns with * and ?)."""

    nodes: list[Pattern] = Field(min_length=1, max_length=10_000)
    resource: Resource
    patch: dict[str, Any] = Field(min_length=1)
    name: Name | None = None


class Batch(_Strict):
    """Changes of several nodes in one request. All are validated before the first is applied."""

    changes: list[Change] = Field(min_length=1, max_length=10_000)


class Exec(_Strict):
    """A command to run in nodes, as an argument list; no shell interprets it."""

    nodes: list[Pattern] = Field(min_length=1, max_length=10_000)
    argv: list[Word] = Field(min_length=1, max_length=10_000)
    env: dict[Word, Word] = {}
    cwd: Word | None = None
    user: Name | None = None
    timeout_s: float | None = Field(60.0, gt=0, le=86_400)
    most_bytes: int = Field(1 << 20, ge=0, le=1 << 26, description="of each output")


class State(_Strict):
    """The requested state of a node."""

    state: Literal["up", "down", "frozen", "running"]


class Events(_Strict):
    """Events as in a ClusterSpec. Times are relative to `start_ns` (CLOCK_MONOTONIC, default: now)."""

    events: list[dict[str, Any]] = Field(min_length=1, max_length=100_000)
    start_ns: int | None = Field(None, ge=0)


class Mark(_Strict):
    """The name of a phase that begins now."""

    phase: Name


class Watch(_Strict):
    """Duration of the measurement for a certificate [s]."""

    seconds: float = Field(4.0, ge=0.5, le=3600)


class Delays(_Strict):
    """One-way delays [s] from node to node; symmetric unless both directions have a value."""

    delays: dict[Name, dict[Name, float]] = Field(min_length=1)


class MountRequest(_Strict):
    """A disk without a node."""

    profile: Word
    backing: Word
    mount: Word
    time_scale: float = Field(1.0, gt=0)
    durable: bool = False


class MountChange(_Strict):
    """A change of a disk without a node."""

    patch: dict[str, Any] = {}
    profile: Word | None = None
    time_scale: float = Field(1.0, gt=0)


class PowerCut(_Strict):
    """A power failure: unsynced writes are `lost`, or partially written (`torn`)."""

    mode: Literal["lost", "torn"] = "lost"
    seed: int = Field(0, ge=0)
