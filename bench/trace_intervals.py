"""Simulated coverage of every interval that a trace prints.

Each row simulates recordings with known true values, evaluates them by the code that prints the interval, and
counts how often the true value lies inside, with the 99 % binomial (Clopper-Pearson) interval of that share.
A row fails if all of this interval lies below the nominal level. Planted failures: the same intervals with
half their width, which must be too narrow in the rows that leave room for it. Exit status 1 if a row fails,
or a narrowed one does not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.stats import beta, chi2, norm

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.pattern import cases
from penstock.analyse.traces.trace_compare import ratios_of
from penstock.observe.trace.capture.overhead import ROUNDS, interval, paired_runs

_native: Any = importlib.import_module("penstock._native")

Draws = np.random.Generator
Offsets = npt.NDArray[np.int64]
#: low end, value, high end, true value; None: no interval
Found = tuple[float, float, float, float] | None

SIZE = 4096
#: fewest independent latencies of which a p99 is compared
INDEPENDENT = 400


@dataclass(frozen=True)
class Printed:
    """An interval: its subject, its level, how one is simulated, and their number."""

    name: str
    nominal: float
    draw: Callable[[Draws], Found]
    trials: int = 1000
    #: half the width has no effect if the width is 0, the level leaves no room, or the interval is wide
    narrows: bool = True


@dataclass(frozen=True)
class Coverage:
    """Number of intervals that contain the true value, and their total."""

    covered: int
    trials: int

    @property
    def share(self) -> float:
        """Share of the computed intervals."""
        return self.covered / self.trials if self.trials else math.nan

    def ends(self, level: float = 0.99) -> tuple[float, float]:
        """Clopper-Pearson interval of the share."""
        tail = (1 - level) / 2
        low = beta.ppf(tail, self.covered, self.trials - self.covered + 1) if self.covered else 0.0
        missed = self.trials - self.covered
        high = beta.ppf(1 - tail, self.covered + 1, missed) if missed else 1.0
        return float(low), float(high)

    def below(self, nominal: float) -> bool:
        """True if the share is below the level by more than chance."""
        return self.ends()[1] < nominal


def simulate(printed: Printed, trials: int, seed: int) -> tuple[Coverage, Coverage]:
    """Simulate `trials` recordings: with the intervals as they are, and with half their width."""
    covered = computed = narrowed = 0
    for trial in range(trials):
        interval = printed.draw(np.random.default_rng([seed, trial]))
        if interval is None:
            continue
        low, value, high, truth = interval
        computed += 1
        covered += low <= truth <= high
        narrowed += (low + value) / 2 <= truth <= (high + value) / 2
    return Coverage(covered, computed), Coverage(narrowed, computed)


def verdict_on(offsets: Offsets, size: int, path: str) -> dict[str, Any]:
    """Classify one sequence."""
    sizes = np.full(len(offsets), size, np.int64)
    text = _native.classify(np.ascontiguousarray(offsets, np.int64), sizes, None, path)
    return dict(json.loads(text)["together"])


def _bursts(draws: Draws, n: int, share: float, length: float) -> npt.NDArray[np.bool_]:
    """Positions of interruptions: `share` of the requests, in runs of `length` on average."""
    stop = 1 / length
    start = share / (1 - share) * stop
    hit = np.zeros(n, bool)
    state = draws.random() < share
    at = 0
    while at < n:
        run = int(draws.geometric(stop if state else start))
        hit[at : at + run] = state
        at += run
        state = not state
    return hit


def _elsewhere(draws: Draws, offsets: Offsets, hit: npt.NDArray[np.bool_]) -> Offsets:
    out = offsets.copy()
    out[hit] = (1 << 44) + draws.integers(0, 1 << 22, int(hit.sum())) * SIZE
    return out


#: class → its sequence, its expected verdict, and the number of successive requests on which a step of its
#: rule rests
_ORDERS: dict[str, tuple[Callable[[Draws, int], Offsets], int]] = {
    "consecutive": (lambda draws, n: cases.consecutive(n, SIZE), 2),
    "reverse": (lambda draws, n: cases.reverse(n, SIZE, 1 << 40), 2),
    "strided": (lambda draws, n: cases.strided(n, (16 * SIZE,)), 3),
    "sequential": (lambda draws, n: cases.gaps(draws, n, SIZE), 2),
    "interleaved": (lambda draws, n: cases.streams(draws, n, SIZE, 3, "random")[0], 1),
}


def confidence(kind: str, path: str, n: int, length: float) -> Callable[[Draws], Found]:
    """Bound of a class whose requests are interrupted: at random, or in bursts of `length`."""
    make, rests_on = _ORDERS[kind]
    share = (0.02 if kind == "strided" else 0.015) * (1 if length == 1 else 0.75)

    def classify_one(draws: Draws) -> dict[str, Any]:
        hit = _bursts(draws, n, share, length) if length > 1 else draws.random(n) < share
        hit[: rests_on + 4] = False
        return verdict_on(_elsewhere(draws, make(draws, n), hit), SIZE, path)

    @cache
    def expected_share() -> float:
        # an interruption also cuts chains into pieces that are too short to count
        verdicts = (classify_one(np.random.default_rng([92, trial])) for trial in range(200))
        return float(np.mean([v["evidence"]["chains"]["held_share"] for v in verdicts]))

    def draw(draws: Draws) -> Found:
        verdict = classify_one(draws)
        if verdict["class"] != kind:
            return None
        if kind == "interleaved":
            value = verdict["evidence"]["chains"]["held_share"]
            return verdict["confidence"], value, math.inf, expected_share()
        # a step counts if none of its requests was interrupted
        undisturbed = (1 - share) if length > 1 else (1 - share) ** rests_on
        if length > 1:
            start = share / (1 - share) / length
            undisturbed *= (1 - start) ** (rests_on - 1)
        shares = {
            "consecutive": verdict["consecutive_share"],
            "reverse": verdict["reverse_share"],
            "sequential": verdict["sequential_share"],
        }
        value = shares.get(kind, undisturbed)
        return verdict["confidence"], value, math.inf, undisturbed

    return draw


def random_confidence(path: str, n: int) -> Callable[[Draws], Found]:
    """The bound of `random`: every request to any of 64 blocks."""
    blocks = 64

    def draw(draws: Draws) -> Found:
        verdict = verdict_on(draws.integers(0, blocks, n) * SIZE, SIZE, path)
        if verdict["class"] != "random":
            return None
        truth = 1 - (blocks - 1) / blocks**2
        return verdict["confidence"], 1 - verdict["consecutive_share"], math.inf, truth

    return draw


@cache
def _hot_share(n: int, blocks: int, exponent: float) -> float:
    """Mean share of the busiest fifth of the touched blocks in recordings of this length."""
    sums = 0.0
    for trial in range(300):
        draws = np.random.default_rng([91, trial])
        counts = np.bincount(cases.zipf(draws, n, 1, blocks, exponent), minlength=blocks)
        counts = np.sort(counts[counts > 0])[::-1]
        sums += counts[: -(-len(counts) // 5)].sum() / n
    return sums / 300


def hot_confidence(path: str, n: int, blocks: int, exponent: float) -> Callable[[Draws], Found]:
    """The bound of `hot-set`: the share of the busiest fifth, by all blocks or a sample of them."""

    def draw(draws: Draws) -> Found:
        verdict = verdict_on(cases.zipf(draws, n, SIZE, blocks, exponent), SIZE, path)
        if verdict["class"] != "hot-set":
            return None
        value = verdict["evidence"]["spread"]["top_fifth_share"]
        return verdict["confidence"], value, math.inf, _hot_share(n, blocks, exponent)

    return draw


def zipf(path: str, n: int, blocks: int, exponent: float) -> Callable[[Draws], Found]:
    """The exponent, for any class."""

    def draw(draws: Draws) -> Found:
        verdict = verdict_on(cases.zipf(draws, n, SIZE, blocks, exponent), SIZE, path)
        spread = verdict["evidence"].get("spread")
        if spread is None or not spread["zipf_half_width"]:
            return None
        value, half = spread["zipf_exponent"], spread["zipf_half_width"]
        return value - half, value, value + half, exponent

    return draw


def border(path: str, n: int, first: str, second: str) -> Callable[[Draws], Found]:
    """The border of two phases, within 1 % of the requests; by epochs within one of 1,024."""

    def draw(draws: Draws) -> Found:
        cut = round(draws.uniform(0.15, 0.85) * n)
        offsets = np.concatenate(
            [
                cases.phase(draws, first, cut, SIZE, 0),
                cases.phase(draws, second, n - cut, SIZE, 1),
            ]
        )
        verdict = verdict_on(offsets, SIZE, path)
        phases = verdict["evidence"].get("phases") or []
        within = 0.01 * n if path == "exact" else max(0.01 * n, 1024)
        value = phases[1]["first"] if len(phases) == 2 else -n
        return value - within, value, value + within, cut

    return draw


def uniformity(n: int) -> Callable[[Draws], Found]:
    """Chi-squared of uniform starts: below its 95 % quantile."""

    def draw(draws: Draws) -> Found:
        verdict = verdict_on(draws.integers(0, 1 << 22, n) * SIZE, SIZE, "exact")
        test = verdict["evidence"]["uniformity"]
        most = float(chi2.ppf(0.95, test["degrees_of_freedom"]))
        return -math.inf, most, most, test["chi_squared"]

    return draw


def log_of_short_processes(planted: bool = False) -> Callable[[Draws], Found]:
    """A log to which many processes append small lines: `consecutive`; planted: in random order."""

    def draw(draws: Draws) -> Found:
        processes, size = int(draws.integers(40, 120)), int(draws.choice([24, 64, 200, 700]))
        each = draws.integers(1, 4, processes)
        n = int(each.sum())
        order = draws.permutation(n) if planted else np.arange(n)
        offsets = np.ascontiguousarray(order * size, np.int64)
        tids = np.repeat(np.arange(1, processes + 1), each).astype(np.uint32)
        path = "epochs" if draws.random() < 0.5 else "exact"
        text = _native.classify(offsets, np.full(n, size, np.int64), tids, path)
        right = json.loads(text)["together"]["class"] == "consecutive"
        return 0.0, 0.0, 0.0, 0.0 if right else 1.0

    return draw


def paired(pairs: int, spread: float, tail: float) -> Callable[[Draws], Found]:
    """`--calibrate`: overhead of a command, from pairs of runs of different lengths."""

    def draw(draws: Draws) -> Found:
        def run(factor: float) -> float:
            slow = 1.5 if draws.random() < tail else 1.0
            return factor * slow * float(np.exp(spread * draws.standard_normal()))

        estimate = paired_runs(lambda: run(1.0), lambda: run(1.02), pairs, 0.008)
        middle = 0.02  # both have the same spread; so has their difference, up to the second order
        return estimate.low, estimate.share, estimate.high, middle

    return draw


def calibration(spread: float) -> Callable[[Draws], Found]:
    """Additional time of a call [ns]: the range of the rounds' differences."""

    def draw(draws: Draws) -> Found:
        added = 150 + spread * draws.standard_t(3, ROUNDS)
        middle, low, high = interval(added.tolist())
        return low, middle, high, 150.0

    return draw


