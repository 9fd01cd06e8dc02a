"""What a system should take: the rows that `penstock check` holds a run against, as a file says them.

`docs/check.md` is the page of the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from penstock.errors import BadInput
from penstock.spec.fields import expect
from penstock.spec.mistakes import in_order, note
from penstock.spec.quantities import Part, Share, Text, UnitText
from penstock.spec.source import Source, read_source
from penstock.spec.units import parse_share, parse_unit

PAGE = "docs/check.md"
#: how far a mean may be from what was predicted where nothing is said
TOLERANCE = 0.1
#: trials that a verdict other than SLOW and TOO_FAST needs
TRIALS = 15
#: nothing that is measured is beyond, in whatever unit, and squares and ratios are numbers still
LEAST, MOST = 1e-30, 1e30

Key = tuple[str, str, str]


def _above_nothing(text: str) -> str:
    if parse_share(text) <= 0:
        raise expect("a share above 0 %, such as 10 %")
    return text


Tolerance = Annotated[Share, AfterValidator(_above_nothing)]


class RowFile(Part):
    """One quantity of one operation of one module."""

    module: Text = Field(description="Which part of the system: client, storage, manager, …")
    operation: Text = Field(description="What it does: open, read, write, …")
    metric: Text = Field("client_time", description="What is measured of it.")
    predicted: float = Field(ge=LEAST, le=MOST, description="Its mean, in `unit`.")
    unit: UnitText = Field("s", description="Unit of `predicted`.")
    variance: float | None = Field(
        None, ge=0, le=MOST**2, description="Between trials, in the square of `unit`."
    )
    tolerance: Tolerance | None = Field(None, description="How far off the mean may be.")
    better: Literal["lower", "higher"] | None = Field(
        None, description="Which way is better; higher of what is per time, else lower."
    )


class EvidenceFile(Part):
    """What the model says of where the time of an operation goes."""

    module: Text = Field(description="Which part of the system.")
    operation: Text = Field(description="What it does.")
    in_flight_max_over_mean: float | None = Field(
        None, ge=1, le=1e6, description="Requests at the busiest node over those at a node."
    )
    lock_wait_share: Share | None = Field(None, description="Share of its time spent on locks.")
    p99_over_p50: float | None = Field(
        None, ge=1, le=1e9, description="Of the times of single requests."
    )


class TrialsFile(Part):
    """How many trials there are to be."""

    at_least: int = Field(TRIALS, ge=2, le=1_000_000, description="Fewer are never OK.")
    at_most: int | None = Field(
        None, ge=2, le=1_000_000, description="With so many the interval is as it is."
    )


class ExpectedFile(Part):
    """The file."""

    penstock_expected: int = Field(ge=1, le=1, description="Version of this format: 1.")
    name: Text = Field("expected", description="Of the suite.")
    description: str = Field("", description="What it is.")
    tolerance: Tolerance = Field("10%", description="Of rows that say none.")
    trials: TrialsFile = Field(
        TrialsFile.model_validate({}), description="How many trials there are to be."
    )
    rows: list[RowFile] = Field(min_length=1, description="What is expected.")
    evidence: list[EvidenceFile] = Field([], description="Where the time should go.")


@dataclass(frozen=True)
class Expected:
    """One row: `predicted` is a mean in `unit`, `variance` that between trials in its square, `tolerance` a
    share of `predicted`. `higher_is_better` of rates. `base` are the trials that it is the mean of, where it
    was measured (two or more)."""

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
        """What names the row."""
        return self.module, self.operation, self.metric

    @property
    def words(self) -> str:
        """`client_time of client/write`."""
        return f"{self.metric} of {self.module}/{self.operation}"


@dataclass(frozen=True)
class Ideal:
    """What the model says of one operation beside its time; None where it says nothing."""

    in_flight_max_over_mean: float | None = None
    lock_wait_share: float | None = None
    p99_over_p50: float | None = None


@dataclass(frozen=True)
class Expectation:
    """A whole file. `at_most` is None where the trials that there are decide.

    `every_row` says that each row must have been measured; of a prediction, which says more than any one
    benchmark measures, it need not. `ideal` is keyed by module and operation.
    """

    name: str
    rows: tuple[Expected, ...]
    at_least: int = TRIALS
    at_most: int | None = None
    ideal: dict[tuple[str, str], Ideal] | None = None
    every_row: bool = True

    def of(self, module: str, operation: str) -> Ideal:
        """What the model says of an operation beside its time."""
        return (self.ideal or {}).get((module, operation), Ideal())


def rises(unit: str) -> bool:
    """Whether more of a quantity of this unit is better: of what is per time."""
    return parse_unit(unit).dimension.endswith("/time")


def read_expected(raw: bytes, path: FilePath) -> Expectation:
    """The rows of a YAML or JSON text. BadInput holds every mistake with its line and column."""
    source = read_source(raw, str(path), f"a file of expected values; see {PAGE}")
    if not isinstance(source.value, dict):
        source.mistake((), "no mapping", "keys such as penstock_expected and rows")
        raise BadInput(mistakes=source.mistakes)
    file: ExpectedFile | None = None
    try:
        file = ExpectedFile.model_validate(source.value)
    except ValidationError as error:
        for detail in error.errors():
            note(source, detail, ExpectedFile, PAGE)
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
    return _lowered(file)


def _once(source: Source, part: str, rows: list[Any], key: Callable[[Any], object]) -> None:
    seen = set()
    for i, row in enumerate(rows):
        if key(row) in seen:
            found = f"{row.module}/{row.operation} a second time"
            source.mistake((part, i), found, "each operation and metric once")
        seen.add(key(row))


def _lowered(file: ExpectedFile) -> Expectation:
    rows = tuple(
        Expected(
            r.module,
            r.operation,
            r.metric,
            r.predicted,
            r.unit,
            r.variance,
            parse_share(r.tolerance or file.tolerance),
            rises(r.unit) if r.better is None else r.better == "higher",
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
