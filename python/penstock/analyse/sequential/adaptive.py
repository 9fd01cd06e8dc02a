"""Next stage of a sequential study, as a function of its plan and its runs table.

Screening tests nested fractions, each twice the last, while an active effect has a plausible rival or
nothing is active (`alpha_spending.py` has the levels), or until all effects are decided if the study
declares that (`screen_rule.py`). Then a model of the runs chooses settings by expected improvement over
the best so far (Jones, Schonlau & Welch, Journal of Global Optimization 13, 1998), or repeats one of the
best if that is worth more; the search ends when no run has an expected improvement of a thousandth of the
response. Last, the chosen and the default setting are run again in interleaved pairs, because the mean of
a setting selected by its mean is biased. Only completed runs count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.analyse.sequential.screen_rule import decide
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.scale import LOG, analysis_scale
from penstock.analyse.statistics.terms import sum_to_zero
from penstock.analyse.surface.process import Process, expected_improvement, worth_of_a_run
from penstock.design.additions.alpha_spending import level, looks
from penstock.design.additions.more_levels import numbers_of
from penstock.design.additions.stages import Stage, bare, designed, levels_of, stage_from_json
from penstock.design.additions.two_levels import Step, make_step, questions
from penstock.design.generators import term_of, word_of
from penstock.design.kinds.base import numeric
from penstock.design.matrix import regular
from penstock.design.plan import design_request
from penstock.design.planned import Plan
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Response, Sequential, Study
from penstock.text import counted, first_of, listed, quantity, term_text

Values = NDArray[np.floating[Any]]

#: maximum number of settings evaluated by a model: all if there are fewer
MOST_SETTINGS = 100_000
#: number of settings chosen before the model is refitted
BATCHES = 8
#: expected improvement, relative to the best, below which the search ends
_LITTLE = 1e-3
_TREES = 200
#: ratio of largest to smallest response from which models use its logarithm
_WIDE = 3.0


@dataclass(frozen=True)
class _State:
    """Measurements so far: level numbers of each run, and the response, with larger values better."""

    plan: Plan
    study: Study
    spec: Sequential
    response: Response
    data: pd.DataFrame
    x: NDArray[np.int64]
    y: Values

    @property
    def sign(self) -> float:
        """1 if more is better, else −1."""
        return 1.0 if self.response.better == "higher" else -1.0

    @property
    def scale(self) -> str:
        """Scale of the effects by the runs so far."""
        return analysis_scale(self.data, self.study, self.response)

    @property
    def logarithmic(self) -> bool:
        """True if models use the logarithm: positive responses that differ by a factor of `_WIDE`."""
        return bool(self.y.min() > 0 and self.y.max() > _WIDE * self.y.min())

    def natural(self, modelled: float) -> float:
        """A modelled value in units of the response."""
        return math.exp(self.sign * modelled) if self.logarithmic else self.sign * modelled

    @property
    def remaining(self) -> int:
        """Number of runs left before the confirmation."""
        return self.spec.runs - len(self.plan.rows) - 2 * self.spec.confirm


def next_stage(plan: Plan, study: Study, runs: pd.DataFrame) -> Stage | None:
    """The next stage of a sequential study whose planned runs are all completed; None after its confirmation.

    `runs`: the runs table. PenstockError if too few runs are valid.
    """
    spec = study.design.sequential
    if spec is None or any(s["purpose"] == "confirm" for s in plan.stages):
        return None
    state = _state(plan, study, spec, runs)
    searched = sum(len(s["treatments"]) for s in plan.stages if s["purpose"] == "optimise")
    spent, ended = 0.0, ""
    if not searched:
        stage, spent, ended = _screen(state)
        if stage is not None:
            return stage
    if searched < spec.search_runs and state.remaining > 0:
        stage = _search(state, min(spec.search_runs - searched, state.remaining))
        if stage is not None:
            return replace(stage, spent=spent, ended=ended)
    return replace(_confirm(state), spent=spent, ended=ended)


def _state(plan: Plan, study: Study, spec: Sequential, runs: pd.DataFrame) -> _State:
    response = study.responses[0]
    values = pd.to_numeric(runs[response.name], errors="coerce")
    data = runs[runs["valid"].eq(True) & values.notna()]
    if len(data) < 2:
        raise PenstockError(
            f"{counted(len(data), 'valid run')}: nothing to choose the next runs by"
        )
    rows = {r.run_id: r for r in plan.rows}
    x = np.array([_numbers(plan, rows[r].levels) for r in data["run_id"]], dtype=np.int64)
    y = pd.to_numeric(data[response.name]).to_numpy(dtype=float)
    return _State(plan, study, spec, response, data, x, y)


def _numbers(plan: Plan, levels: dict[str, str]) -> list[int]:
    return [[v.name for v in f.levels].index(levels[f.name]) for f in plan.factors]


# ---------------------------------------------------------------- screening


def _screen(state: _State) -> tuple[Stage | None, float, str]:
    """The next nested fraction, or None at the end of screening; alpha spent by the look; the reason."""
    plan, spec = state.plan, state.spec
    if not plan.two_level:
        return None, 0.0, "no screening: it takes two levels of every factor"
    names = [f.name for f in plan.factors]
    matrix, labels = designed(plan, [stage_from_json(bare(s)) for s in plan.stages])
    first = sum(s == 1 for s in labels)
    at = looks(len(names), first)
    rows = len(np.unique(matrix, axis=0))
    if rows not in at:
        return None, 0.0, ""
    look = at.index(rows)
    alpha = level(spec.alpha, at, look, spec.spending)
    # without the plan's levels: the level of the look is applied here
    by_itself = replace(plan, sequential=None, stages=[s | {"spent": 0.0} for s in plan.stages])
    table = effects(state.data, by_itself, state.response.name, scale=state.scale)
    active = active_at(table, names, alpha)
    open_questions = questions(np.unique(matrix, axis=0), [word_of(t, names) for t in active])
    doubted = [q for q in open_questions if q.plausible]
    if look + 1 == len(at):
        return None, alpha, "it was the last look"
    if active and not regular(np.unique(matrix, axis=0)):
        return (
            None,
            alpha,
            "effects include parts of interactions, which no nested fraction separates",
        )
    if active and not doubted:
        return None, alpha, "no active effect has a plausible rival"
    if verdict := _decided(state, table, alpha, [term_of(q.term, names) for q in doubted]):
        return None, alpha, verdict
    if rows * plan.replicates > state.remaining:
        return None, alpha, "twice the rows are more runs than are left"
    full_steps = [
        s for s in _doublings(matrix, labels, open_questions, names) if len(s.rows) == rows
    ]
    if not full_steps:
        return None, alpha, "no step gives another complete fraction"
    full_steps = [s for s in full_steps if _may_be_run(state, s)]
    if not full_steps:
        what = (
            "steps to another complete fraction contain combinations that design.forbidden excludes"
        )
        return None, alpha, what
    step = max(full_steps, key=lambda s: (_short(s), len(s.broken)))
    if doubted:
        pairs_text = [
            f"{term_text(term_of(q.term, names))} from "
            f"{listed(first_of([term_text(term_of(w, names)) for w in q.plausible], 2), 'or')}"
            for q in doubted
        ]
        why = f"to tell {listed(first_of(pairs_text, 3))}"
    else:
        why = f"no effect shows yet at the level of this look ({alpha:.3g})"
    treatments = tuple(levels_of(plan, row) for row in step.rows)
    return Stage("augment", step.kind, treatments, plan.replicates, why, spent=alpha), alpha, ""


def _decided(state: _State, table: pd.DataFrame, alpha: float, doubted: list[str]) -> str:
    """Message of the declared rule if it ends screening, else empty.

    Rivals of an effect that is too small to matter are not considered.
    """
    detect = state.study.design.detect
    if state.spec.stop != "decided" or detect is None:
        return ""
    bound = math.log1p(detect) if state.scale == LOG else detect * abs(float(state.y.mean()))
    decision = decide(table, [f.name for f in state.plan.factors], alpha, bound)
    if decision is None or decision.undecided or set(doubted) & set(decision.beyond):
        return ""
    return decision.sentence(alpha, state.response.unit, state.scale)


def active_at(table: pd.DataFrame, names: list[str], alpha: float) -> list[str]:
    """The significant terms by Holm's procedure at `alpha`, largest first."""
    judged = pd.to_numeric(table["p_holm"], errors="coerce")
    of_factors = table["term"].map(lambda t: set(str(t).split(":")) <= set(names)).astype(bool)
    significant = table[of_factors & (judged <= alpha)]
    significant = significant.reindex(
        significant["coefficient"].abs().sort_values(ascending=False).index
    )
    return [str(t) for t in significant["term"]]


