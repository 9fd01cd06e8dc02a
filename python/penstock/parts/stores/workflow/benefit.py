"""Hints from a workflow's graph that pay according to the prediction, decided for each group of files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from penstock.analyse.statistics.prediction_intervals import LEVEL, least_draws
from penstock.parts.prediction.queue_network.simulate import Simulator, makespan
from penstock.parts.prediction.queue_network.uncertainty import sampled, uncertain_values
from penstock.parts.prediction.workloads.task import Hints
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.hints import hints_of_graph, tags_of, with_hints
from penstock.parts.stores.workflow.running.run_files import inputs_of, outputs_of
from penstock.parts.stores.workflow.spread import mean_of
from penstock.platform.hosts import Platform
from penstock.spec.store import Support
from penstock.text import short

#: platforms and seeds of a comparison: the fewest with an interval of that level
_DRAWS = least_draws(LEVEL)


@dataclass(frozen=True)
class Decision:
    """Decision about the hints of a group of files: those of one rule, written and read by the same stages.

    `gain_s`: predicted reduction of the makespan, the mean of simulated runs, with its interval (95 %,
    `low_s` to `high_s`); None if it was not predicted.
    """

    group: str
    files: int
    hint: str
    applied: bool
    reason: str
    gain_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        verb = "applied" if self.applied else "not applied"
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"hint {self.hint} for {files} ({self.group}): {verb}, {self.reason}"


def chosen_hints(
    workload: Workload, platform: Platform, support: Mapping[str, Support]
) -> tuple[Workload, list[Decision]]:
    """The workload with those hints of its graph whose predicted gain exceeds its interval.

    Groups are decided one after the other, in the order of the graph, each beside those already applied.
    Runs with and without a group are simulated with the same seeds and the same values of the platform.
    """
    network = platform.lower()
    nodes = sum("storage" in h.roles for h in platform.hosts)
    by_file = hints_of_graph(workload, nodes, int(network["store"]["chunk_bytes"]))
    own = {f.name for f in workload.files if f.hints is not None}
    groups = _groups(workload, {n: h for n, h in by_file.items() if n not in own})
    if not groups:
        return workload, []
    runs = _Runs(platform)
    decisions, before = list[Decision](), runs.makespans(workload)
    for name, hints in groups.items():
        hint = _named(next(iter(hints.values())))
        refusal = _refusal(next(iter(hints.values())), support)
        if refusal:
            decisions.append(
                Decision(name, len(hints), hint, False, f"the store refuses it: {refusal}")
            )
            continue
        candidate = with_hints(workload, hints)
        after = runs.makespans(candidate)
        decision = _decision(name, len(hints), hint, before, after)
        decisions.append(decision)
        if decision.applied:
            workload, before = candidate, after
    return workload, decisions


class _Runs:
    """Simulated runs of several workloads under the same values of a platform and the same seeds."""

    def __init__(self, platform: Platform) -> None:
        self._draws = [(list(range(_DRAWS)), platform)]
        if uncertain_values(platform):
            self._draws = sampled(platform, _DRAWS)

    def makespans(self, workload: Workload) -> list[float]:
        """Makespan of each run [s]."""
        outcomes = Simulator(workload).drawn(self._draws, range(1, _DRAWS + 1))
        return [makespan(outcome) for outcome in outcomes]


def simulated_makespans(workload: Workload, platform: Platform) -> list[float]:
    """Makespans of simulated runs [s]; those of two workloads or schedulers can be compared run by run."""
    return _Runs(platform).makespans(workload)


def _decision(
    name: str, files: int, hint: str, before: Sequence[float], after: Sequence[float]
) -> Decision:
    gain = mean_of([b - a for b, a in zip(before, after, strict=True)])
    mean, low, high = gain.mean, gain.low or 0.0, gain.high or 0.0
    text = f"predicted gain {short(mean)} s of {short(fmean(before))} s ({short(low)} to {short(high)})"
    applied = low > 0
    if not applied:
        text += ": its interval includes no gain" if high > 0 else ": it would take longer"
        if high == low == 0:
            text = "the prediction is the same with it"
    return Decision(name, files, hint, applied, text, mean, low, high)


def _groups(workload: Workload, by_file: Mapping[str, Hints]) -> dict[str, dict[str, Hints]]:
    """Hints by group, in the order of the graph."""
    writers, readers = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for task in workload.tasks:
        stage = task.stage or task.name
        for name in outputs_of(task):
            writers[name].add(stage)
        for name in inputs_of(task):
            readers[name].add(stage)
    groups: dict[str, dict[str, Hints]] = {}
    for name in _in_order(workload, by_file):
        ends = (_stages(writers[name]) or "input", _stages(readers[name]))
        key = f"{' -> '.join(ends)}, {_kind(by_file[name])}"
        groups.setdefault(key, {})[name] = by_file[name]
    return groups


def _in_order(workload: Workload, names: Mapping[str, Hints]) -> Iterator[str]:
    """Files by the level of their first reader."""
    first: dict[str, int] = {}
    for level, task in zip(workload.levels, workload.tasks, strict=True):
        for name in inputs_of(task):
            first[name] = min(level, first.get(name, level))
    return iter(sorted(names, key=lambda n: first.get(n, 0)))


def _stages(stages: set[str]) -> str:
    return "+".join(sorted(stages)[:3])


def _kind(hints: Hints) -> str:
    return hints.placement or f"{hints.replicas} copies"


def _named(hints: Hints) -> str:
    """A hint as tags, without the name of a group."""
    tags = tags_of(hints)
    return ", ".join(f"{k}={v.split(' ')[0] if hints.group else v}" for k, v in tags.items())


def _refusal(hints: Hints, support: Mapping[str, Support]) -> str:
    """Reason why a store refuses a hint; empty if it does not."""
    for key, value in tags_of(hints).items():
        row = support.get(f"{key} {value.split(' ')[0]}", support.get(key))
        if row is not None and row.how == "refused":
            return row.why
    return ""