def ratio(measure: str, n: int, law: str, memory: float) -> Callable[[Draws], Found]:
    """`penstock compare`: twice the latency in B; `memory` is the correlation of neighbours in time."""

    def series(draws: Draws, factor: float) -> npt.NDArray[np.float64]:
        noise = draws.standard_normal(n + 200)
        noise = lfilter([math.sqrt(1 - memory**2)], [1, -memory], noise)[200:]
        if law == "exponential":
            return np.asarray(-np.log(np.maximum(norm.sf(noise), 1e-300)) * factor)
        return np.asarray(np.exp(noise) * factor)

    def draw(draws: Draws) -> Found:
        estimate = ratios_of(series(draws, 1.0), series(draws, 2.0), draws).get(measure)
        if estimate is None:
            return None
        return (
            math.log(estimate.low),
            math.log(estimate.value),
            math.log(estimate.high),
            math.log(2),
        )

    return draw


def printed_intervals(quick: bool) -> Iterator[Printed]:
    """All tested intervals."""
    for path in ("exact", "epochs") if quick else ("exact", "streaming", "epochs"):
        for kind in _ORDERS:
            for length in (1.0, 4.0):
                for n in (10_007,) if quick else (1009, 10_007, 40_009):
                    manner = "singly" if length == 1 else "in bursts"
                    yield Printed(
                        f"confidence, {kind} interrupted {manner}, n {n}, {path}",
                        0.975,
                        confidence(kind, path, n, length),
                        narrows=kind != "strided",
                    )
        yield Printed(f"confidence, random, {path}", 0.975, random_confidence(path, 10_007))
        hot = hot_confidence(path, 40_009, 8192, 1.2)
        # by all blocks, requests vary less than the bound allows: half of it is enough
        yield Printed(
            f"confidence, hot-set, {path}", 0.975, hot, 300 if quick else 1000, path == "epochs"
        )
    for path in ("exact", "epochs"):
        for exponent in (0.8, 1.2) if quick else (0.6, 0.8, 1.0, 1.2, 1.4, 1.6):
            for blocks in (2048,) if quick else (512, 2048, 8192):
                for per_block in (8,) if quick else (8, 32):
                    yield Printed(
                        f"zipf exponent {exponent}, {blocks} blocks, {per_block} requests each, {path}",
                        0.95,
                        zipf(path, per_block * blocks, blocks, exponent),
                        400,
                    )
    for path in ("exact", "streaming", "epochs"):
        for first, second in (("consecutive", "random"), ("interleaved", "strided")):
            yield Printed(
                f"border of phases, {first} then {second}, {path}",
                0.99,
                border(path, 40_009, first, second),
                narrows=False,
            )
    for n in (1009, 10_007):
        yield Printed(f"chi-squared of uniform starts, n {n}", 0.95, uniformity(n), 2000, False)
    yield Printed(
        "class of a log that short processes append to",
        0.9999,
        log_of_short_processes(),
        4000 if quick else 50_000,
        False,
    )
    for pairs in (6, 15) if quick else (6, 10, 15, 30):
        for spread, tail in ((0.01, 0.0), (0.05, 0.1)):
            yield Printed(
                f"--calibrate, {pairs} pairs, spread {spread}, {tail:.0%} of the runs slow",
                0.95,
                paired(pairs, spread, tail),
                2000,
            )
    yield Printed("ns per call, six rounds", 0.95, calibration(30.0), 2000)
    for measure, sizes in (("mean", (30, 400, 4000)), ("p50", (30, 4000)), ("p99", (800, 4000))):
        for law in ("exponential", "log-normal"):
            for memory in (0.0, 0.8):
                for n in sizes[-1:] if quick else sizes:
                    dependence = "in clusters" if memory else "independent"
                    if measure == "p99" and n * (1 - memory) / (1 + memory) < INDEPENDENT:
                        continue  # compare prints no interval
                    yield Printed(
                        f"compare, {measure} of {n} {law} latencies, {dependence}",
                        0.95,
                        ratio(measure, n, law, memory),
                        600,
                        narrows=measure != "p99" or not memory,
                    )


