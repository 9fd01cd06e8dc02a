"""`penstock workflow compare`: runs on the default store and on the workflow-aware store, and predictions.

Default: no hints, tasks go to the next idle node. Workflow-aware: hints from the graph, tasks go to the node
with their data [Costa 2014].
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import BadInput
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.store import refused_parameters
from penstock.parts.stores.workflow.benefit import Decision, simulated_makespans
from penstock.parts.stores.workflow.features import uses_set_xattr
from penstock.parts.stores.workflow.hints import without
from penstock.parts.stores.workflow.options import RunOptions
from penstock.parts.stores.workflow.result import Result, keep
from penstock.parts.stores.workflow.run import (
    Plan,
    Progress,
    plan_of,
    prediction_of,
    refused_tags,
    require_servers,
    run_once,
    store_of,
)
from penstock.parts.stores.workflow.spread import Spread, difference_of, mean_of
from penstock.platform.engine import as_supported
from penstock.plugins import STORE_ENGINES
from penstock.text import percentage, short
from penstock.writing import atomic_folder

if TYPE_CHECKING:
    from penstock.parts.prediction.workloads.workflow import Workload
    from penstock.parts.stores.workflow.running.executed import Executed
    from penstock.platform.hosts import Platform

DEFAULT, AWARE = "default", "workflow-aware"
_SCHEDULERS = {DEFAULT: "workqueue", AWARE: "data_location"}


@dataclass(frozen=True)
class Comparison:
    """Runs with both stores, and the gains of the workflow-aware one: default makespan less its own [s]."""

    sides: dict[str, Result]
    order: list[str]
    measured_gain: Spread
    predicted_gain: Spread
    decisions: list[Decision] = field(default_factory=list)
    #: page in the output directory
    page: Path | None = None

    @property
    def sign(self) -> str:
        """Agreement of the signs: right, wrong, or undecided (an interval of a gain includes 0)."""
        for gain in (self.measured_gain, self.predicted_gain):
            if gain.low is None or gain.high is None or gain.low <= 0 <= gain.high:
                return "undecided"
        return "right" if self.measured_gain.mean * self.predicted_gain.mean > 0 else "wrong"

    def rows(self) -> list[tuple[str, ...]]:
        """Lines of the table: both stores, then the stages of each."""
        lines: list[tuple[str, ...]] = []
        for name, result in self.sides.items():
            prediction = result.prediction
            assert prediction is not None
            ends = prediction.interval.ends()
            predicted = Spread(prediction.makespan_s, ends["low"], ends["high"])
            lines.append((name, "", *mean_of(result.makespans_s).cells(), *predicted.cells()))
            stages = {s["name"]: s["end_s"] - s["start_s"] for s in prediction.stages}
            for stage, values in result.stages().items():
                expected = f"{stages[stage]:.3f}" if stage in stages else "-"
                lines.append(("", stage, *mean_of(values).cells(), expected, "", ""))
        return lines

    def sentences(self) -> list[str]:
        """Summary of the result."""
        default = statistics.fmean(self.sides[DEFAULT].makespans_s)
        predicted = self.sides[DEFAULT].prediction
        assert predicted is not None
        lines = [
            f"Measured gain of the workflow-aware store: {_gain(self.measured_gain, default)}.",
            f"Predicted gain: {_gain(self.predicted_gain, predicted.makespan_s)}.",
            {
                "right": "The sign of the prediction is right.",
                "wrong": "The sign of the prediction is wrong.",
                "undecided": "Undecided: the interval of a gain includes 0, or there is only one run.",
            }[self.sign],
        ]
        lines += [str(one) for one in self.decisions]
        for result in self.sides.values():
            lines += [f"warning: {one}" for one in result.refused]
        return list(dict.fromkeys(lines))

    def to_dict(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "measured_gain_s": self.measured_gain.to_dict(),
            "predicted_gain_s": self.predicted_gain.to_dict(),
            "sign": self.sign,
            "hints": [one.to_dict() for one in self.decisions],
            "stores": {name: result.to_dict() for name, result in self.sides.items()},
        }


def compare_stores(
    workflow: Path,
    platform: Path,
    changes: Sequence[str] = (),
    *,
    options: RunOptions | None = None,
    seed: int | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a workflow `repeat` times with each store, in pairs of random order (`seed`), on one running store.

    `options.hints` of the workflow-aware store: auto or always. Raises as `run_workflow`.
    """
    options = options or RunOptions(hints="auto", repeat=3)
    if options.hints not in ("auto", "always"):
        raise BadInput(f"--hints: found {options.hints!r}; expected auto or always")
    hints = {DEFAULT: "never", AWARE: options.hints}
    plans = {
        name: plan_of(
            workflow, platform, changes, replace(options, hints=hints[name], scheduler=kind)
        )
        for name, kind in _SCHEDULERS.items()
    }
    order = _order(options.repeat, random.Random(seed))
    results = _run_all(plans, order, options, progress)
    for name, plan in plans.items():
        results[name] = _with_prediction(plan, results[name])
    pairs = [simulated_makespans(*_as_run(plan, results[name])) for name, plan in plans.items()]
    gains = [default - aware for default, aware in zip(*pairs, strict=True)]
    compared = Comparison(
        results,
        order,
        difference_of(results[DEFAULT].makespans_s, results[AWARE].makespans_s),
        mean_of(gains),
        plans[AWARE].decisions,
    )
    if out is not None:
        with atomic_folder(out) as folder:
            text = json.dumps(compared.to_dict(), indent=1)
            (folder / "comparison.json").write_text(text + "\n")
        for name, result in results.items():
            keep(result, out / name)
        compared = replace(compared, page=_page(compared, out))
    return compared


