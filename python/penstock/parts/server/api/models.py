"""What requests carry."""

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
    """A cluster to be put up: a platform file's text, its content, or a specification that was saved."""

    platform: str | dict[str, Any] | None = None
    spec: dict[str, Any] | None = None
    set: list[str] = []
    name: Name | None = None
    runtime: Name | None = None
    ssh: bool = False


class Change(_Strict):
    """A patch of one resource of some nodes (names, or patterns with * and ?)."""

    nodes: list[Pattern] = Field(min_length=1, max_length=10_000)
    resource: Resource
    patch: dict[str, Any] = Field(min_length=1)
    name: Name | None = None


class Batch(_Strict):
    """Changes of one, several or all nodes in one request; all are checked before the first is made."""

    changes: list[Change] = Field(min_length=1, max_length=10_000)


class Exec(_Strict):
    """A command in nodes: words, never a line for a shell."""

    nodes: list[Pattern] = Field(min_length=1, max_length=10_000)
    argv: list[Word] = Field(min_length=1, max_length=10_000)
    env: dict[Word, Word] = {}
    cwd: Word | None = None
    user: Name | None = None
    timeout_s: float | None = Field(60.0, gt=0, le=86_400)
    most_bytes: int = Field(1 << 20, ge=0, le=1 << 26, description="of each output")


class State(_Strict):
    """What a node is to be."""

    state: Literal["up", "down", "frozen", "running"]


class Events(_Strict):
    """Events as a ClusterSpec has them; times count from `start_ns` (CLOCK_MONOTONIC), by default now."""

    events: list[dict[str, Any]] = Field(min_length=1, max_length=100_000)
    start_ns: int | None = Field(None, ge=0)


class Mark(_Strict):
    """A phase that begins now."""

    phase: Name


class Watch(_Strict):
    """How long disks are watched for a certificate."""

    seconds: float = Field(4.0, ge=0.5, le=3600)


class Delays(_Strict):
    """One-way delays [s] from node to node, both ways unless the other way is given too."""

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
    """How power fails: what was not synced is `lost`, or in part `torn`."""

    mode: Literal["lost", "torn"] = "lost"
    seed: int = Field(0, ge=0)
