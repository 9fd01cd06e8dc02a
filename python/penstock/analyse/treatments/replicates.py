"""Comparison of two treatments of a study, or of two runs: responses and files over the valid replicates.

Ratios are of geometric means, B over A, with 95 % intervals on logarithms; values that are not all above 0
are compared by their difference. If both have runs in the same
three or more passes of one study, runs are compared pass by pass (Student's paired t), which removes
differences between passes. Otherwise each side has its own variance (Welch, as in `ranking`); if one side
has a single run, both are assumed to have the same relative variance. Responses without a difference are
the same within the margin of two one-sided tests. One run on each side has no test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.analyse.traces.trace_compare import SPOKEN, Ratio, Run, match_files
from penstock.analyse.treatments.ranking import Measured as OfRuns
from penstock.analyse.treatments.ranking import welch
from penstock.archive.bundle import Bundle
from penstock.archive.completeness import reading
from penstock.archive.selection import Selection
from penstock.design.order import BLOCKS
from penstock.design.orders import PASSES
from penstock.errors import BadInput
from penstock.study.disk_speeds import NO_DIFFERENCE_OF_DEVICES, scale_of
from penstock.text import at_speed, duration, speed

#: minimum relevant change of time on files, relative to the larger side
_MATTERS = 0.05
#: minimum number of passes for a comparison pass by pass: two leave one degree of freedom
_LEAST_PASSES = 3
#: largest margin of equivalence, as a factor, at which a response counts as the same
_SAME = 1.05
_WALL = "wall time"
_REPEAT = "repeat both: one run on each side does not show how much of the difference is chance"
_DIRECTIONS = ("read", "write", "sync")


@dataclass
class Measured:
    """One quantity of both sides, a value for each run; `ratio` if all values are above 0.

    `equivalent_within`: the smallest margin, as a factor above 1, within which two one-sided tests at 5 %
    call the sides equivalent (Schuirmann 1987). `paired`: the values of both sides belong to the same
    passes, in the same order.
    """

    name: str
    unit: str
    a: list[float]
    b: list[float]
    ratio: float | None = None
    interval: Ratio | None = None
    equivalent_within: float | None = None
    paired: bool = False

    def __post_init__(self) -> None:
        if self.a and self.b and min(*self.a, *self.b) > 0:
            self.ratio, self.interval = ratio_of(self.a, self.b, paired=self.paired)
            _, inner = ratio_of(self.a, self.b, confidence=0.90, paired=self.paired)
            if inner is not None and not self.coarse:
                self.equivalent_within = max(inner.high, 1 / inner.low)

    @property
    def means(self) -> tuple[float, float]:
        """Arithmetic means of A and B."""
        return _mean(self.a), _mean(self.b)

    @property
    def difference(self) -> tuple[float, float] | None:
        """95 % interval of the mean of B minus that of A; None for one run on each side."""
        if not (self.a and self.b):
            return None
        middle, half = _difference(self.a, self.b, 0.95, paired=self.paired)
        return None if half is None else (middle - half, middle + half)

    @property
    def differs(self) -> bool:
        """True if 1 is outside the interval of the ratio, or 0 outside that of the difference."""
        if self.interval is not None:
            return self.interval.differs
        ends = self.difference
        return self.ratio is None and ends is not None and not ends[0] <= 0 <= ends[1]

    @property
    def one_sided(self) -> bool:
        """True if only one side is always 0."""
        return bool(any(self.a)) != bool(any(self.b))

    @property
    def single(self) -> bool:
        """True for one run on each side, which has no test."""
        return len(self.a) == len(self.b) == 1

    @property
    def equal(self) -> bool:
        """True if several runs of both sides have one value, at the resolution of the measurement."""
        return len(self.a) + len(self.b) > 2 and len({*self.a, *self.b}) == 1

    @property
    def coarse(self) -> bool:
        """True if the runs of each side have one value, so that they show no variation."""
        return len(self.a) + len(self.b) > 2 and len({*self.a}) == 1 and len({*self.b}) == 1

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "means": list(self.means), "differs": self.differs}


@dataclass
class FileMeasured:
    """Reads, writes or flushes of one path: requests, bytes and time, a value for each run."""

    path: str
    direction: str
    requests: Measured
    bytes: Measured
    time: Measured
    matters: bool = False

    @property
    def change_ns(self) -> float:
        """Mean time of B minus that of A."""
        return self.time.means[1] - self.time.means[0]

    def document(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).document() for name in ("requests", "bytes", "time")}
        return {"path": self.path, "direction": self.direction, "matters": self.matters, **parts}


@dataclass
class Replicated:
    """Differences between A and B as sentences and numbers; files with the largest change first."""

    a: str
    b: str
    levels: tuple[dict[str, str], dict[str, str]]
    runs: tuple[list[str], list[str]]
    responses: list[Measured]
    on_files: Measured | None = None
    files: list[FileMeasured] = field(default_factory=list)
    #: first sentence of the answer, then (label, text) of its points
    headline: str = ""
    points: list[tuple[str, str]] = field(default_factory=list)
    #: for A and B: disk → its profile and its speed, for slowed disks
    disks: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    #: number of common passes, if compared pass by pass; else 0
    passes: int = 0

    @property
    def conclusion(self) -> list[str]:
        """The headline, then each point after its label."""
        return [self.headline, *(f"{label}: {text}" for label, text in self.points)]

    def document(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "levels": list(self.levels),
            "runs": list(self.runs),
            "disks": list(self.disks),
            "paired_by_pass": self.passes > 0,
            "passes": self.passes,
            "conclusion": self.conclusion,
            "responses": [response.document() for response in self.responses],
            "on_files": self.on_files.document() if self.on_files else None,
            "files": [row.document() for row in self.files],
        }


def compare_replicates(a: Selection, b: Selection) -> Replicated:
    """The comparison of two treatments, or runs, of studies.

    If there are responses to compare, unreadable traces are omitted with a note. BadInput if the two have
    neither a response nor a traced file in common.
    """
    pairs = _by_pass(a, b)
    chosen = pairs or (a.replicates, b.replicates)
    sides = [[Bundle.open(path).manifest for path in paths] for paths in chosen]
    comparison = Replicated(
        a.name,
        b.name,
        (_levels(sides[0]), _levels(sides[1])),
        ([m["run_id"] for m in sides[0]], [m["run_id"] for m in sides[1]]),
        _responses(sides[0], sides[1], paired=pairs is not None),
        disks=(_slowed(sides[0]), _slowed(sides[1])),
        passes=len(pairs[0]) if pairs else 0,
    )
    unread = None
    if a.traced and b.traced:
        try:
            with reading(*a.traced, *b.traced):
                traced = _traced(a, b, pairs)
                _add_files(
                    comparison,
                    [Run(path) for path in traced[0]],
                    [Run(path) for path in traced[1]],
                    paired=traced == pairs,
                )
        except BadInput as error:
            if not comparison.responses:
                raise
            unread = f"their traces are left out: {error}"
    in_other_units = _in_other_units(sides[0], sides[1])
    if not comparison.responses and comparison.on_files is None:
        units_text = f" ({'; '.join(in_other_units)})" if in_other_units else ""
        raise BadInput(
            f"{a.name} and {b.name}: found no response that both have, and no trace of both{units_text}; "
            "expected runs of a study, or traces"
        )
    details = [*in_other_units, *([unread] if unread else [])]
    comparison.headline, comparison.points = _answer(
        comparison, [*_unequal(sides[0], sides[1])], details
    )
    return comparison


def _by_pass(a: Selection, b: Selection) -> tuple[list[Path], list[Path]] | None:
    """The runs of both in the order of their passes; None unless they are of the same passes of one study,
    each once, and its passes are blocks."""
    plan = a.path / "plan.json"
    if {a.kind, b.kind} != {"treatment"} or a.path.resolve() != b.path.resolve():
        return None
    order = json.loads(plan.read_text()).get("order") if plan.is_file() else None
    if order not in PASSES or len(a.runs) != len(b.runs) or len(a.runs) < _LEAST_PASSES:
        return None
    # a pass may be cut into blocks; compare by pass
    word = "replicate" if order == BLOCKS else "block_id"
    one, other = (
        {str(Bundle.open(path).manifest.get(word)): path for path in named.runs} for named in (a, b)
    )
    if set(one) != set(other) or len(one) < len(a.runs):
        return None
    return list(one.values()), [other[number] for number in one]


def _traced(
    a: Selection, b: Selection, pairs: tuple[list[Path], list[Path]] | None
) -> tuple[list[Path], list[Path]]:
    """The traced runs of both; pairs if all were traced."""
    if pairs is not None and len(a.traced) == len(b.traced) == len(pairs[0]):
        return pairs
    return a.traced, b.traced


def ratio_of(
    a: Sequence[float], b: Sequence[float], confidence: float = 0.95, *, paired: bool = False
) -> tuple[float, Ratio | None]:
    """Geometric mean of `b` over that of `a`, and its interval for three or more values.

    `paired`: value by value, for two or more on each side.
    """
    logs = [[math.log(value) for value in values] for values in (a, b)]
    middle, half = _difference(logs[0], logs[1], confidence, paired=paired)
    if half is None:
        return math.exp(middle), None
    ends = math.exp(middle - half), math.exp(middle + half)
    return math.exp(middle), Ratio(math.exp(middle), *ends)


def _difference(
    a: Sequence[float], b: Sequence[float], confidence: float, *, paired: bool
) -> tuple[float, float | None]:
    """Mean of `b` minus that of `a`, and the half-width of its interval; None as in `ratio_of`."""
    sides = (a, b)
    means = [_mean(side) for side in sides]
    middle = means[1] - means[0]
    free: float = len(a) - 1 if paired else len(a) + len(b) - 2
    if free < 1:
        return middle, None
    from scipy.stats import t

    if paired:
        steps = OfRuns.of("", [y - x for x, y in zip(*sides, strict=True)])
        error = steps.sd / math.sqrt(steps.n)
    elif min(len(a), len(b)) > 1:
        one, other = (OfRuns.of("", side) for side in sides)
        free, _ = welch(one, other)
        error = math.sqrt(one.sd**2 / one.n + other.sd**2 / other.n)
    else:
        squares = sum(
            (x - mean) ** 2 for side, mean in zip(sides, means, strict=True) for x in side
        )
        error = math.sqrt(squares / free * (1 / len(a) + 1 / len(b)))
    return middle, float(t.ppf((1 + confidence) / 2, free)) * error


def _responses(a: list[dict[str, Any]], b: list[dict[str, Any]], *, paired: bool) -> list[Measured]:
    """Responses that every run of both sides has in one unit, and the duration of the runs."""
    measured = []
    every = [*a, *b]
    of_runs = [m.get("responses") or {} for m in every]
    for name in of_runs[0]:
        values = [(responses.get(name) or {}).get("value") for responses in of_runs]
        if name == "wall_s" or not all(isinstance(value, int | float) for value in values):
            continue
        units = _units(every, name)
        if len(units) == 1:
            numbers = [float(value) for value in values if value is not None]
            sides = numbers[: len(a)], numbers[len(a) :]
            measured.append(Measured(name, units[0], *sides, paired=paired))
    walls = [_wall_s(manifest) for manifest in every]
    if all(walls):
        seconds = [float(wall) for wall in walls if wall]
        measured.append(Measured(_WALL, "s", seconds[: len(a)], seconds[len(a) :], paired=paired))
    return measured


def _units(manifests: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The units of a response in runs that have it."""
    responses = [(m.get("responses") or {}).get(name) for m in manifests]
    return sorted({str(r.get("unit") or "") for r in responses if r})


