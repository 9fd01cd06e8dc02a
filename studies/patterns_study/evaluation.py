"""Claims on measured and simulated treatments, their rows, and the planted failures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench import record
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT
from penstock.parts.stores.workflow.spread import Spread, difference_of, mean_of
from studies.claims import Claim, Finding, Result, claim, met_if, over_all
from studies.patterns_study import splits
from studies.patterns_study.runs import LEAST, Part, Run, measured_counts, simulated_counts
from studies.patterns_study.treatments import (
    COPIES,
    AnyTreatment,
    Ground,
    Pair,
    SplitGround,
    Treatment,
    ground_of,
)

#: broadcast with several copies: largest difference from one copy that counts as none
FLAT = 0.10
#: published: largest error of a prediction (text 003, line 1084)
ERROR = 0.14
#: largest error of the predicted speed-up of a pipeline
SPEED_UP = 0.15
#: patterns whose sign on the workflow-aware store is published: lines of text 003
PUBLISHED = {"pipeline": "faster (L1092-1094)", "reduce": "faster (L1104-1110)"}
#: patterns that stay faster on more nodes
SCALED = {"pipeline": "faster (L1133-1140)", "reduce": ""}
GAIN = "95 % interval of the gain above 0"
EXCHANGED = "the results of both stores exchanged"
SLOW = "a node's own files slower than its link"


def claims_of(part: Part) -> list[Claim]:
    """All claims on a ground."""
    ground = ground_of(part.ground, part.size)
    if isinstance(ground, SplitGround):
        return splits.claims_of(part, ground)
    result: list[Claim] = []
    for nodes in ground.nodes:
        for pair in ground.pairs([nodes]):
            if pair.aware.pattern in PUBLISHED:
                result.append(_faster(part, pair))
            result.append(_order(part, pair))
            if pair.aware.pattern == "pipeline":
                result.append(_speed_up(part, pair))
        result += _broadcast(part, ground.broadcasts(nodes))
    result += _scaled(part, ground)
    for pattern in dict.fromkeys(pattern for pattern, _ in ground.patterns):
        result.append(_errors(part, ground, pattern))
    return result


def _of(treatment: Treatment) -> str:
    return f"{treatment.engine}, {treatment.nodes} nodes"


def measured_gain(part: Part, slower: Treatment, faster: Treatment) -> Spread:
    """Difference of the mean makespans of two treatments [s]."""
    return difference_of(part.makespans(slower), part.makespans(faster))


def simulated_gain(part: Part, slower: Treatment, faster: Treatment) -> Spread:
    """Mean difference of the simulated makespans with the same seeds [s]."""
    pairs = zip(part.simulations(slower), part.simulations(faster), strict=True)
    return mean_of([first - second for first, second in pairs])


def _positive(gain: Spread, of_s: float) -> Finding:
    """Finding that a gain is positive: undecided if its interval includes 0."""
    assert gain.low is not None
    not_sure = Result.UNDECIDED if gain.mean > 0 else Result.NOT_MET
    result = Result.MET if gain.low > 0 else not_sure
    return Finding(result, f"gain {_text(gain)} of {of_s:.3g} s")


def _text(gain: Spread) -> str:
    return f"{gain.mean:.3g} ({gain.low:.3g} to {gain.high:.3g}) s"


def _faster(part: Part, pair: Pair) -> Claim:
    def evaluate() -> Finding:
        mean_s = statistics.fmean(part.makespans(pair.default))
        return _positive(measured_gain(part, pair.default, pair.aware), mean_s)

    return claim(
        _of(pair.aware),
        f"{pair.aware.name}: the workflow-aware store is faster",
        measured_counts(part, (pair.default, pair.aware)),
        evaluate,
        published=PUBLISHED.get(pair.aware.pattern, ""),
        criterion=GAIN,
        least=LEAST,
    )


def _order(part: Part, pair: Pair) -> Claim:
    treatments = (pair.default, pair.aware)

    def evaluate() -> Finding:
        gains = (measured_gain(part, *treatments), simulated_gain(part, *treatments))
        text = f"gain measured {_text(gains[0])}, simulated {_text(gains[1])}"
        if any(gain.low is None or gain.low <= 0 <= (gain.high or 0.0) for gain in gains):
            return Finding(Result.UNDECIDED, text)
        return met_if(gains[0].mean * gains[1].mean > 0, text)

    return claim(
        _of(pair.aware),
        f"{pair.aware.name}: the simulation has the measured order of the stores",
        measured_counts(part, treatments) | simulated_counts(part, treatments),
        evaluate,
        criterion="same sign, both 95 % intervals without 0",
        least=LEAST,
    )


def _speed_up(part: Part, pair: Pair) -> Claim:
    treatments = (pair.default, pair.aware)

    def evaluate() -> Finding:
        measured, simulated = (
            statistics.fmean(of(pair.default)) / statistics.fmean(of(pair.aware))
            for of in (part.makespans, part.simulations)
        )
        text = f"measured {measured:.3g}, simulated {simulated:.3g}"
        return met_if(abs(measured / simulated - 1) <= SPEED_UP, text)

    return claim(
        _of(pair.aware),
        f"{pair.aware.name}: the speed-up is the simulated one",
        measured_counts(part, treatments) | simulated_counts(part, treatments),
        evaluate,
        criterion=f"within {SPEED_UP:.0%}",
        least=LEAST,
    )


def _broadcast(part: Part, treatments: Sequence[Treatment]) -> list[Claim]:
    """More copies help if each is on one node, and make no difference if chunks are spread."""
    if not treatments:
        return []
    single_copy, *several_copies = treatments
    if single_copy.engine == "cephfs":
        wording = "spread over all nodes, copies make no difference"
        return [
            claim(
                _of(single_copy),
                f"{single_copy.name}: {wording}",
                measured_counts(part, treatments),
                lambda: _flat(part, single_copy, several_copies),
                published="1-3 % between them (L1112-1121)",
                criterion=f"95 % intervals of the differences within {FLAT:.0%}",
                least=LEAST,
            )
        ]
    most_copies = treatments[-1]

    def evaluate() -> Finding:
        mean_s = statistics.fmean(part.makespans(single_copy))
        return _positive(measured_gain(part, single_copy, most_copies), mean_s)

    return [
        claim(
            _of(single_copy),
            f"{single_copy.name}: on one node per copy, {COPIES[-1]} copies are faster than one",
            measured_counts(part, (single_copy, most_copies)),
            evaluate,
            published="less pressure on a node (L1121)",
            criterion=GAIN,
            least=LEAST,
        )
    ]


def _flat(part: Part, single_copy: Treatment, several_copies: Sequence[Treatment]) -> Finding:
    """Finding that differences from one copy are small: undecided if an interval exceeds the limit."""
    mean_s = statistics.fmean(part.makespans(single_copy))
    texts, results = [], []
    for treatment in several_copies:
        change = measured_gain(part, treatment, single_copy)
        assert change.low is not None
        assert change.high is not None
        low, high = change.low / mean_s, change.high / mean_s
        texts.append(
            f"{treatment.copies} copies {change.mean / mean_s:+.1%} ({low:+.1%} to {high:+.1%})"
        )
        inside = low >= -FLAT and high <= FLAT
        outside = low > FLAT or high < -FLAT
        results.append(
            Result.MET if inside else Result.NOT_MET if outside else Result.UNDECIDED
        )  # fmt: skip
    worst = max(results, key=(Result.MET, Result.UNDECIDED, Result.NOT_MET).index)
    return Finding(worst, "; ".join(texts))


def _scaled(part: Part, ground: Ground) -> list[Claim]:
    """Signs on clusters that are simulated only."""
    result = []
    for pair in ground.pairs(part.size.scaled):
        treatments, pattern = (pair.default, pair.aware), pair.aware.pattern
        if pattern not in SCALED:
            continue

        def evaluate(treatments: tuple[Treatment, Treatment] = treatments) -> Finding:
            mean_s = statistics.fmean(part.simulations(treatments[0]))
            return _positive(simulated_gain(part, *treatments), mean_s)

        result.append(
            claim(
                f"{_of(pair.aware)}, simulated",
                f"{pair.aware.name}: the workflow-aware store is faster",
                simulated_counts(part, treatments),
                evaluate,
                published=SCALED[pattern],
                criterion=GAIN,
                least=LEAST,
            )
        )
    return result


def _errors(part: Part, ground: Ground, pattern: str) -> Claim:
    """Largest error of the simulation over all measured treatments of a pattern."""
    every = [t for n in ground.nodes for t in ground.treatments(n) if t.pattern == pattern]

    def evaluate() -> Finding:
        errors = {
            t: statistics.fmean(part.simulations(t)) / statistics.fmean(part.makespans(t)) - 1
            for t in every
            if _complete(part, t)
        }
        farthest = max(errors, key=lambda t: abs(errors[t]))
        text = f"{errors[farthest]:+.1%} ({farthest.nodes} nodes, {farthest.case})"
        return met_if(abs(errors[farthest]) <= ERROR, text)

    return over_all(
        part.ground,
        f"{pattern}: the simulation has the measured times",
        {str(t): int(_complete(part, t)) for t in every},
        evaluate,
        published="14 % off at most (L1084)",
        criterion=f"within {ERROR:.0%}",
    )


def _complete(part: Part, treatment: Treatment) -> bool:
    return len(part.valid(treatment)) >= LEAST and bool(part.simulations(treatment))


def planted(part: Part) -> dict[str, bool | None]:
    """Detection of the planted failures: None if no claim could detect them."""
    ground = ground_of(part.ground, part.size)
    if isinstance(ground, SplitGround):
        return splits.planted(part, ground)
    exchanged = replace(part, runs=[_exchanged(run) for run in part.runs])
    changed = [
        after.result is Result.NOT_MET
        for pair in ground.pairs(ground.nodes)
        for before, after in [(_faster(part, pair), _faster(exchanged, pair))]
        if pair.aware.pattern in PUBLISHED and before.result is Result.MET
    ]
    slow: bool | None = None
    if len(part.planted) == 2:
        default, aware = (statistics.fmean(simulation.makespans_s) for simulation in part.planted)
        slow = aware > default
    return {
        f"{part.ground}: {EXCHANGED}": all(changed) if changed else None,
        f"{part.ground}: {SLOW}": slow,
    }


def _exchanged(run: Run) -> Run:
    """The run as one on the other store; those of broadcast differ by copies instead."""
    treatment = run.treatment
    if not isinstance(treatment, Treatment) or treatment.pattern == "broadcast":
        return run
    return replace(run, treatment=replace(treatment, store=DEFAULT if treatment.aware else AWARE))


#: metrics of a run: name, unit, value
METRICS: tuple[tuple[str, str, Callable[[Run], float]], ...] = (
    ("turn-around", "s", lambda run: run.makespan_s),
    ("response time of a read or write, mean", "s", lambda run: run.response_s),
    ("throughput", "MB/s", lambda run: run.moved_bytes / run.makespan_s / 1e6),
    ("bytes over links", "MB", lambda run: run.remote_bytes / 1e6),
    ("footprint", "MB", lambda run: run.stored_bytes / 1e6),
    # including the manager's node
    ("cost", "node s", lambda run: (run.treatment.nodes + 1) * run.makespan_s),
    ("energy by the emulated meter", "J", lambda run: run.energy_j),
)


def rows_of(part: Part) -> list[record.Row]:
    """Metrics, stages and simulated times of all treatments, and the load by others."""
    rows: list[record.Row] = []
    for treatment in everything(part):
        case = f"{treatment.nodes} nodes, {treatment.case}"
        if runs := part.valid(treatment):
            for name, unit, value in METRICS:
                values = [value(run) for run in runs]
                rows.append(record.row(case, part.ground, name, values, unit))
            for stage in runs[0].stages_s:
                times = [run.stages_s[stage] for run in runs]
                rows.append(record.row(case, part.ground, f"stage {stage}", times, "s"))
        if simulated := part.simulations(treatment):
            name = "turn-around, simulated"
            rows.append(record.row(case, part.ground, name, simulated, "s"))
    if part.runs:
        others_cpus = [run.others_cpus for run in part.runs]
        load = record.row("all runs", part.ground, "processors used by others", others_cpus, "1")
        rows.append(load | {"quoted": True})
    return rows


def lines(part: Part) -> list[str]:
    """A line for each treatment: mean of the runs and of the simulations."""
    result = []
    for treatment in everything(part):
        measured, simulated = part.makespans(treatment), part.simulations(treatment)
        text = f"{statistics.fmean(measured):8.2f} s" if measured else " " * 10
        after = f"{statistics.fmean(simulated):8.2f} s simulated" if simulated else ""
        result.append(f"{text} ({len(measured):2} runs) {after}  {treatment}")
    return result


def everything(part: Part) -> list[AnyTreatment]:
    """All treatments of a ground: measured ones, and those that are simulated only."""
    ground = ground_of(part.ground, part.size)
    return [*required(part), *ground.simulated_only(part.size)]


def required(part: Part) -> list[AnyTreatment]:
    """Treatments that are to be measured."""
    clusters = ground_of(part.ground, part.size).clusters
    return [treatment for cluster in clusters for treatment in cluster.treatments]


def incomplete(part: Part) -> list[str]:
    """Treatments with fewer valid runs than the size of the study."""
    return [
        str(treatment)
        for treatment in required(part)
        if len(part.valid(treatment)) < part.size.repeat
    ]


def others_text(parts: Sequence[Part]) -> str:
    """Processors that others used, for the record."""
    used = [run.others_cpus for part in parts for run in part.runs]
    if not used:
        return ""
    return (
        f"Before the runs, others used {statistics.fmean(used):.2f} processors on average, "
        f"at most {max(used):.2f}."
    )
