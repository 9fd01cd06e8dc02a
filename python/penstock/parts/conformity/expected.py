"""Files of expected values for `penstock check`; `docs/check.md` documents the format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from penstock.errors import BadInput
from penstock.spec.fields import expect
from penstock.spec.mistakes import in_order, validated
from penstock.spec.quantities import Part, Share, Text, UnitText
from penstock.spec.source import Source, read_source
from penstock.spec.units import parse_share, parse_unit

PAGE = "docs/check.md"
#: default tolerance of a mean, as a share of the predicted value
TOLERANCE = 0.1
#: default of the least number of trials for a verdict other than SLOW, TOO_FAST and NOISY
TRIALS = 15
#: bounds of predicted and measured values in any unit; their squares and ratios are finite
LEAST, MOST = 1e-30, 1e30

Key = tuple[str, str, str]


def _above_zero(text: str) -> str:
    if parse_share(text) <= 0:
        raise expect("a share above 0 %, such as 10 %")
    return text


Tolerance = Annotated[Share, AfterValidator(_above_zero)]


class RowFile(Part):
    """One quantity of one operation of one module."""

    module: Text = Field(description="Part of the system: client, storage, manager, …")
    operation: Text = Field(description="Operation of the module: open, read, write, …")
    metric: Text = Field("client_time", description="Measured quantity.")
    predicted: float = Field(ge=LEAST, le=MOST, description="Predicted mean, in `unit`.")
    unit: UnitText = Field("s", description="Unit of `predicted`.")
    variance: float | None = Field(
        None,
        ge=0,
        le=MOST**2,
        description="Predicted variance between trials, in the square of `unit`.",
    )
    tolerance: Tolerance | None = Field(
        None, description="Largest deviation of the mean, as a share."
    )
    better: Literal["lower", "higher"] | None = Field(
        None, description="Better direction [higher for units per time, else lower]."
    )


class EvidenceFile(Part):
    """Quantities of one operation in the model that explain where its time is spent."""

    module: Text = Field(description="Part of the system.")
    operation: Text = Field(description="Operation of the module.")
    in_flight_max_over_mean: float | None = Field(
        None, ge=1, le=1e6, description="Requests at the busiest node / mean over nodes."
    )
    lock_wait_share: Share | None = Field(None, description="Share of its time in waits for locks.")
    p99_over_p50: float | None = Field(
        None, ge=1, le=1e9, description="Quantile ratio of the times of single requests."
    )


class TrialsFile(Part):
    """Number of trials."""

    at_least: int = Field(TRIALS, ge=2, le=1_000_000, description="With fewer a row is never OK.")
    at_most: int | None = Field(
        None, ge=2, le=1_000_000, description="Most trials that a message recommends."
    )


class ExpectedFile(Part):
    """The top level of the file."""

    penstock_expected: int = Field(ge=1, le=1, description="Version of this format: 1.")
    name: Text = Field("expected", description="Name of the suite.")
    description: str = Field("", description="Free text.")
    tolerance: Tolerance = Field("10%", description="Tolerance of rows without one.")
    trials: TrialsFile = Field(TrialsFile.model_validate({}), description="Number of trials.")
    rows: list[RowFile] = Field(min_length=1, description="Expected values.")
    evidence: list[EvidenceFile] = Field(
        [], description="Quantities of the model that explain times."
    )


@dataclass(frozen=True)
class Expected:
    """One expected value.

    `predicted` is a mean in `unit`, `variance` the variance between trials in the square of `unit`,
    `tolerance` a share of `predicted`. `base` are two or more measured trials whose mean is `predicted`;
    empty for a value from a model.
    """

    module: str
    operation: str
    metric: str
    predicted: float
    unit: str = "s"
    variance: float | None = None
    tolerance: float = TOLERANCE
    higher_is_better: bool = False
    base: tuple[float, ...] = ()

    @property
    def key(self) -> Key:
        return self.module, self.operation, self.metric

    @property
    def label(self) -> str:
        """`client_time of client/write`."""
        return f"{self.metric} of {self.module}/{self.operation}"


@dataclass(frozen=True)
class Ideal:
    """Quantities of one operation in the model besides its time; None where the model has none."""

    in_flight_max_over_mean: float | None = None
    lock_wait_share: float | None = None
    p99_over_p50: float | None = None


@dataclass(frozen=True)
class Expectation:
    """The content of a file. `at_most` is None without a limit on the recommended number of trials.

    With `every_row` each row must have been measured. A prediction does not require this, because it has more
    rows than one benchmark measures. `ideal` is keyed by module and operation.
    """

    name: str
    rows: tuple[Expected, ...]
    at_least: int = TRIALS
    at_most: int | None = None
    ideal: dict[tuple[str, str], Ideal] | None = None
    every_row: bool = True

    def of(self, module: str, operation: str) -> Ideal:
        """Quantities of an operation in the model; all None for an operation that it does not have."""
        return (self.ideal or {}).get((module, operation), Ideal())


def higher_is_better_of(unit: str) -> bool:
    """True for a unit per time, of which higher values are better."""
    return parse_unit(unit).dimension.endswith("/time")


def read_expected(raw: bytes, path: FilePath) -> Expectation:
    """Parse YAML or JSON. Raises BadInput with every mistake, each with its line and column."""
    source = read_source(raw, str(path), f"a file of expected values; see {PAGE}")
    if not isinstance(source.value, dict):
        source.mistake((), "no mapping", "keys such as penstock_expected and rows")
        raise BadInput(mistakes=source.mistakes)
    file = validated(source, ExpectedFile, PAGE)
    if file is not None:
        _once(source, "rows", file.rows, lambda r: (r.module, r.operation, r.metric))
        _once(source, "evidence", file.evidence, lambda r: (r.module, r.operation))
        if file.trials.at_most is not None and file.trials.at_most < file.trials.at_least:
            source.mistake(
                ("trials", "at_most"),
                str(file.trials.at_most),
                f"at least as many as at_least, {file.trials.at_least}",
            )
    if source.mistakes or file is None:
        raise BadInput(mistakes=in_order(source.mistakes))
    return _converted(file)


def _once(source: Source, part: str, rows: list[Any], key: Callable[[Any], object]) -> None:
    seen = set()
    for i, row in enumerate(rows):
        if key(row) in seen:
            duplicate = f"{row.module}/{row.operation} a second time"
            source.mistake((part, i), duplicate, "each operation and metric once")
        seen.add(key(row))


def _converted(file: ExpectedFile) -> Expectation:
    rows = tuple(
        Expected(
            r.module,
            r.operation,
            r.metric,
            r.predicted,
            r.unit,
            r.variance,
            parse_share(r.tolerance or file.tolerance),
            higher_is_better_of(r.unit) if r.better is None else r.better == "higher",
        )
        for r in file.rows
    )
    ideal = {
        (e.module, e.operation): Ideal(
            e.in_flight_max_over_mean,
            None if e.lock_wait_share is None else parse_share(e.lock_wait_share),
            e.p99_over_p50,
        )
        for e in file.evidence
    }
    return Expectation(file.name, rows, file.trials.at_least, file.trials.at_most, ideal)
