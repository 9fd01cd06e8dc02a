"""Claims of the deployment scenarios: the five shapes of table 3.3a of IOStack's deliverable 2.1.

A shape is **not measured** if a scenario that it needs has no valid run, **not met** if the means contradict
it, **undecided** if they agree with it without a significant difference (Welch, all pairs of a program
together by Holm, 95 %), and **met** otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.analyse.treatments.ranking import Measured, Order, order
from penstock.workload.execution_waves import Sensitivity
from studies.claims import Claim, Finding, Result, claim, valid_runs

LOCAL = ("guest", "host", "apart")
VOLUMES = ("host-volumes", "apart-volumes")
OBJECTS = "objects"
SCENARIOS = (*LOCAL, *VOLUMES, OBJECTS)
#: assumed relative deviation of a single run (`--quick`), which allows no significant difference
ASSUMED_SD = 0.10
#: means closer than this count as equal, if they are not significantly different
TIE = 0.02
#: required number of pairs of programs that agree: by chance 2 % of cases, of 15
AGREEING = 0.8
MET, MISSED, UNDECIDED = Result.MET, Result.NOT_MET, Result.UNDECIDED

#: seconds, mean and deviation of five runs, by program and scenario (table 3.3a), and waves and slots
PUBLISHED = {
    "wordcount": {
        "guest": (222.33, 2.50), "host": (218.96, 3.57), "host-volumes": (231.65, 17.52),
        "apart": (221.08, 3.31), "apart-volumes": (284.61, 14.13), "objects": (803.88, 51.99),
    },
    "dfsio": {
        "guest": (180.87, 3.21), "host": (199.54, 4.13), "host-volumes": (413.04, 50.74),
        "apart": (186.28, 4.07), "apart-volumes": (393.39, 67.34), "objects": (2348.06, 233.48),
    },
    "tpcds": {
        "guest": (2376.33, 24.39), "host": (5939.94, 9.79), "host-volumes": (3916.68, 135.43),
        "apart": (4999.28, 12.76), "apart-volumes": (4218.30, 129.09), "objects": (41181.35, 1773.68),
    },
}  # fmt: skip
PUBLISHED_RUNS = 5
PUBLISHED_WAVES = {"wordcount": 10, "dfsio": 80, "tpcds": 6584}

Means = Mapping[str, Mapping[str, Measured]]


@dataclass(frozen=True)
class Cost:
    """Cost of a scenario for a program: waves, cost of a millisecond in each, additional time of each wave
    relative to `guest`, and the share of its time after the last job.
    """

    program: str
    scenario: str
    waves: int
    run_time_s: float
    after_s: float
    guest_s: float

    @property
    def sensitivity(self) -> Sensitivity:
        """Sensitivity of the run to latency in each wave."""
        return Sensitivity(self.waves, self.run_time_s)

    @property
    def longer_ms(self) -> float:
        """Additional time of each wave relative to `guest`, if waves contain all additional time [ms]."""
        return 1e3 * (self.run_time_s - self.guest_s) / self.waves if self.waves else math.nan


def measured(times: Mapping[str, Mapping[str, Sequence[float]]]) -> Means:
    """Means of the runs, by program and scenario; a single run gets an assumed deviation."""
    by_program: dict[str, dict[str, Measured]] = {}
    for program, by_scenario in times.items():
        by_program[program] = {}
        for scenario, values in by_scenario.items():
            if len(values) > 1:
                mean = Measured.of(scenario, values)
            else:
                mean = Measured(scenario, values[0], ASSUMED_SD * values[0], 2)
            by_program[program][scenario] = mean
    return by_program


def published() -> Means:
    """The table, as means of five runs."""
    return {
        program: {s: Measured(s, mean, sd, PUBLISHED_RUNS) for s, (mean, sd) in rows.items()}
        for program, rows in PUBLISHED.items()
    }


def published_rates() -> dict[str, float]:
    """Waves per second of each program near the data."""
    return {p: n / PUBLISHED[p]["guest"][0] for p, n in PUBLISHED_WAVES.items()}


def shapes(
    means: Means,
    rates: Mapping[str, float],
    after: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Claim]:
    """The five claims.

    `rates`: waves per second of the programs in `guest`; `after`: seconds after the last job of the programs
    that write, by scenario.
    """
    orders = {
        program: order(list(rows.values())) for program, rows in means.items() if len(rows) > 1
    }
    table = published()
    all_needs = _needs(means, tuple(PUBLISHED), SCENARIOS)
    volumes_table = ", ".join(
        f"{n} {_ratio(table['tpcds'], n, 'guest'):.2f}" for n in (*VOLUMES, "apart", "host")
    )
    published_pairs = _agreeing(table, published_rates())
    return [
        claim(
            "shape a",
            "objects are slowest, alone, in every program; some of it after the last job (renaming)",
            all_needs,
            lambda: _objects_last(means, orders, after or {}),
            published=_times({p: _ratio(table[p], OBJECTS) for p in PUBLISHED}),
        ),
        claim(
            "shape b",
            "DFSIO: guest, apart, host before volumes before objects",
            _needs(means, ("dfsio",), SCENARIOS),
            lambda: _dfsio(means["dfsio"], orders["dfsio"]),
            published="volumes +128 %, +117 % of guest; 1: guest < 2: apart < 3: host",
        ),
        claim(
            "shape c",
            "WordCount: guest, host and apart are a tie",
            _needs(means, ("wordcount",), LOCAL),
            lambda: _tie(means["wordcount"], orders["wordcount"]),
            published="within 1.5 %",
        ),
        claim(
            "shape d",
            "queries that read again: cached volumes before remote data that is not cached",
            _needs(means, ("tpcds",), (*LOCAL, *VOLUMES)),
            lambda: _volumes_overtake(means["tpcds"], orders["tpcds"]),
            published=f"{volumes_table} x guest",
        ),
        claim(
            "shape e",
            "the cost of a scenario grows with the waves per second of the program",
            all_needs,
            lambda: _grows(means, rates),
            published=f"in {published_pairs[0]} of {published_pairs[1]} pairs of programs",
        ),
    ]


def _needs(means: Means, programs: Sequence[str], scenarios: Sequence[str]) -> dict[str, int]:
    """Scenarios of the programs that have a valid run."""
    measured_ones = (f"{program} {s}" for program, rows in means.items() for s in rows)
    return valid_runs([f"{p} {s}" for p in programs for s in scenarios], measured_ones)


def _below(
    rows: Mapping[str, Measured], ranking: Order, pairs: Sequence[tuple[str, str]]
) -> Result:
    """Verdict on the claim that the first of each pair is faster than the second."""
    if any(rows[a].mean >= rows[b].mean for a, b in pairs):
        return MISSED
    return MET if all(ranking.pair(a, b).apart for a, b in pairs) else UNDECIDED


def _ratio(rows: Mapping[str, Measured], scenario: str, to: str | None = None) -> float:
    least = rows[to].mean if to else min(m.mean for m in rows.values())
    return rows[scenario].mean / least


def _worst(verdicts: Sequence[Result]) -> Result:
    return next((v for v in (MISSED, UNDECIDED) if v in verdicts), MET)


def _objects_last(
    means: Means, orders: Mapping[str, Order], after: Mapping[str, Mapping[str, float]]
) -> Finding:
    verdicts = [
        _below(rows, orders[program], [(s, OBJECTS) for s in rows if s != OBJECTS])
        for program, rows in means.items()
    ]
    after_text = []
    for program, seconds in after.items():
        others_s = max(t for s, t in seconds.items() if s != OBJECTS)
        verdicts.append(MET if seconds[OBJECTS] > others_s else MISSED)
        after_text.append(f"{program} {seconds[OBJECTS]:.2f} s, others {others_s:.2f} s at most")
    evidence = _times({p: _ratio(rows, OBJECTS) for p, rows in means.items()})
    evidence += f"; after the last job: {'; '.join(after_text)}" if after_text else ""
    return Finding(_worst(verdicts), evidence)


def _times(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{p} {r:.2f} x" for p, r in ratios.items()) + " the fastest"


def _dfsio(rows: Mapping[str, Measured], ranking: Order) -> Finding:
    strong = [(a, b) for a in LOCAL for b in VOLUMES] + [(v, OBJECTS) for v in VOLUMES]
    verdict = _below(rows, ranking, strong)
    # guest < apart < host were 3 and 7 % apart: reversed only if the difference is significant
    out_of_order = [
        p
        for p in ranking.pairs
        if p.apart and (p.second, p.first) in (("guest", "apart"), ("apart", "host"))
    ]
    more = {v: 100 * (_ratio(rows, v, "guest") - 1) for v in VOLUMES}
    volumes = ", ".join(f"{m:+.0f} %" for m in more.values())
    return Finding(MISSED if out_of_order else verdict, f"volumes {volumes} of guest; {ranking}")


def _tie(rows: Mapping[str, Measured], ranking: Order) -> Finding:
    local = [rows[s].mean for s in LOCAL]
    spread = max(local) / min(local) - 1
    different = any(ranking.pair(a, b).apart for a, b in itertools.combinations(LOCAL, 2))
    evidence = f"within {100 * spread:.1f} %, {'a' if different else 'no'} significant difference"
    return Finding(MISSED if different else MET if spread <= TIE else UNDECIDED, evidence)


def _volumes_overtake(rows: Mapping[str, Measured], ranking: Order) -> Finding:
    pairs = [(v, s) for v in VOLUMES for s in ("host", "apart")]
    ratios = (f"{n} {_ratio(rows, n, 'guest'):.2f}" for n in (*VOLUMES, "apart", "host"))
    return Finding(_below(rows, ranking, pairs), f"{', '.join(ratios)} x guest")


def _agreeing(means: Means, rates: Mapping[str, float]) -> tuple[int, int]:
    agree = of = 0
    for scenario in (s for s in next(iter(means.values())) if s != "guest"):
        for a, b in itertools.combinations(sorted(means, key=lambda p: rates[p]), 2):
            of += 1
            agree += _ratio(means[b], scenario, "guest") > _ratio(means[a], scenario, "guest")
    return agree, of


def _grows(means: Means, rates: Mapping[str, float]) -> Finding:
    agree, of = _agreeing(means, rates)
    share = agree / of
    result = MET if share >= AGREEING else MISSED if share <= 0.5 else UNDECIDED
    speeds = ", ".join(f"{p} {r:.2f}/s" for p, r in rates.items())
    return Finding(result, f"in {agree} of {of} pairs; {speeds}")


def swapped(means: Means, first: str = "guest", second: str = OBJECTS) -> Means:
    """The planted failure: the times of two scenarios exchanged, if both exist."""
    names = {first: second, second: first}
    return {
        program: {s: replace(rows[names.get(s, s)], name=s) for s in rows}
        if {first, second} <= set(rows)
        else dict(rows)
        for program, rows in means.items()
    }


def swap_detected(real: Sequence[Claim], planted: Sequence[Claim]) -> bool | None:
    """True if the planted runs miss the first shape, which exchanged times always change. None if that is
    undecided: the real runs miss it, or it is not measured.
    """
    if real[0].result in (MISSED, Result.NOT_MEASURED):
        return None
    return planted[0].result is MISSED
