#!/usr/bin/env python3
"""The online controller of deduplication on a simulated store: overhead, regret, correct choices, energy.

The simulator drives the controller that a mount uses. Each case runs with several seeds; low and high are
the smallest and the largest over them. Regret is the cost beyond the best configuration of each write, in
which a change of configuration costs nothing; the published controller probes five writes in each hundred
and five. Goals: a hundred writes take at most 5 % longer than the better static choice, 3 % on average; the
regret is at most half of the published controller's where similarity changes; the cost is never more than 5
% above that of the better static choice. Where the mean similarity is the break-even, no policy can gain
anything: in that case, the excess over the static choice is shown. A controller that never changes its first
decision is planted and must miss goals. Exit status 1 if a goal is missed or the planted controller is not
detected.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.controller.power_meter import measured_break_even
from penstock.parts.dedup.controller.conflict import conflict
from penstock.parts.dedup.controller.energy import TESTBEDS, break_even, wrong_decision
from penstock.parts.dedup.controller.model import break_even_equal_weights, relative_utility
from penstock.parts.dedup.controller.online import OnlineController
from penstock.parts.dedup.controller.settings import Settings, published
from penstock.parts.dedup.controller.simulation.run import (
    AUTO,
    PUBLISHED,
    Simulation,
    simulate,
)
from penstock.parts.dedup.controller.simulation.store import Scenario
from penstock.parts.dedup.controller.utility import Utility
from penstock.parts.dedup.record import WriteRecord

FIXED, CDC = "fixed:65536", "fastcdc:16384:65536:262144"
MIB = 1 << 20
PERCENT = range(0, 101, 10)
RATIOS = (0.16, 0.40, 0.50)
EQUAL = Utility((-0.5, -0.5, 0.0))
CHANGING = (
    "steps:70%,0%,40",
    "steps:70%,0%,300",
    "sinusoid:35%,35%,200",
    "random:0%,100%",
    "levels:0%,100%,40",
)
#: changes too fast for the controller to follow
FAST = ("steps:70%,0%,5", "steps:70%,0%,2", "steps:70%,70%,70%,0%,5", "random:0%,80%")


def run(r: float, z: str, settings: Settings | None = None, **options: object) -> Simulation:
    scenario = Scenario({FIXED: r}, {FIXED: z}, **options)  # type: ignore[arg-type]
    return simulate(scenario, settings or Settings())


def right(result: Simulation, better_on: bool) -> bool:
    return result.decisions[-1].configuration == (FIXED if better_on else "off")


def static_choices(
    seeds: Sequence[int], sizes: Iterable[int], settings: Settings
) -> list[record.Row]:
    """A hundred writes at constant similarity."""
    rows = []
    for size, r in itertools.product(sizes, RATIOS):
        largest, means, correct, total = [], [], 0, 0
        for seed in seeds:
            ratios = []
            for percent in PERCENT:
                result = run(
                    r, f"{percent}%", settings, writes=100, write_bytes=size * MIB, seed=seed
                )
                ratios.append(1 + result.excess())
                if abs(percent / 100 - r) > 0.05:
                    correct += right(result, percent / 100 > r)
                    total += 1
            largest.append(max(ratios))
            means.append(statistics.fmean(ratios))
        case = f"100 writes of {size} MiB, r = {r:g}"
        metric = "time over the better static choice"
        rows += [
            record.at_most(record.row(case, AUTO, f"{metric}, largest", largest, "1"), 1.05),
            record.at_most(record.row(case, AUTO, f"{metric}, mean", means, "1"), 1.03),
            record.share(case, AUTO, "right choices", correct, total),
        ]
    return rows


def equal_weights(seeds: Sequence[int]) -> list[record.Row]:
    """Break-even and relative utility if time and space have equal weights."""
    rows = []
    settings = Settings(utility=EQUAL)
    for r in (*RATIOS, 0.60):
        even, correct, total, utilities = break_even_equal_weights(r), 0, 0, []
        for seed in seeds:
            for offset in (-0.04, 0.04):
                result = run(r, f"{100 * (even + offset):.2f}%", settings, writes=200, seed=seed)
                correct += right(result, offset > 0)
                total += 1
            result = run(r, "70%", settings, writes=200, seed=seed)
            off, auto = result.outcomes["always off"], result.outcomes[AUTO]
            longest = max(off.time_s, auto.time_s)
            utility = 0.5 * auto.time_s / longest + 0.5 * auto.space_bytes / off.space_bytes
            worst = 0.5 * off.time_s / longest + 0.5
            utilities.append(100 * abs(worst / utility / relative_utility(r, 0.7) - 1))
        case = f"equal weights, r = {r:g}"
        rows.append(record.share(case, AUTO, "right 4 points from break-even", correct, total))
        metric = "deviation of the relative utility at 70 %"
        rows.append(record.at_most(record.row(case, AUTO, metric, utilities, "%"), 5))
    return rows


def probing(seeds: Sequence[int]) -> list[record.Row]:
    """Overhead at a similarity of 0."""
    rows = []
    for r, share in ((0.5, 2.5), (0.6, 3.0), (1.0, 5.0)):
        case = f"similarity 0 %, r = {r:g}, 2,000 writes"
        published_percent, auto_percent = [], []
        for seed in seeds:
            scenario = Scenario({FIXED: r}, {FIXED: "0%"}, writes=2000, seed=seed)
            result = simulate(scenario, Settings(), reference=published(reprobe_after=95))
            published_percent.append(100 * result.excess(PUBLISHED))
            auto_percent.append(100 * result.excess())
        row = record.row(case, PUBLISHED, "overhead of probes, 5 in 100", published_percent, "%")
        rows.append(record.at_most(row, 1.02 * share))
        rows.append(record.at_most(record.row(case, AUTO, "overhead", auto_percent, "%"), share))
    case = "similarity 0 %, r = 1"
    rare = Settings(reprobe_after=10**6, reprobe_most=10**6)
    sampled = []
    for seed in seeds:
        result, without_samples = (
            run(1.0, "0%", settings, writes=1000, seed=seed)
            for settings in (rare, replace(rare, sampling=None))
        )
        extra_s = result.outcomes[AUTO].time_s - without_samples.outcomes[AUTO].time_s
        sampled.append(100 * extra_s / result.outcomes["always off"].time_s)
    rows.append(record.at_most(record.row(case, AUTO, "overhead of samples", sampled, "%"), 2))
    return rows


def changing(seeds: Sequence[int], writes: int, settings: Settings) -> list[record.Row]:
    """Regret and excess if similarity changes."""
    rows = []
    for z, r in itertools.product((*CHANGING, *FAST), (*RATIOS, 0.60)):
        results = [run(r, z, settings, writes=writes, seed=seed) for seed in seeds]
        case = f"{z}, r = {r:g}"
        excess = [100 * result.excess() for result in results]
        tie = z == "random:0%,100%" and r == 0.5
        if z in CHANGING:
            for name in (AUTO, PUBLISHED):
                values = [100 * result.regret(name) for result in results]
                rows.append(record.row(case, name, "regret", values, "%"))
            ratios = [result.regret() / result.regret(PUBLISHED) for result in results]
            row = record.row(case, AUTO, "regret over the published", ratios, "1")
            # at r = 0.60 the possible gain is small: reported without a goal, like the tie
            rows.append(row if tie or r == 0.60 else record.at_most(row, 0.5))
        metric = "excess over the better static choice"
        worst = record.row(case, AUTO, metric, excess, "%")
        rows.append(record.at_most({**worst, "value": max(excess)}, 5))
    return rows


def best_of_three(seeds: Sequence[int]) -> list[record.Row]:
    """Final choices of off, fixed and content-defined chunks over a grid."""
    correct = total = 0
    similar = [step / 10 for step in range(0, 11, 2)]
    for seed, fixed, slower, z_fixed, z_cdc in itertools.product(
        seeds, (0.16, 0.35, 0.5), (1.2, 2.0, 3.0), similar, similar
    ):
        cdc = slower * fixed
        times = {"off": 1.0, FIXED: 1 + fixed - z_fixed, CDC: 1 + cdc - z_cdc}
        scenario = Scenario(
            {FIXED: fixed, CDC: cdc},
            {FIXED: f"{100 * z_fixed:g}%", CDC: f"{100 * z_cdc:g}%"},
            writes=60,
            seed=seed,
        )
        chosen = simulate(scenario, Settings()).decisions[-1].configuration
        correct += math.isclose(times[chosen], min(times.values()), rel_tol=1e-9)
        total += 1
    return [record.share("off, fixed, fastcdc", AUTO, "right choices", correct, total, 0.95)]


def cost(writes: int) -> list[record.Row]:
    """Processor time of a write, and memory of a stream."""
    rows = []
    for z in ("0%", "70%"):
        controller = OnlineController(Settings(), ["off", FIXED, CDC])
        chunks = 1024
        hashing, sending = 0.25, 0.5
        share = 0.7 if z == "70%" else 0.0
        records = {
            "off": WriteRecord("f", 0, sending + 0.01, 0.01, sending, 64 * MIB, 0, 20, 0, "off"),
            **{
                name: WriteRecord(
                    "f",
                    0,
                    hashing + sending * (1 - share),
                    hashing,
                    sending * (1 - share),
                    64 * MIB,
                    round(share * 64 * MIB),
                    chunks,
                    round(share * chunks),
                    name,
                )
                for name in (FIXED, CDC)
            },
        }
        times = []
        for _ in range(7):
            start = time.process_time()
            for _ in range(writes):
                name = controller.choose("f")
                controller.sample_share("f")
                controller.record(records[name])
            times.append(1e6 * (time.process_time() - start) / writes)
        case = f"three configurations, similarity {z}"
        rows.append(record.row(case, AUTO, "processor time of a write", times, "µs"))
        part = [100 * value / 1e6 / sending for value in times]
        metric = "of the time of a 64 MiB write at 1 Gbit/s"
        rows.append(record.at_most(record.row(case, AUTO, metric, part, "%"), 0.1))
        used = memory(controller)
        rows.append(record.at_most(record.row(case, AUTO, "memory of a stream", [used], "B"), 999))
    return rows


def memory(controller: OnlineController) -> int:
    """Bytes of the state of one stream, with the integers that it refers to."""
    stream = controller.stream("f")
    assert stream is not None
    values = [getattr(stream, name) for name in stream.__slots__]
    # small integers and names are shared
    numbers = [
        v for v in values if not isinstance(v, str | int) or (isinstance(v, int) and v > 256)
    ]
    return sys.getsizeof(stream) + sum(map(sys.getsizeof, numbers))


def million() -> list[record.Row]:
    """Processor time of a million simulated writes, with all static choices."""
    scenario = Scenario({FIXED: 0.5}, {FIXED: "steps:70%,0%,300"}, writes=1_000_000)
    start = time.process_time()
    result = simulate(scenario, Settings(), compare=False)
    seconds = time.process_time() - start
    case = "1,000,000 writes, steps:70%,0%,300, r = 0.5"
    return [
        record.at_most(record.row(case, AUTO, "processor time", [seconds], "s"), 60),
        record.row(case, AUTO, "regret", [100 * result.regret()], "%"),
    ]


def energy(seeds: Sequence[int]) -> list[record.Row]:
    """Published break-evens, emulated meters, conflicts, and energy in the utility."""
    rows = []
    for bed, modelled, measured in ((TESTBEDS["new"], 21.39, 18), (TESTBEDS["old"], 18.09, 10)):
        case = f"machines {bed.name}, r = {bed.r:g}"
        even = 100 * break_even(bed.power, bed.r)
        off = record.row(
            case, "model", "deviation from the published", [abs(even - modelled)], "points"
        )
        rows.append(record.at_most(off, 0.02))
        evens = [100 * measured_break_even(bed.measured_power, bed.r, 2.3, 2 * s) for s in seeds]
        rows.append(record.row(case, "emulated meters", "break-even of energy", evens, "%"))
        worst = [abs(value - measured) for value in evens]
        row = record.row(case, "emulated meters", "deviation from the published", worst, "points")
        rows.append(record.at_most(row, 2))
        loss = 100 * wrong_decision(measured / 100, even / 100)
        row = record.row(case, "model", "largest loss by its break-even", [loss], "%")
        rows.append(record.at_most(row, 10))
        for name, power in (("peak power", bed.power), ("measured power", bed.measured_power)):
            between = conflict(power, bed.r)
            low, high = between.interval
            rows.append(
                record.claim(
                    case,
                    f"conflict of time and energy, {name}",
                    f"{low:.1%} to {high:.1%}, up to {between.energy_loss:.1%} of the energy beyond idle",
                    "",
                    None,
                )
            )
    bed = TESTBEDS["new"]
    for weights, even in (
        ((-1.0, 0.0, 0.0), 0.4),
        ((0.0, 0.0, -1.0), 0.2139),
        ((-1 / 3, -1 / 3, -1 / 3), 0.1926),
    ):
        settings = Settings(utility=Utility(weights), power=bed.power)
        points = [p for p in range(0, 101, 5) if abs(p / 100 - even) > 0.05]
        hits = [
            right(
                run(bed.r, f"{p}%", settings, writes=60, seed=seed, power=bed.power), p / 100 > even
            )
            for seed, p in itertools.product(seeds, points)
        ]
        text = ", ".join(f"{weight:.2g}" for weight in weights)
        case = f"weights {text} of time, space, energy"
        rows.append(record.share(case, AUTO, "right choices", sum(hits), len(hits)))
    return rows


def planted(seeds: Sequence[int]) -> bool:
    """True if a controller that never changes its first decision misses goals of each case with changes."""
    fixed = Settings(least_gain=1.0, sampling=None, reprobe_after=10**6, reprobe_most=10**6)
    rows = changing(seeds[:1], 1000, fixed)
    missed = {row["case"] for row in rows if row.get("verdict") == record.MISSED}
    return all(any(case.startswith(z) for case in missed) for z in CHANGING if z[0] != "r")


def quoted(row: record.Row) -> record.Row:
    """The row, marked if the page shows it: published size, changes that the controller can follow."""
    case, metric = row["case"], row["metric"]
    other_size = case.startswith("100 writes") and "256 MiB" not in case
    minor = case.startswith(FAST) or "r = 0.6" in case or metric == "regret"
    return row if other_size or minor else {**row, "quoted": True}


def main() -> int:
    """Exit status 1 if a goal is missed or the planted controller is not detected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two seeds, 64 MiB only, no million")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    record.option(parser)
    options = parser.parse_args()
    seeds = range(1, 3 if options.quick else 6)
    writes = 3000
    rows = [
        *static_choices(seeds, (64,) if options.quick else (32, 64, 128, 256, 512), Settings()),
        *equal_weights(seeds),
        *probing(seeds),
        *changing(seeds, writes, Settings()),
        *best_of_three(seeds[:1]),
        *cost(20_000),
        *energy(seeds),
        *([] if options.quick else million()),
    ]
    rows = [quoted(row) for row in rows]
    detected = {"a controller that never changes its first decision": planted(seeds)}
    record.keep(options.record, rows, detected)
    return record.report(rows, detected, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
