"""What requests about experiments hold, and what answers do."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Times(_Said):
    """A moment, one of these, else now: seconds since 1970 (as they are read by no time zone) or ISO 8601."""

    utc_time: str | int | float | None = None
    utctime: str | int | float | None = None
    local_time: str | int | float | None = None
    localtime: str | int | float | None = None

    @field_validator("utc_time", "utctime", "local_time", "localtime", mode="before")
    @classmethod
    def _is_no_truth_value(cls, said: Any) -> Any:
        if isinstance(said, bool):
            raise ValueError(f"found {str(said).lower()}; expected seconds since 1970, or ISO 8601")
        return said


class File(_Said):
    """A file that a command was made of."""

    path: str = Field(max_length=4096)
    size_bytes: int = Field(ge=0, lt=1 << 63)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Facts(_Said):
    """What is recorded and where: a command, its files by their role, facts of the host that it runs on."""

    command: list[str] | None = None
    # words of it that there was no room for
    command_left_out: int | None = Field(default=None, ge=0)
    files: dict[str, File] | None = Field(default=None, max_length=10)
    # by default those of the server's
    host: dict[str, str | bool | int | float | list[float] | None] | None = Field(
        default=None, max_length=100
    )


class Start(Times):
    """How an experiment begins."""

    params: dict[str, str | int | float | bool] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list, max_length=100)
    repeat: bool = False
    shared: bool = False
    timeout_s: float | None = None
    facts: Facts = Field(default_factory=Facts)


class Stop(Times):
    """How it ends."""

    exit: int | None = Field(default=None, ge=-(1 << 31), lt=1 << 31)
    aborted: bool = False
    # of who observed it, by name: what it counted and what it cost
    receipts: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=100)


class Mark(Times):
    """A phase that begins or ends, or a note."""

    kind: Literal["begin", "end", "note"]
    name: str = Field(min_length=1, max_length=4000)


class Told(_Said):
    """What a producer knows of a series."""

    metric: str = Field(min_length=1, max_length=500)
    labels: dict[str, str] = Field(default_factory=dict)
    interval_ns: int | None = Field(default=None, gt=0, lt=1 << 62)
    produced: int | None = Field(default=None, ge=0, lt=1 << 62)
    counter: bool = False
    free: bool = False
    since_ns: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    expected: int | None = Field(default=None, ge=0, lt=1 << 62)
    late: int = Field(default=0, ge=0, lt=1 << 62)


class Happened(_Said):
    """What happened to a source."""

    kind: Literal["restart", "reset", "disabled", "enabled", "gap"]
    utc_ns: int = Field(ge=-(1 << 63), lt=1 << 63)
    end_utc_ns: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    metric: str | None = Field(default=None, max_length=500)
    detail: str = Field(default="", max_length=1000)


class Push(_Said):
    """A batch of points by columns of one length; `metric`, `labels` and `unit` may be one for all."""

    source: str = Field(min_length=1, max_length=500)
    number: int = Field(ge=0, lt=1 << 63)
    metric: str | list[str]
    labels: dict[str, str] | list[dict[str, str]] = Field(default_factory=dict)
    utc_ns: list[int | None] | None = None
    index: list[int | None] | None = None
    float: list[Any] | None = None
    integer: list[int | None] | None = None
    text: list[str | None] | None = None
    boolean: list[bool | None] | None = None
    unit: str | list[str] = ""
    accounts: list[Told] = Field(default_factory=list, max_length=100_000)
    events: list[Happened] = Field(default_factory=list, max_length=10_000)


class Accepted(BaseModel):
    """What became of a batch."""

    points: int
    duplicate: bool


class ExperimentModel(BaseModel):
    """An experiment; times in ns since 1970 UTC."""

    name: str
    repeat: int
    user: str
    shared: bool
    state: str
    start_ns: int
    end_ns: int | None
    params: dict[str, Any]
    tags: list[str]
    phases: list[dict[str, Any]]
    notes: list[dict[str, Any]]


class SeriesModel(BaseModel):
    """What an experiment recorded, and how completely: rows as in docs/formats.md."""

    verdict: str
    series: list[dict[str, Any]]
    gaps: list[dict[str, Any]]