def _doublings(
    matrix: NDArray[np.int8], labels: list[int], open_questions: list[Any], names: list[str]
) -> list[Step]:
    """Steps that add another complete fraction: it must be of the family of all existing rows."""
    rows = np.unique(matrix, axis=0).astype(np.int8)
    doublings = []
    for kind in ("foldover", *(f"foldover:{n}" for n in names), "coset"):
        try:
            step = make_step(kind, rows, [1] * len(rows), open_questions, names)
        except BadInput:
            continue
        doublings.append(step)
    return doublings


def _may_be_run(state: _State, step: Step) -> bool:
    rows = numbers_of(state.plan.factors, step.rows)
    return bool(design_request(state.study).allowed(rows).all())


def _short(step: Step) -> int:
    return sum(r.bit_count() <= 2 for _, r in step.broken)


# ---------------------------------------------------------------- search


def _search(state: _State, most: int) -> Stage | None:
    """The next settings to run: new ones, or a repetition of one of the best."""
    plan, spec = state.plan, state.spec
    pool = _settings(plan, state.study)
    existing = {tuple(row) for row in state.x.tolist()}
    existing |= {tuple(_numbers(plan, r.levels)) for r in plan.rows}
    new = np.array([row for row in pool.tolist() if tuple(row) not in existing], dtype=np.int64)
    count = min(max(1, -(-spec.search_runs // BATCHES)), most)
    if spec.search == "optuna":
        return _by_optuna(state, new, min(count, len(new))) if len(new) else None
    x, y, n = _means(state)
    unit = 1.0 if state.logarithmic else abs(float(y.max()))
    chosen: list[NDArray[np.int64]] = []
    reasons: list[str] = []
    data_x, data_y, data_n = x, y, n
    for _ in range(count):
        model = _fitted(state, data_x, data_y, data_n)
        mean_run, sd_run, noise = model(data_x)
        best = float(data_y.max()) if spec.search == "trees" else float(mean_run.max())
        worth = worth_of_a_run(mean_run, sd_run, noise)
        again = int(np.argmax(worth))
        mean, sd, _ = model(new) if len(new) else (np.empty(0), np.empty(0), 0.0)
        gain = expected_improvement(mean, sd, best)
        at = int(np.argmax(gain)) if len(gain) else -1
        if max(gain[at] if at >= 0 else 0.0, worth[again]) <= _LITTLE * unit:
            break
        if at >= 0 and gain[at] >= worth[again]:
            row, expected = new[at], float(mean[at])
            reasons.append(_reason(state, row, expected, sd[at], gain[at], best, x, y))
            new = np.delete(new, at, axis=0)
        else:
            row, expected = data_x[again], float(mean_run[again])
            reasons.append(_again_reason(state, expected, float(sd_run[again]), best))
        chosen.append(row)
        data_x, data_y, data_n = _with_run(data_x, data_y, data_n, row, expected)
    if not chosen:
        return None
    return _optimise(state, np.array(chosen), reasons)


def _with_run(
    x: NDArray[np.int64], y: Values, n: NDArray[np.int64], row: NDArray[np.int64], value: float
) -> tuple[NDArray[np.int64], Values, NDArray[np.int64]]:
    """The means with one more run, at its predicted value until it is completed (kriging believer)."""
    same = np.flatnonzero((x == row).all(axis=1))
    if not len(same):
        return np.vstack([x, row]), np.append(y, value), np.append(n, 1)
    y, n = y.copy(), n.copy()
    y[same] = (y[same] * n[same] + value) / (n[same] + 1)
    n[same] += 1
    return x, y, n


def _optimise(state: _State, rows: NDArray[np.int64], reasons: list[str]) -> Stage:
    treatments = tuple(_levels(state.plan, row) for row in rows)
    why = f"{state.spec.search} expects better than the best so far"
    return Stage("optimise", state.spec.search, treatments, 1, why, tuple(reasons))


def _levels(plan: Plan, numbers: NDArray[np.int64]) -> dict[str, str]:
    return {f.name: f.levels[int(n)].name for f, n in zip(plan.factors, numbers, strict=True)}


def _settings(plan: Plan, study: Study) -> NDArray[np.int64]:
    """All settings that may be run, or a random sample if there are too many."""
    sizes = [len(f.levels) for f in plan.factors]
    if math.prod(sizes) <= MOST_SETTINGS:
        settings = np.array(list(itertools.product(*(range(n) for n in sizes))), dtype=np.int64)
    else:
        generator = np.random.default_rng(study.design.seed)
        drawn = np.column_stack([generator.integers(0, n, MOST_SETTINGS) for n in sizes])
        settings = np.unique(drawn, axis=0).astype(np.int64)
    return settings[design_request(study).allowed(settings)]


def _means(state: _State) -> tuple[NDArray[np.int64], Values, NDArray[np.int64]]:
    """Each setting that was run, its mean on the models' scale (more is better) and number of runs;
    adjusted for blocks."""
    rows = {r.run_id: r.block for r in state.plan.rows}
    blocks = np.array([rows[r] for r in state.data["run_id"]])
    stages = {r.run_id: r.stage for r in state.plan.rows}
    part = np.array([stages[r] for r in state.data["run_id"]])
    y = np.log(state.y) if state.logarithmic else state.y.copy()
    x, places = np.unique(state.x, axis=0, return_inverse=True)
    places = places.reshape(-1)
    for stage in np.unique(part):
        in_stage = part == stage
        y[in_stage] -= _of_blocks(y[in_stage], places[in_stage], blocks[in_stage])
    n = np.bincount(places)
    return x, state.sign * np.bincount(places, y) / n, n


def _of_blocks(y: Values, settings: NDArray[Any], blocks: NDArray[Any]) -> Values:
    """The part of each value due to its block, adjusted for settings; 0 if the runs do not separate
    blocks from settings."""
    setting, block = (np.unique(of_run, return_inverse=True)[1] for of_run in (settings, blocks))
    if not block.any():
        return np.zeros(len(y))
    code = sum_to_zero(block)
    columns = np.hstack([np.eye(int(setting.max()) + 1)[setting], code])
    solution, _, rank, _ = np.linalg.lstsq(columns, y, rcond=None)
    if int(rank) < columns.shape[1]:
        return np.zeros(len(y))
    return np.asarray(code @ solution[-code.shape[1] :])


def _coded(state: _State, x: NDArray[np.int64]) -> Values:
    """−1 and +1 for two levels, ranks from −1 to +1 for numbers, one column per level for other names."""
    columns: list[Values] = []
    for j, factor in enumerate(state.plan.factors):
        count, values = len(factor.levels), numeric(factor)
        if count > 2 and values is None:
            columns += [np.asarray(2.0 * (x[:, j] == i) - 1) for i in range(count)]
        else:
            rank = np.argsort(np.argsort(values)) if values is not None else np.arange(count)
            columns.append(2.0 * rank[x[:, j]] / max(1, count - 1) - 1)
    return np.column_stack(columns)


#: mean, standard deviation of the mean and standard deviation of a run
Predict = Callable[[NDArray[np.int64]], tuple[Values, Values, float]]


def _fitted(state: _State, x: NDArray[np.int64], y: Values, n: NDArray[np.int64]) -> Predict:
    """Predictions of settings by a model of the runs."""
    coded = _coded(state, x)
    if state.spec.search == "trees":
        from sklearn.ensemble import ExtraTreesRegressor

        trees = ExtraTreesRegressor(
            _TREES, min_samples_leaf=1, bootstrap=True, random_state=state.study.design.seed % 2**32
        ).fit(coded, y, sample_weight=n)

        def of_trees(at: NDArray[np.int64]) -> tuple[Values, Values, float]:
            each = np.array([tree.predict(_coded(state, at)) for tree in trees.estimators_])
            return each.mean(axis=0), each.std(axis=0), math.inf

        return of_trees
    process = Process(coded, y, n)

    def of_process(at: NDArray[np.int64]) -> tuple[Values, Values, float]:
        return (*process(_coded(state, at)), process.noise)

    return of_process


def _reason(
    state: _State,
    row: NDArray[np.int64],
    mean: float,
    sd: float,
    gain: float,
    best: float,
    x: NDArray[np.int64],
    y: Values,
) -> str:
    unit = state.response.unit
    champion = x[int(np.argmax(y))]
    differs = [
        f"{f.name} {f.levels[int(a)].name}"
        for f, a, b in zip(state.plan.factors, row, champion, strict=True)
        if a != b
    ]
    by = f"{100 * gain:.2g} %" if state.logarithmic else quantity(gain, unit)
    wide = f"{100 * sd:.2g} %" if state.logarithmic else quantity(sd, unit)
    return (
        f"expected {quantity(state.natural(mean), unit)} ± {wide}, an improvement of {by} on average over "
        f"the best so far ({quantity(state.natural(best), unit)}); differs from it by "
        f"{listed(differs) if differs else 'nothing'}"
    )


def _again_reason(state: _State, mean: float, sd: float, best: float) -> str:
    unit = state.response.unit
    wide = f"{100 * sd:.2g} %" if state.logarithmic else quantity(sd, unit)
    return (
        f"repeated: {quantity(state.natural(mean), unit)} ± {wide} so far, too close to the best "
        f"({quantity(state.natural(best), unit)}) to be distinguished from it"
    )


def _by_optuna(state: _State, pool: NDArray[np.int64], count: int) -> Stage | None:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NIPS 2011) with all runs."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plan = state.plan
    sampler = optuna.samplers.TPESampler(seed=state.study.design.seed % 2**32, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    spaces: dict[str, optuna.distributions.BaseDistribution] = {
        f.name: optuna.distributions.CategoricalDistribution([v.name for v in f.levels])
        for f in plan.factors
    }
    x, y, _ = _means(state)
    for row, value in zip(x, y, strict=True):
        study.add_trial(
            optuna.trial.create_trial(
                params=_levels(plan, row), distributions=spaces, value=float(value)
            )
        )
    free = {tuple(row) for row in pool.tolist()}
    chosen: list[list[int]] = []
    for _ in range(50 * count):
        trial = study.ask(spaces)
        row = _numbers(plan, {k: str(v) for k, v in trial.params.items()})
        if tuple(row) in free:
            free.remove(tuple(row))
            chosen.append(row)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if len(chosen) == count:
            break
    if not chosen:
        return None
    why = "likelier among the better runs than among the others (tree-structured Parzen estimator)"
    return _optimise(state, np.array(chosen, dtype=np.int64), [why] * len(chosen))


# ---------------------------------------------------------------- confirmation


def _confirm(state: _State) -> Stage:
    """New interleaved pairs of the chosen and the default setting; of the next best if these are the same."""
    plan = state.plan
    default = {f.name: f.levels[0].name for f in plan.factors} | state.spec.default
    x, y, n = _means(state)
    if len(x) < 3:
        merit = y
    elif state.spec.search == "trees":
        merit = (n * y + _fitted(state, x, y, n)(x)[0]) / (
            n + 1
        )  # the prediction counts as one run
    else:
        merit = _fitted(state, x, y, n)(x)[0]
    ranked = [_levels(plan, x[i]) for i in np.argsort(-merit, kind="stable")]
    chosen, second = ranked[0], ranked[min(1, len(ranked) - 1)]
    against, what = default, "the default"
    if chosen == default:
        against, what = second, "the default, which is the choice itself, and the next best"
    why = f"new runs of the chosen setting compared with {what}: the mean that it was chosen for is too good"
    return Stage("confirm", "confirm", (chosen, against), state.spec.confirm, why)
