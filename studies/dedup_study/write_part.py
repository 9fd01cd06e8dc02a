"""Writes of versions of each similarity at three ratios of the times to hash and to send."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bench import record
from penstock.parts.dedup.options import normal_chunking
from studies.claims import Claim, Finding, Result, claim, met_if, over_all
from studies.dedup_study.break_even import Estimate, break_even, mean_time, pairs, rates
from studies.dedup_study.cells import (
    AUTO,
    FIXED,
    MIB,
    OFF,
    SEQCDC,
    STATIC,
    Cell,
    CellRun,
    Write,
    controlled,
    static,
)
from studies.dedup_study.ground import Calibration, Ground, calibrated, hash_time, send_time

#: goals: points of similarity, excess of the controller anywhere and on average
POINTS, WORST, MEAN = 0.05, 1.05, 1.03
#: minimum writes for the controller's excess with its first probes; versions that these may take
LEAST_WRITES, PROBED = 100, 12
#: goals: deviation of stored bytes, of times without deduplication, and of the ratio
STORED_OFF, LEVEL_OFF, RATIO_OFF = 0.01, 0.05, 0.10
#: last writes of a controller that show its choice
LAST = 5


@dataclass(frozen=True)
class Size:
    """Size of the part; `rates_bps` replaces `ratios` on a ground whose ratio cannot be chosen."""

    ratios: tuple[float, ...]
    similarities: tuple[float, ...]
    versions: int
    paired: int
    size_bytes: int = 32 * MIB
    rates_bps: tuple[float, ...] = (125e6, 62.5e6, 31.25e6)


FULL = Size((0.16, 0.40, 0.50), tuple(step / 10 for step in range(11)), 200, 20)
QUICK = Size((0.40,), (0.0, 0.5, 0.9), 36, 36, rates_bps=(62.5e6,))


@dataclass(frozen=True)
class RatioRun:
    """Cells at one limit of the rate."""

    calibration: Calibration
    cells: tuple[CellRun, ...]

    @property
    def case(self) -> str:
        """Name of the limit."""
        ratio, rate = self.calibration.ratio, self.calibration.rate_bps
        return f"r = {ratio:.2f}" if ratio else f"links of {8 * rate / 1e9:.3g} Gbit/s"


@dataclass(frozen=True)
class WriteResult:
    """Result of the part."""

    ground: str
    size: Size
    runs: tuple[RatioRun, ...]


def cell_of(similarity: float, size: Size) -> Cell:
    """The cell of a similarity: all static configurations and the controller."""
    contenders = (*(static(chunking) for chunking in STATIC), controlled(AUTO, STATIC))
    return Cell(similarity, contenders, size.versions, size.size_bytes, MIB, size.paired)


def measure(
    ground: Ground,
    size: Size,
    *,
    by_ratio: bool = True,
    earlier: WriteResult | None = None,
    save: Callable[[WriteResult], None] = lambda _: None,
) -> WriteResult:
    """Write all cells at all ratios, or at all rates of the links.

    `earlier`: an interrupted result of the same ground and size, which is continued. `save` is called after
    each ratio.
    """
    runs: list[RatioRun] = []
    if earlier is not None and (earlier.ground, earlier.size) == (ground.name, size):
        runs += earlier.runs
    for value in (size.ratios if by_ratio else size.rates_bps)[len(runs) :]:
        if by_ratio:
            calibration = calibrated(ground, value, size.size_bytes)
        else:
            ground.limit(value)
            hashing = hash_time(ground, size.size_bytes)
            calibration = Calibration(0.0, value, hashing, send_time(ground, size.size_bytes))
        cells = []
        run = RatioRun(calibration, ())
        _note(f"{run.case}: measured {calibration.measured_ratio:.3f}; {calibration.reason}")
        if not calibration.reason:
            for similarity in size.similarities:
                cells.append(ground.run(cell_of(similarity, size)))
                _note(f"  similarity {similarity:.0%}: {_times(cells[-1])}")
        runs.append(replace(run, cells=tuple(cells)))
        save(WriteResult(ground.name, size, tuple(runs)))
    return WriteResult(ground.name, size, tuple(runs))


def _times(run: CellRun) -> str:
    names = [contender.name for contender in run.cell.contenders]
    return ", ".join(f"{name} {1e3 * mean_time(run.of(name)):.0f} ms" for name in names)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def claims_of(result: WriteResult) -> list[Claim]:
    """Claims of all ratios."""
    return [claim_ for run in result.runs for claim_ in _claims(run, result.size)]


def _claims(run: RatioRun, size: Size) -> list[Claim]:
    needs = {
        f"{run.case}, similarity {similarity:.0%}": sum(
            cell_run.cell.similarity == similarity for cell_run in run.cells
        )
        for similarity in size.similarities
    }
    cells, case = run.cells, run.case
    claims = [
        claim(
            case,
            "off takes the same time at all similarities",
            needs,
            lambda: _level(cells),
            criterion=f"within {LEVEL_OFF:.0%} of their mean",
        ),
        claim(
            case,
            "fixed chunks: stored bytes follow the exact similarity",
            needs,
            lambda: _stored(cells),
            criterion=f"sent bytes within {STORED_OFF:.0%} of a version",
        ),
        claim(
            case,
            "fixed chunks: break-even of time at r",
            needs,
            lambda: _at_ratio(cells),
            criterion=f"within {100 * POINTS:.0f} points",
        ),
        claim(
            case,
            "seqcdc: break-even of time where its times to hash and send predict it",
            needs,
            lambda: _as_predicted(cells),
            criterion=f"within {100 * POINTS:.0f} points",
        ),
        *_controller(case, cells, size, needs),
    ]
    if run.calibration.ratio:
        claims.insert(
            0,
            claim(
                case,
                "the ratio of the times to hash and to send is the requested one",
                needs,
                lambda: _ratio(run),
                criterion=f"within {RATIO_OFF:.0%}",
            ),
        )
    return claims


def _controller(
    case: str, cells: Sequence[CellRun], size: Size, needs: dict[str, int]
) -> list[Claim]:
    """Claims on the controller's time; with its first probes only where it wrote enough versions."""
    wording = "auto: time over the best static configuration, after its first probes"
    criterion = f"at most {WORST:.2f} everywhere, {MEAN:.2f} on average"
    result = [
        over_all(case, wording, needs, lambda: _excess(cells, PROBED), criterion=criterion),
        over_all(
            case,
            "auto: ends in the faster of its configurations, where they differ by more than 5 %",
            needs,
            lambda: _choices(cells),
        ),
    ]
    if size.versions >= LEAST_WRITES:
        wording = f"auto: time over the best static configuration, in {size.versions} writes"
        result.append(
            over_all(case, wording, needs, lambda: _excess(cells, 0), criterion=criterion)
        )
    return result