def main() -> int:
    """Run all simulations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, a third of the draws")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    rows, failed = [], 0
    for printed in printed_intervals(arguments.quick):
        if arguments.only not in printed.name:
            continue
        trials = max(printed.trials // 3, 100) if arguments.quick else printed.trials
        coverage, narrowed = simulate(printed, trials, arguments.seed)
        low, high = coverage.ends() if coverage.trials else (math.nan, math.nan)
        too_low = coverage.trials == 0 or coverage.below(printed.nominal)
        missed = printed.narrows and not narrowed.below(printed.nominal)
        failed += too_low or missed
        rows.append(
            {
                "interval": printed.name,
                "nominal": printed.nominal,
                "coverage": coverage.share,
                "low": low,
                "high": high,
                "n": coverage.trials,
                "too_narrow": too_low,
                "planted": None if not printed.narrows else not missed,
            }
        )
        if not arguments.json:
            status = "TOO NARROW" if too_low else "planted NOT FOUND" if missed else "ok"
            print(
                f"{printed.name:76} {printed.nominal:6.2%} {coverage.share:7.2%} [{low:.2%}, {high:.2%}] "
                f"n {coverage.trials}  {status}",
                flush=True,
            )
    wrong = Printed("a log in any order", 0.9999, log_of_short_processes(planted=True))
    wrong_detected = simulate(wrong, 100, arguments.seed)[0].below(0.9999)
    record.keep(
        arguments.record,
        [_record_row(row) for row in rows],
        {
            "each interval with half its width, where it leaves room": all(
                row["planted"] is not False for row in rows
            ),
            "a log written in any order": wrong_detected,
        },
        "The share of simulated recordings whose interval holds the truth.",
    )
    if arguments.json:
        print(json.dumps(rows))
    else:
        print(f"a log written in any order: {'found' if wrong_detected else 'NOT FOUND'}")
        print(f"{len(rows) - failed} of {len(rows)} intervals have their nominal coverage")
    return int(failed > 0 or not wrong_detected)


def _record_row(row: dict[str, Any]) -> record.Row:
    """A row of the bench in the form of the results."""
    return {
        "case": row["interval"],
        "engine": "",
        "metric": "holds the truth",
        **{key: 100 * row[name] for key, name in (("value", "coverage"), ("low", "low"))},
        "high": 100 * row["high"],
        "unit": "%",
        "spread": "99 % interval",
        "n": row["n"],
        "bar": f"{100 * row['nominal']:g} %",
        "verdict": record.MISSED if row["too_narrow"] else record.MET,
    }


if __name__ == "__main__":
    raise SystemExit(main())