def _in_other_units(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[str]:
    """Text on the responses that are not compared, because the runs have them in different units."""
    names = [n for n in a[0].get("responses") or {} if n in (b[0].get("responses") or {})]
    units = {n: (_units(a, n), _units(b, n)) for n in names if n != "wall_s"}
    return [
        f"{name} is not compared: its unit is {_named(of_a)} in A and {_named(of_b)} in B"
        for name, (of_a, of_b) in units.items()
        if len({*of_a, *of_b}) > 1
    ]


def _named(units: list[str]) -> str:
    return " or ".join(unit or "none" for unit in units)


def _wall_s(manifest: Mapping[str, Any]) -> float | None:
    response = (manifest.get("responses") or {}).get("wall_s") or {}
    wall: float | None = (manifest.get("times") or {}).get("wall_s") or response.get("value")
    return wall


def _levels(manifests: list[dict[str, Any]]) -> dict[str, str]:
    return {name: str(level) for name, level in (manifests[0].get("levels") or {}).items()}


def _scales(manifests: list[dict[str, Any]]) -> dict[str, tuple[str, float]]:
    """Profile and time scale of each emulated disk in the first run."""
    disks = manifests[0].get("disks")
    return {
        str(disk_id): (str(disk.get("profile")), scale)
        for disk_id, disk in (disks.items() if isinstance(disks, dict) else ())
        if (scale := scale_of(disk)) is not None
    }


def _slowed(manifests: list[dict[str, Any]]) -> dict[str, str]:
    scales = _scales(manifests).items()
    return {disk: at_speed(profile, scale) for disk, (profile, scale) in scales if scale != 1}


def _unequal(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[str]:
    """Text on disks with different speeds in A and B."""
    one, other = _scales(a), _scales(b)
    speeds = [
        f"{disk} ran at {speed(one[disk][1])} in A and at {speed(other[disk][1])} in B"
        for disk in one
        if disk in other and one[disk][1] != other[disk][1]
    ]
    return [f"{'; '.join(speeds)}: {NO_DIFFERENCE_OF_DEVICES}"] if speeds else []


def _add_files(comparison: Replicated, a: list[Run], b: list[Run], *, paired: bool) -> None:
    runs = [*a, *b]
    sides: dict[tuple[str, str], list[dict[str, Any] | None]] = {}
    for place, run in enumerate(runs):
        # match files with the first run; files that it lacks by path only
        for one, other, _ in match_files(a[0], run):
            if other is None:
                continue
            path = a[0].path_of(one) if one is not None else run.path_of(other)
            for direction in _DIRECTIONS:
                side = run.side(other, direction)
                if side is not None:
                    of_runs = sides.setdefault((path, direction), [None] * len(runs))
                    of_runs[place] = side

    def measured(name: str, unit: str, of_runs: list[dict[str, Any] | None]) -> Measured:
        values = [float(side[name]) if side else 0.0 for side in of_runs]
        return Measured(name, unit, values[: len(a)], values[len(a) :], paired=paired)

    totals = [float(sum(side["time_ns"] for side in run.sums.values())) for run in runs]
    comparison.on_files = Measured(
        "reads, writes and flushes", "ns", totals[: len(a)], totals[len(a) :], paired=paired
    )
    least = _MATTERS * max(*comparison.on_files.means, 1.0)
    for (path, direction), of_runs in sides.items():
        row = FileMeasured(
            path,
            direction,
            measured("requests", "", of_runs),
            measured("bytes", "B", of_runs),
            measured("time_ns", "ns", of_runs),
        )
        row.matters = abs(row.change_ns) >= least and (row.time.differs or row.time.one_sided)
        comparison.files.append(row)
    comparison.files.sort(key=lambda row: (-abs(row.change_ns), row.path, row.direction))


def _answer(
    comparison: Replicated, unknown: Sequence[str] = (), details: Sequence[str] = ()
) -> tuple[str, list[tuple[str, str]]]:
    """The first sentence on the first response that differs, and points on the rest."""
    differ = [r for r in comparison.responses if r.differs]
    single = [r for r in comparison.responses if r.single]
    same = [r for r in comparison.responses if r.equal or _close(r)]
    open_ = [r for r in comparison.responses if r not in (*differ, *single, *same)]
    headline, main = _headline(differ, single, same, open_)
    # a difference of speeds is not a difference of devices
    if not (headline.startswith("Open: ") or unknown or main is None):
        headline += " Clear."
    rest = [r for r in (*differ, *single) if r is not main]
    points = {
        "Why": [_of_files(comparison, comparison.on_files)] if comparison.on_files else [],
        "No effect": [_same(r) for r in same if r is not main],
        "Unknown": [
            *(f"{r.name} ({_open(r)})" for r in open_ if r is not main),
            *unknown,
        ],
        "Next step": [_REPEAT] if single else [],
        "Details": [*map(_of_response, rest), *_how(comparison), *details],
    }
    return headline, [(label, f"{'; '.join(texts)}.") for label, texts in points.items() if texts]


def _headline(
    differ: list[Measured],
    single: list[Measured],
    same: list[Measured],
    open_: list[Measured],
) -> tuple[str, Measured | None]:
    """The first sentence, which begins with "Open: " where nothing is shown, and its response."""
    if differ:
        return f"{_of_response(differ[0])}.", differ[0]
    if single:
        return f"Open: {_of_response(single[0])}, with one run on each side.", single[0]
    if same and not open_:
        return f"A and B do not differ in {_same(same[0])}.", same[0]
    if open_:
        first = open_[0]
        return f"Open: these runs show no difference in {first.name} ({_open(first)}).", first
    return "A and B have no response in common.", None


def _how(result: Replicated) -> list[str]:
    """Basis of the comparison, if there is a choice."""
    if result.passes:
        return [f"compared pass by pass, over the same {result.passes} passes"]
    if any(r.interval is not None for r in result.responses):
        return ["compared run by run, not pass by pass"]
    return []


def _close(response: Measured) -> bool:
    """True if the response is the same in A and B within a small margin."""
    margin = response.equivalent_within
    return not response.differs and margin is not None and margin <= _SAME


def _same(response: Measured) -> str:
    """A response without a difference, and the margin within which it is the same."""
    if response.equal:
        return f"{response.name} ({_printed(response)} in every run)"
    assert response.equivalent_within is not None
    return f"{response.name} (the same within {_margin(response.equivalent_within)})"


def _margin(factor_: float) -> str:
    if factor_ >= 2:
        return f"a factor of {_number(factor_)}"
    return f"{max(100 * (factor_ - 1), 0.01):.2g} %"


def _open(response: Measured) -> str:
    """The bounds of a ratio; the means and the bounds of their difference if there is no ratio."""
    ends = response.difference
    if response.ratio is not None or ends is None:
        return _times(response)
    low, high = (f"{end:.3g}".replace("-", "−") for end in ends)
    return f"{_values(response)}, {low} to {high} {response.unit}".rstrip() + " more in B"


def _values(response: Measured) -> str:
    a, b = response.means
    return f"{a:.4g} in A, {b:.4g} {response.unit}".rstrip() + " in B"


def _of_response(response: Measured) -> str:
    values = _values(response)
    if response.ratio is None:
        return f"{response.name} is {values}"
    coarse = ", with one value on each side" if response.coarse else ""
    return f"{response.name} is {_times(response)} in B ({values}{coarse})"


def _printed(response: Measured) -> str:
    return f"{response.a[0]:.12g} {response.unit}".rstrip()


def _of_files(comparison: Replicated, on_files: Measured) -> str:
    a, b = on_files.means
    if not a and not b:
        return "the traces have no times of the requests"
    text = f"reads, writes and flushes took {duration(a)} in A and {duration(b)} in B"
    if on_files.ratio is not None:
        text += f", {_times(on_files, ('long', 'longer', 'shorter'))}"
    main = [row for row in comparison.files if row.matters]
    alike = [row for row in main if row.change_ns * (b - a) > 0]
    if not alike:
        return f"{text}; no file differs by more than the runs and a twentieth of that time"
    top = alike[0]
    part = "most of it" if 2 * abs(top.change_ns) >= abs(b - a) else "the largest part"
    of_top = f"{duration(top.time.means[0])} against {duration(top.time.means[1])}"
    return f"{text}; {part}: {SPOKEN[top.direction]} of {top.path}, {of_top}"


def _times(
    measured: Measured, adjectives: tuple[str, str, str] = ("high", "higher", "lower")
) -> str:
    """`2.1× (1.9–2.3) as high`, `54 % (50–58) lower`; a ratio that may be either as a range of percent."""
    ratio, interval = measured.ratio or 1.0, measured.interval
    if interval is not None and not interval.differs:
        return f"{_percent(interval.low)} to {_percent(interval.high)} %"
    as_high, higher, lower = adjectives
    ends = []
    if interval is not None and not measured.coarse:
        ends = sorted((interval.low, interval.high))
    if ratio >= 2:
        span = f" ({_number(ends[0])}–{_number(ends[1])})" if ends else ""
        return f"{_number(ratio)}×{span} as {as_high}"
    if ratio <= 0.5:
        span = f" ({_number(1 / ends[1])}–{_number(1 / ends[0])})" if ends else ""
        return f"{_number(1 / ratio)}×{span} {lower}"
    percents = [f"{100 * abs(x - 1):.3g}" for x in (ends if ratio > 1 else ends[::-1])]
    span = f" ({percents[0]}–{percents[1]})" if percents else ""
    return f"{100 * abs(ratio - 1):.3g} %{span} {higher if ratio > 1 else lower}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.3g}".replace("-", "−")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