def _ratio(run: RatioRun) -> Finding:
    measured = rates(run.cells, FIXED)
    if measured is None:
        return Finding(Result.NOT_MEASURED, "no write")
    off = abs(measured.ratio / run.calibration.ratio - 1)
    return met_if(off <= RATIO_OFF, f"{measured.ratio:.3f}")


def _level(cells: Sequence[CellRun]) -> Finding:
    times = [mean_time(run.of(OFF)) for run in cells]
    mean = sum(times) / len(times)
    off = max(abs(time_s / mean - 1) for time_s in times)
    return met_if(off <= LEVEL_OFF, f"{1e3 * mean:.1f} ms, at most {off:.1%} off")


def _stored(cells: Sequence[CellRun]) -> Finding:
    """Bytes of chunk files compared with those that follow from the exact similarity, without the records."""
    worst = 0.0
    for run in cells:
        cell = run.cell
        extents = cell.size_bytes // cell.extent_bytes
        similar = 1 - round((1 - cell.similarity) * extents) / extents
        numbers = [write.number for write in run.writes if write.contender == FIXED]
        # versions since the previous write; the first has none
        gaps = [math.inf, *(later - number for number, later in pairwise(numbers))]
        shares = [1.0 if math.isinf(gap) else 1 - similar**gap for gap in gaps]
        off = abs(run.stored_bytes[FIXED] / cell.size_bytes - sum(shares)) / len(shares)
        worst = max(worst, off)
    return met_if(worst <= STORED_OFF, f"at most {worst:.2%} off")


def _at_ratio(cells: Sequence[CellRun]) -> Finding:
    measured, at = rates(cells, FIXED), break_even(cells, FIXED)
    if measured is None or at is None:
        return Finding(Result.NOT_MEASURED, "fewer than two similarities")
    return _near(at.value, at.within(measured.ratio - POINTS, measured.ratio + POINTS), (
        f"{at.text(100, '%')}; r = {100 * measured.ratio:.1f} %, "
        f"with the chunks' time to send {100 * measured.break_even:.1f} %"
    ))  # fmt: skip


def _as_predicted(cells: Sequence[CellRun]) -> Finding:
    measured, at = rates(cells, SEQCDC), break_even(cells, SEQCDC)
    if measured is None or at is None:
        return Finding(Result.NOT_MEASURED, "fewer than two similarities")
    predicted = measured.break_even
    evidence = f"{at.text(100, '%')}; predicted {100 * predicted:.1f} %"
    if math.isinf(at.value):
        highest = max(
            float(common.similarity.mean()) for run in cells if (common := pairs(run, SEQCDC))
        )
        agrees = predicted > highest - POINTS if at.value > 0 else predicted < POINTS
        return met_if(agrees, evidence)
    return _near(at.value, at.within(predicted - POINTS, predicted + POINTS), evidence)


def _near(value: float, within: bool | None, evidence: str) -> Finding:
    """Finding of an interval that is inside of a range, outside or across its limit."""
    if within is None or math.isnan(value):
        return Finding(Result.UNDECIDED, evidence)
    return met_if(within, evidence)


def excess(run: CellRun, after: int, contender: str = AUTO) -> float:
    """Mean time of a contender over that of the fastest static configuration, of versions later than `after`.

    Static configurations are those versions that they wrote.
    """
    own = mean_time([write for write in run.of(contender) if write.number > after])
    return own / min(mean_time(_later(run, name, after)) for name in STATIC)