def _page(compared: Comparison, out: Path) -> Path:
    """Write the page and the figures."""
    from penstock.parts.stores.workflow.report.page import Contents, write_report

    headline, *sentences = compared.sentences()
    title = f"{compared.sides[DEFAULT].workload}: {DEFAULT} and {AWARE} store"
    return write_report(Contents(title, headline, compared.sides, sentences), out, "comparison")


def _order(repeat: int, source: random.Random) -> list[str]:
    """Names of the stores in the order of the runs: both in each pair, in random order."""
    order = []
    for _ in range(repeat):
        pair = [DEFAULT, AWARE]
        source.shuffle(pair)
        order += pair
    return order


def _run_all(
    plans: dict[str, Plan], order: Sequence[str], options: RunOptions, progress: Progress | None
) -> dict[str, Result]:
    """The runs of all plans on one store, in that order."""
    loaded = plans[DEFAULT].platform
    engine = deployment(loaded, options.engine)[1].engine
    results = {name: Result(p.workload.name, name, engine, []) for name, p in plans.items()}
    watched = uses_set_xattr(plans[DEFAULT].workload)
    broken: list[Executed] = []
    with store_of(loaded, options.engine, progress, watched=watched) as store:
        warnings = require_servers(store)
        parameters = refused_parameters(STORE_ENGINES.load(engine)(), store.spec)
        for number, name in enumerate(order):
            if progress is not None:
                progress(f"run {number + 1} of {len(order)}: {name}", number, len(order))
            run_once(plans[name], store, results[name], (None, None, progress), broken)
    for result in results.values():
        result.refused.extend([*parameters.values(), *warnings])
    return results


def _with_prediction(plan: Plan, result: Result) -> Result:
    """The result with its prediction, without the hints that the store refused."""
    refused = refused_tags(result.runs)
    result.refused.extend(refused.values())
    return replace(result, prediction=prediction_of(*_as_run(plan, result)))


def _as_run(plan: Plan, result: Result) -> tuple[Workload, Platform]:
    """Workload and platform without what the store refused."""
    refused = refused_tags(result.runs)
    return without(plan.workload, refused), as_supported(plan.platform)[0]


def _gain(gain: Spread, of_s: float) -> str:
    text = f"{short(gain.mean)} s, {percentage(gain.mean / of_s)} of {short(of_s)} s"
    if gain.low is not None and gain.high is not None:
        text += f" (95 %: {short(gain.low)} to {short(gain.high)} s)"
    return text
