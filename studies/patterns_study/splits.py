"""Claims on BLAST over the splits of its nodes: U-shaped time, and costs of the cheapest splits."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

from penstock.parts.stores.workflow.spread import difference_of
from studies.claims import Claim, Finding, Result, claim, met_if
from studies.patterns_study.runs import LEAST, Part, measured_counts, simulated_counts
from studies.patterns_study.treatments import Split, SplitGround

#: published: slowest over fastest split (text 003, line 1173), and this study's goal
WORST = 3.0
#: the predicted optimum: application nodes off, and time over the fastest
NODES_OFF, REGRET = 1, 0.05
#: difference of the extra cost, measured and simulated [points]
COST_OFF = 5.0
EXCHANGED = "the results of the fastest and the first split exchanged"

Times = dict[Split, float]


def claims_of(part: Part, ground: SplitGround) -> list[Claim]:
    """All claims on the splits."""
    result: list[Claim] = []
    for kib in ground.chunks_kib:
        for nodes in ground.nodes:
            splits = ground.splits(nodes, kib)
            result += _of_splits(part, splits)
            if nodes == max(ground.nodes):
                result.append(_extremes(part, splits))
        result += [
            _cost(part, ground.splits(few, kib), ground.splits(many, kib))
            for few, many in pairwise(ground.nodes)
        ]
    return result


def measured(part: Part, splits: list[Split]) -> Times:
    """Mean measured time of each split [s]."""
    return {split: statistics.fmean(part.makespans(split)) for split in splits}


def simulated(part: Part, splits: list[Split]) -> Times:
    """Mean simulated time of each split [s]."""
    return {split: statistics.fmean(part.simulations(split)) for split in splits}


def _needs(part: Part, splits: list[Split], *, simulations: bool) -> dict[str, int]:
    return measured_counts(part, splits) | (simulated_counts(part, splits) if simulations else {})


def _case(splits: list[Split]) -> str:
    return f"BLAST on {splits[0].nodes} nodes, chunks of {splits[0].chunk_kib} KiB"


def _of_splits(part: Part, splits: list[Split]) -> list[Claim]:
    """Shape and predicted optimum of the splits of one total, with one chunk size."""
    return [
        _u_shape(part, splits),
        claim(
            _case(splits),
            "the simulation has the fastest split",
            _needs(part, splits, simulations=True),
            lambda: _optimum(part, splits),
            published="leads to the fastest (L1173)",
            criterion=f"within {NODES_OFF} node and {REGRET:.0%} of its time",
            least=LEAST,
        ),
    ]


def _u_shape(part: Part, splits: list[Split]) -> Claim:
    return claim(
        _case(splits),
        "time against application nodes is U-shaped",
        _needs(part, splits, simulations=False),
        lambda: _shape(part, splits),
        published="optimum 14 + 5 (L1173)",
        criterion="fastest split between the ends, 95 % intervals of the gains above 0",
        least=LEAST,
    )


def _extremes(part: Part, splits: list[Split]) -> Claim:
    def evaluate() -> Finding:
        times = measured(part, splits).values()
        ratio = max(times) / min(times)
        return met_if(ratio >= WORST, f"{ratio:.3g}")

    return claim(
        _case(splits),
        "slowest over fastest split",
        _needs(part, splits, simulations=False),
        evaluate,
        published="up to 10 (L1173)",
        criterion=f"at least {WORST:g}",
        least=LEAST,
    )


def _shape(part: Part, splits: list[Split]) -> Finding:
    """Finding that the fastest split is significantly faster than both ends."""
    times = measured(part, splits)
    fastest = min(times, key=lambda split: times[split])
    text = ", ".join(f"{split.app} + {split.storage}: {times[split]:.3g} s" for split in splits)
    ends = (splits[0], splits[-1])
    if fastest in ends:
        return Finding(Result.NOT_MET, text)
    gains = [difference_of(part.makespans(end), part.makespans(fastest)) for end in ends]
    sure = all(gain.low is not None and gain.low > 0 for gain in gains)
    return Finding(Result.MET if sure else Result.UNDECIDED, text)


def _optimum(part: Part, splits: list[Split]) -> Finding:
    times, predicted = measured(part, splits), simulated(part, splits)
    chosen = min(predicted, key=lambda split: predicted[split])
    fastest = min(times, key=lambda split: times[split])
    regret = times[chosen] / times[fastest] - 1
    text = (
        f"simulated {chosen.app} + {chosen.storage}, measured {fastest.app} + {fastest.storage}, "
        f"{regret:.1%} slower"
    )
    return met_if(abs(chosen.app - fastest.app) <= NODES_OFF and regret <= REGRET, text)


def _cost(part: Part, few: list[Split], many: list[Split]) -> Claim:
    """Gain and cost of the cheapest split of more nodes; nodes include the manager's."""

    def evaluate() -> Finding:
        texts, extra = [], []
        for name, of in (("measured", measured), ("simulated", simulated)):
            faster, more = trade_off(of(part, few), of(part, many))
            nodes = f"{many[0].nodes + 1} nodes instead of {few[0].nodes + 1}"
            texts.append(f"{name}: {nodes} are {faster:.2f} times as fast for {more:+.1f} % cost")
            extra.append(more)
        return met_if(abs(extra[0] - extra[1]) <= COST_OFF, "; ".join(texts))

    return claim(
        f"BLAST, chunks of {few[0].chunk_kib} KiB",
        "the simulation has the extra cost of more nodes",
        _needs(part, [*few, *many], simulations=True),
        evaluate,
        published="20 nodes instead of 11: almost 2 times as fast for +2 % (L1189)",
        criterion=f"within {COST_OFF:g} points",
        least=LEAST,
    )


def trade_off(few: Times, many: Times) -> tuple[float, float]:
    """Speed-up and additional cost in percent, both totals at their cheapest split."""
    (small, small_s), (large, large_s) = (
        min(times.items(), key=lambda item: item[1]) for times in (few, many)
    )
    cost = (large.nodes + 1) * large_s / ((small.nodes + 1) * small_s)
    return small_s / large_s, 100 * (cost - 1)


def planted(part: Part, ground: SplitGround) -> dict[str, bool | None]:
    """Detection of exchanged results: None if no shape was met before."""
    seen: list[bool] = []
    for kib in ground.chunks_kib:
        for nodes in ground.nodes:
            splits = ground.splits(nodes, kib)
            if _u_shape(part, splits).result is not Result.MET:
                continue
            times = measured(part, splits)
            fastest, first = min(times, key=lambda split: times[split]), splits[0]
            exchanged_split: dict[object, Split] = {fastest: first, first: fastest}
            exchanged = [
                replace(run, treatment=exchanged_split.get(run.treatment, run.treatment))
                for run in part.runs
            ]
            after = _u_shape(replace(part, runs=exchanged), splits)
            seen.append(after.result is Result.NOT_MET)
    return {f"{part.ground}: {EXCHANGED}": all(seen) if seen else None}