def _later(run: CellRun, contender: str, after: int) -> list[Write]:
    return [write for write in run.of(contender) if write.number > after]


def _excess(cells: Sequence[CellRun], after: int) -> Finding:
    ratios = {run.cell.similarity: excess(run, after) for run in cells}
    worst = max(ratios, key=lambda similarity: ratios[similarity])
    mean = sum(ratios.values()) / len(ratios)
    evidence = f"{ratios[worst]:.3f} at {worst:.0%}, mean {mean:.3f}, n = {len(ratios)}"
    return met_if(ratios[worst] <= WORST and mean <= MEAN, evidence)


def final_choice(run: CellRun, contender: str = AUTO) -> str:
    """Configuration of most of the last writes of a controller."""
    last = [write.configuration for write in run.of(contender)[-LAST:]]
    return max(dict.fromkeys(last), key=last.count)


def _choices(cells: Sequence[CellRun]) -> Finding:
    correct, evaluated, wrong = 0, 0, []
    for run in cells:
        times = {normal_chunking(name): mean_time(run.of(name)) for name in STATIC}
        chosen, least = final_choice(run), min(times.values())
        if sum(time <= WORST * least for time in times.values()) > 1:
            # several choices are equally good: only a slower one is wrong
            acceptable = times[chosen] <= WORST * least
        else:
            acceptable = times[chosen] == least
        evaluated += 1
        correct += acceptable
        if not acceptable:
            wrong.append(f"{run.cell.similarity:.0%}: {chosen}")
    evidence = f"{correct} of {evaluated}" + (f"; {', '.join(wrong)}" if wrong else "")
    return met_if(correct == evaluated, evidence)


def planted(result: WriteResult) -> bool | None:
    """True if a controller that uses the slowest configuration would be detected; None without writes."""
    runs = [run for run in result.runs if run.cells]
    if not runs:
        return None
    spoilt = replace(
        result,
        runs=tuple(replace(run, cells=tuple(_slowest(cell) for cell in run.cells)) for run in runs),
    )
    missed = [claim_ for claim_ in claims_of(spoilt) if claim_.wording.startswith("auto: time")]
    return bool(missed) and all(claim_.result is Result.NOT_MET for claim_ in missed)


def _slowest(run: CellRun) -> CellRun:
    """The run, with the writes of the slowest configuration in place of the controller's."""
    slow = max(STATIC, key=lambda name: mean_time(run.of(name)))
    own = [write for write in run.writes if write.contender != AUTO]
    replaced = [replace(write, contender=AUTO) for write in run.writes if write.contender == slow]
    return replace(run, writes=(*own, *replaced))


def rows_of(result: WriteResult) -> list[record.Row]:
    """Ratios, break-evens, and times and stored bytes of each configuration and similarity."""
    rows: list[record.Row] = []
    for run in result.runs:
        case = f"{result.ground}, {run.case}"
        if run.calibration.reason:
            continue
        fixed = rates(run.cells, FIXED)
        if fixed is not None:
            measured = record.row(case, FIXED, "time to hash over time to send", [fixed.ratio], "1")
            rows.append({**measured, "quoted": True})
        for name in (FIXED, SEQCDC):
            at = break_even(run.cells, name)
            if at is not None:
                rows.append(_interval(case, name, "break-even similarity of time", at))
        for cell in run.cells:
            rows += _cell_rows(case, cell)
    return rows


def _interval(case: str, engine: str, metric: str, at: Estimate) -> record.Row:
    ends = (100 * at.value, 100 * at.low, 100 * at.high)
    if any(math.isinf(end) for end in ends):
        return {**record.evaluated(case, metric, at.text(100, "%"), "", ""), "engine": engine}
    row = record.row(case, engine, metric, [ends[0]], "%")
    return {**row, "low": ends[1], "high": ends[2], "spread": record.INTERVAL, "quoted": True}


def _cell_rows(case: str, run: CellRun) -> list[record.Row]:
    of = f"{case}, similarity {run.cell.similarity:.0%}"
    rows = []
    for contender in run.cell.contenders:
        name = contender.name
        times = [1e3 * write.time_s for write in run.of(name)]
        written = sum(write.bytes for write in run.writes if write.contender == name)
        rows.append(record.row(of, name, "time of a version", times, "ms"))
        share = 100 * run.stored_bytes[name] / written
        rows.append(record.row(of, name, "stored share of the versions", [share], "%"))
    return rows


def lines(result: WriteResult) -> list[str]:
    """The measured ratios and break-evens, as text."""
    text = []
    for run in result.runs:
        if run.calibration.reason:
            text.append(f"{run.case}: not measured: {run.calibration.reason}")
            continue
        fixed = rates(run.cells, FIXED)
        for name in (FIXED, SEQCDC):
            at = break_even(run.cells, name)
            if fixed is not None and at is not None:
                ratio = f"measured Th/Tio {fixed.ratio:.3f}"
                text.append(f"{run.case} ({ratio}): {name}: break-even {at.text(100, '%')}")
    return text
