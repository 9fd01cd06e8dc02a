"""Rate of sending below which deduplication pays off: from the processor's throughput, and by real writes.

Deduplication pays off if hashing takes less time than sending the saved bytes. For a similarity Z, and
chunking and hashing at H bytes/s, that is at rates below Z H. Writes also pay for more and smaller files in
the store: their times without a limit of the rate predict a crossover of its own, which writes at half of it,
at it and at twice it verify.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench import record
from penstock.parts.dedup.measure import CHUNKERS, measure
from penstock.parts.dedup.options import HASHES
from studies.claims import Claim, Finding, Result, claim, met_if
from studies.dedup_study.break_even import (
    Estimate,
    crossing,
    estimate,
    generator,
    mean_time,
    pairs,
    samples,
)
from studies.dedup_study.cells import FIXED, MIB, OFF, SEQCDC, Cell, CellRun, static
from studies.dedup_study.ground import Ground

FASTCDC = "fastcdc:16KiB,64KiB,256KiB"
#: configurations whose similarity is measured; their chunks have the same average size
SMALL = "fixed:64KiB"
CONFIGURATIONS = (SMALL, FASTCDC, SEQCDC)
#: chunkers of `penstock dedup measure`, by configuration
CHUNKER = dict(zip((FASTCDC, SEQCDC), CHUNKERS, strict=True))
#: similarity of the versions that are written: low, so that a crossover exists also where the ground is slow
SIMILARITY = 0.3
HASH = "sha256"
#: rates of the writes, over the predicted crossover
FACTORS = (0.5, 1.0, 2.0)
#: links that are common
LINK_BPS = 125e6
#: largest difference of the times at the crossover; largest deviation of the measured crossover
AT_CROSSOVER, NEAR = 0.10, 0.25
#: similarity without a measured one, by the name of the data
PRESETS = {"archive (60 %)": (0.6,), "images (95 %)": (0.95,)}
GB = 1e9
#: text of an infinite rate: at all rates, deduplication pays off
UNLIMITED = "any rate"


@dataclass(frozen=True)
class Size:
    """Repeats of the throughput, and versions that are written at each rate."""

    repeats: int
    versions: int
    size_bytes: int = 32 * MIB


FULL, QUICK = Size(15, 40), Size(3, 8)


@dataclass(frozen=True)
class RateRun:
    """Writes at a limit of the rate; None: at the highest rate of the ground."""

    rate_bps: float | None
    run: CellRun


@dataclass(frozen=True)
class CrossoverResult:
    """Bytes/s of each hash and chunker, by repeat; similarity of data, and writes, by configuration.

    `writes`: the first run of each configuration has no limit.
    """

    ground: str
    throughput: dict[str, tuple[float, ...]]
    similarity: dict[str, dict[str, tuple[float, ...]]]
    writes: dict[str, tuple[RateRun, ...]]
    #: reasons why a configuration has no writes at a limit
    reasons: dict[str, str]


def measured_throughput(repeats: int) -> dict[str, tuple[float, ...]]:
    """Bytes/s of each hash and chunker on one core, once for each repeat, all in turn."""
    results: dict[str, list[float]] = {}
    for _ in range(repeats):
        for throughput in measure(1):
            results.setdefault(throughput.name, []).append(throughput.median)
    return {name: tuple(values) for name, values in results.items()}


def measure_part(
    ground: Ground, size: Size, similarity: Mapping[str, Mapping[str, Sequence[float]]]
) -> CrossoverResult:
    """Measure the throughput, then write at the highest rate and around the predicted crossover.

    `similarity`: shares of real data by name and configuration, of each pair of versions.
    """
    throughput = measured_throughput(size.repeats)
    writes: dict[str, tuple[RateRun, ...]] = {}
    reasons: dict[str, str] = {}
    for chunking in (FIXED, SEQCDC):
        ground.limit(None)
        first = RateRun(None, ground.run(_cell(chunking, size)))
        runs = [first]
        predicted = predicted_crossover(first.run, chunking)
        _note(f"{chunking}: predicted crossover {_rate(predicted)}")
        if not math.isfinite(predicted):
            reasons[chunking] = "deduplication is faster also without a limit"
        for factor in FACTORS if chunking not in reasons else ():
            ground.limit(factor * predicted)
            runs.append(RateRun(factor * predicted, ground.run(_cell(chunking, size))))
            _note(f"  {_rate(factor * predicted)}: dedup takes {_ratio(runs[-1], chunking):.3f}")
        writes[chunking] = tuple(runs)
    of_data = {
        name: {chunking: tuple(shares) for chunking, shares in shares_by.items()}
        for name, shares_by in similarity.items()
    }
    return CrossoverResult(ground.name, throughput, of_data, writes, reasons)


def _cell(chunking: str, size: Size) -> Cell:
    # versions of which a chunker finds about the nominal similarity, as changes are larger than its chunks
    contenders = (static(OFF), static(chunking))
    n = size.versions
    return Cell(SIMILARITY, contenders, n, size.size_bytes, MIB, n, hash=HASH)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rate(rate_bps: float) -> str:
    return f"{rate_bps / 1e6:.0f} MB/s" if math.isfinite(rate_bps) else str(rate_bps)


def _ratio(rate_run: RateRun, chunking: str) -> float:
    both_pairs = pairs(rate_run.run, chunking)
    return math.nan if both_pairs is None else both_pairs.ratio


def predicted_crossover(run: CellRun, chunking: str) -> float:
    """Rate below which deduplication pays off, from writes without a limit; infinite if it always does.

    A limit of B bytes/s adds 1 / B to a byte without deduplication, and (1 - Z) / B to one with it.
    """
    on, off = run.of(chunking), run.of(OFF)
    size = run.cell.size_bytes
    extra_s = (mean_time(on) - mean_time(off)) / size
    similarity = float(np.mean([write.similarity for write in on]))
    return similarity / extra_s if extra_s > 0 else math.inf


def processor_crossover(
    throughput: Mapping[str, Sequence[float]],
    chunking: str,
    hash_name: str,
    similarity: Sequence[float],
) -> Estimate:
    """Rate below which deduplication pays off, if chunking and hashing were its only costs."""
    hashing = 1 / np.array(throughput[hash_name])
    cutting = 1 / np.array(throughput[CHUNKER[chunking]]) if chunking in CHUNKER else 0 * hashing
    shares, costs = np.array(similarity), hashing + cutting
    random = generator()
    # all were measured in turn: one repeat is one state of the host
    sampled_costs = costs[samples(random, len(costs))].mean(axis=1)
    sampled_shares = shares[samples(random, len(shares))].mean(axis=1)
    return estimate(float(shares.mean() / costs.mean()), sampled_shares / sampled_costs)


def cdc_over_fixed(result: CrossoverResult, data: str) -> float:
    """Rate below which content-defined chunks (seqcdc) are faster than fixed ones; 0 if never."""
    shares = {name: float(np.mean(values)) for name, values in result.similarity[data].items()}
    cutting = float(np.mean(1 / np.array(result.throughput[CHUNKER[SEQCDC]])))
    return max(0.0, (shares[SEQCDC] - shares[SMALL]) / cutting)


def measured_crossover(runs: Sequence[RateRun], chunking: str) -> Estimate | None:
    """Rate at which writes with and without deduplication take the same time, between the written rates.

    Interpolated over the time per byte 1 / B, in which the times are linear. None without two limited rates.
    """
    cells = [
        (1 / rate_run.rate_bps, common)
        for rate_run in runs
        if rate_run.rate_bps is not None and (common := pairs(rate_run.run, chunking)) is not None
    ]
    if len(cells) < 2:
        return None
    x = [per_byte for per_byte, _ in cells]
    more = [float((common.on_s - common.off_s).mean()) for _, common in cells]
    random = generator()
    means = [common.resampled(random) for _, common in cells]
    sampled = np.column_stack([on - off for _, on, off in means]).tolist()
    return estimate(_rate_at(x, more), (_rate_at(x, resampled) for resampled in sampled))


def _rate_at(x: Sequence[float], more: Sequence[float]) -> float:
    """Rate at which the time that deduplication takes more falls to 0; `x`: times per byte."""
    at = crossing(x, more, 0.0)
    return math.inf if at <= 0 else 0.0 if math.isinf(at) else 1 / at


def claims_of(result: CrossoverResult, data: Sequence[str] = ()) -> list[Claim]:
    """Claims on the writes at three rates, and on common links. `data`: names of required data."""
    claims = [verified for chunking in (FIXED, SEQCDC) for verified in _verified(result, chunking)]
    names = tuple(dict.fromkeys((*data, *result.similarity)))
    for name in names:
        shares = result.similarity.get(name, {})
        needs = {f"similarity of {name}": int(SEQCDC in shares)}
        claims.append(
            claim(
                f"crossover, {name}",
                "content-defined chunks pay off on one core of this host at 1 Gbit/s",
                needs,
                lambda shares=shares: _on_link(result, shares[SEQCDC]),
                published="content-defined chunking never pays off on processors (2010)",
                criterion="the interval of the crossover is above 1 Gbit/s",
            )
        )
    return claims


def _verified(result: CrossoverResult, chunking: str) -> list[Claim]:
    runs = result.writes.get(chunking, ())
    case = f"crossover of {chunking}, similarity {SIMILARITY:.0%}"
    limited = [rate_run for rate_run in runs if rate_run.rate_bps is not None]
    needs = {
        f"{chunking} at {factor:g} of the crossover": int(number < len(limited))
        for number, factor in enumerate(FACTORS)
    }
    return [
        claim(
            case,
            "faster than off at half of the predicted rate, slower at twice it",
            needs,
            lambda: _signs(limited, chunking),
            criterion=f"and within {AT_CROSSOVER:.0%} of it at the predicted rate",
        ),
        claim(
            case,
            "the measured rate is the predicted one",
            needs,
            lambda: _as_predicted(runs, chunking),
            criterion=f"within {NEAR:.0%}",
        ),
    ]


def _signs(limited: Sequence[RateRun], chunking: str) -> Finding:
    ratios = [_ratio(rate_run, chunking) for rate_run in limited]
    evidence = ", ".join(
        f"{ratio:.3f} at {_rate(rate_run.rate_bps or 0.0)}"
        for ratio, rate_run in zip(ratios, limited, strict=True)
    )
    half, at, twice = ratios
    return met_if(half < 1 < twice and abs(at - 1) <= AT_CROSSOVER, evidence)


def _as_predicted(runs: Sequence[RateRun], chunking: str) -> Finding:
    predicted, at = predicted_crossover(runs[0].run, chunking), measured_crossover(runs, chunking)
    if at is None:
        return Finding(Result.NOT_MEASURED, "fewer than two rates")
    evidence = f"{at.text(1e-6, 'MB/s', '.0f', UNLIMITED)}; predicted {_rate(predicted)}"
    within = at.within((1 - NEAR) * predicted, (1 + NEAR) * predicted)
    return Finding(Result.UNDECIDED, evidence) if within is None else met_if(within, evidence)


def _on_link(result: CrossoverResult, similarity: Sequence[float]) -> Finding:
    at = processor_crossover(result.throughput, SEQCDC, "blake3", similarity)
    evidence = at.text(8 / GB, "Gbit/s", ".2f", UNLIMITED)
    within = at.within(LINK_BPS, math.inf)
    return Finding(Result.UNDECIDED, evidence) if within is None else met_if(within, evidence)


def planted(result: CrossoverResult) -> bool | None:
    """True if a prediction for a processor of a tenth of the speed is contradicted; None without writes."""
    for chunking, runs in result.writes.items():
        at = measured_crossover(runs, chunking)
        if at is None:
            continue
        wrong = predicted_crossover(runs[0].run, chunking) / 10
        return at.within((1 - NEAR) * wrong, (1 + NEAR) * wrong) is False
    return None


def rows_of(result: CrossoverResult) -> list[record.Row]:
    """Throughput, crossovers by data, configuration and hash, and those of the writes."""
    rows = [
        record.row("one core, from memory", name, "throughput", [v / GB for v in values], "GB/s")
        for name, values in result.throughput.items()
    ]
    for data, by in result.similarity.items():
        for chunking, shares in by.items():
            for hash_name in HASHES:
                at = processor_crossover(result.throughput, chunking, hash_name, shares)
                engine = f"{chunking}, {hash_name}"
                metric = "crossover by chunking and hashing alone"
                rows.append(_row(f"crossover, {data}", engine, metric, at))
        if SMALL in by and SEQCDC in by:
            rate = 8 * cdc_over_fixed(result, data) / GB
            metric = "rate below which it is faster than fixed chunks"
            rows.append(record.row(f"crossover, {data}", SEQCDC, metric, [rate], "Gbit/s"))
    for chunking, runs in result.writes.items():
        at_writes = measured_crossover(runs, chunking)
        case = f"crossover, writes to an {result.ground}, similarity {SIMILARITY:.0%}"
        if at_writes is not None:
            rows.append(_row(case, f"{chunking}, {HASH}", "crossover by writes", at_writes))
    return rows


def _row(case: str, engine: str, metric: str, at: Estimate) -> record.Row:
    ends = [8 * end / GB for end in (at.value, at.low, at.high)]
    if not all(math.isfinite(end) for end in ends):
        text = at.text(8 / GB, "Gbit/s", ".2f", UNLIMITED)
        return {**record.evaluated(case, metric, text, "", ""), "engine": engine}
    row = record.row(case, engine, metric, [ends[0]], "Gbit/s")
    return {**row, "low": ends[1], "high": ends[2], "spread": record.INTERVAL, "quoted": True}


def lines(result: CrossoverResult) -> list[str]:
    """Crossovers as text."""
    text = []
    for data, by in result.similarity.items():
        for chunking, shares in by.items():
            at = processor_crossover(result.throughput, chunking, "blake3", shares)
            text.append(
                f"{data}: {chunking} pays off below {at.text(8 / GB, 'Gbit/s', '.2f', UNLIMITED)}"
            )
    for chunking, runs in result.writes.items():
        measured = measured_crossover(runs, chunking)
        if measured is not None:
            rate = measured.text(8 / GB, "Gbit/s", ".2f", UNLIMITED)
            text.append(f"writes, similarity {SIMILARITY:.0%}: {chunking} pays off below {rate}")
    return text


def similarities(
    real: Mapping[str, Mapping[str, Sequence[float]]],
) -> dict[str, dict[str, Sequence[float]]]:
    """Shares by data and configuration: published presets, and measured ones of real data.

    Presets are those of an exact similarity that all configurations find.
    """
    presets: dict[str, dict[str, Sequence[float]]] = {
        name: dict.fromkeys(CONFIGURATIONS, shares) for name, shares in PRESETS.items()
    }
    return presets | {name: dict(by) for name, by in real.items()}
