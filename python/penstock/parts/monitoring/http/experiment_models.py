"""Models of requests and responses about experiments."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator

from penstock.parts.monitoring.experiments.points import EventKind


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Times(_Strict):
    """A timestamp in one of these fields (default: now): seconds since 1970 UTC, or ISO 8601."""

    utc_time: str | int | float | None = None
    utctime: str | int | float | None = None
    local_time: str | int | float | None = None
    localtime: str | int | float | None = None

    @field_validator("utc_time", "utctime", "local_time", "localtime", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(
                f"found {str(value).lower()}; expected seconds since 1970, or ISO 8601"
            )
        return value


class File(_Strict):
    """An executable or configuration file of a command."""

    path: str = Field(max_length=4096)
    size_bytes: int = Field(ge=0, lt=1 << 63)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Facts(_Strict):
    """Provenance: the command, its files by role, facts of its host (default: those of the server)."""

    command: list[str] | None = None
    # number of omitted arguments
    command_left_out: int | None = Field(default=None, ge=0)
    files: dict[str, File] | None = Field(default=None, max_length=10)
    host: dict[str, str | bool | int | float | list[float] | None] | None = Field(
        default=None, max_length=100
    )


class Start(Times):
    """Options of a new experiment."""

    params: dict[str, str | int | float | bool] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list, max_length=100)
    repeat: bool = False
    shared: bool = False
    timeout_s: float | None = None
    facts: Facts = Field(default_factory=Facts)


class Stop(Times):
    """The result of an experiment."""

    exit: int | None = Field(default=None, ge=-(1 << 31), lt=1 << 31)
    aborted: bool = False
    # statistics of observers by name: counts and costs
    receipts: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=100)


class Mark(Times):
    """Begin or end of a phase, or a note."""

    kind: Literal["begin", "end", "note"]
    name: str = Field(min_length=1, max_length=4000)


class ProducedCounts(_Strict):
    """Counts of a series by its producer, from which completeness is computed."""

    metric: str = Field(min_length=1, max_length=500)
    labels: dict[str, str] = Field(default_factory=dict)
    interval_ns: int | None = Field(default=None, gt=0, lt=1 << 62)
    produced: int | None = Field(default=None, ge=0, lt=1 << 62)
    counter: bool = False
    free: bool = False
    since_ns: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    expected: int | None = Field(default=None, ge=0, lt=1 << 62)
    late: int = Field(default=0, ge=0, lt=1 << 62)


class SourceEvent(_Strict):
    """An event of a source of points."""

    kind: Literal["restart", "reset", "disabled", "enabled", "gap"]
    utc_ns: int = Field(ge=-(1 << 63), lt=1 << 63)
    end_utc_ns: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    metric: str | None = Field(default=None, max_length=500)
    detail: str = Field(default="", max_length=1000)


class ReportedEvent(_Strict):
    """An event of a source of points, as a client of this program sends it."""

    kind: EventKind
    utc_ns: int = Field(ge=-(1 << 63), lt=1 << 63)
    end_utc_ns: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    metric: str | None = Field(default=None, max_length=500)
    labels: str | None = Field(default=None, max_length=4000)
    detail: str = Field(default="", max_length=2000)
    count: int = Field(default=0, ge=0, lt=1 << 62)


class Push(_Strict):
    """A batch of points as columns of equal length; `metric`, `labels` and `unit` may be scalars."""

    source: str = Field(min_length=1, max_length=500)
    number: int = Field(ge=0, lt=1 << 63)
    metric: str | list[str]
    labels: dict[str, str] | list[dict[str, str]] = Field(default_factory=dict)
    utc_ns: list[StrictInt | None] | None = None
    index: list[StrictInt | None] | None = None
    float: list[Any] | None = None
    integer: list[StrictInt | None] | None = None
    text: list[str | None] | None = None
    boolean: list[StrictBool | None] | None = None
    unit: str | list[str] = ""
    accounts: list[ProducedCounts] = Field(default_factory=list, max_length=100_000)
    events: list[SourceEvent] = Field(default_factory=list, max_length=10_000)


class Accepted(BaseModel):
    """The result of a batch."""

    points: int
    duplicate: bool


class ExperimentModel(BaseModel):
    """An experiment. Times are in ns since 1970 UTC."""

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
    """Recorded series of an experiment, their gaps and completeness: rows as in docs/formats.md."""

    verdict: str
    series: list[dict[str, Any]]
    gaps: list[dict[str, Any]]


class Filters(_Strict):
    """Properties of the experiments of a list, in a query string."""

    user: str | None = Field(None, max_length=500)
    name: str | None = Field(None, max_length=500)
    tag: str | None = Field(None, max_length=500)
    state: str | None = Field(None, max_length=500)


class DataOptions(_Strict):
    """Options of the data of an experiment, in a query string."""

    metric: str | None = Field(None, max_length=500)
    server: str | None = Field(None, max_length=500)
    query: str | None = Field(None, max_length=5000)
    measurement: str | None = Field(None, max_length=500)
    database: str | None = Field(None, max_length=500)
    step: str | None = Field(None, max_length=50)
    labels: list[str] | None = Field(None, max_length=100)
    fields: list[str] | None = Field(None, max_length=100)
    type: Literal["timestamp", "duration", "sample"] | None = None
    phase: str | None = Field(None, max_length=1000)
    format: Literal["csv", "jsonl", "parquet", "openmetrics"] | None = None
    clocks: Literal["recorded", "corrected"] | None = None
