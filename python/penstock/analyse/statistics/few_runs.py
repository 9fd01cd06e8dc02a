"""Few runs that explain the effects of an unreplicated design as well as the effects do.

Without pure error effects are tested against each other. Two slow runs of sixteen make half of the
contrasts equal and the others zero: the first are then significant (Daniel, Technometrics 1, 1959; Box &
Meyer, Technometrics 28, 1986). Here each small set of runs gets its own offset. If a set, with the few
effects that it then requires, leaves only the noise by which the effects were tested, and is smaller than
the set of effects, the data cannot separate the two explanations: no effect beyond the required ones is
significant until the runs are repeated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.fit import Fit, fitted, usable
from penstock.analyse.statistics.scale import effect_scale
from penstock.analyse.statistics.significance import LENTH, LEVEL, together
from penstock.analyse.statistics.terms import Values
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.text import first_of, listed, quantity, term_text

#: maximum number of runs in a set, and number of candidate runs from each of two rankings
MOST_RUNS, _MOST_SUSPECTS = 3, 10
#: number of runs of a design per run of a set
_RUNS_EACH = 4
#: probability that noise alone exceeds the permitted residual of a set
_CHANCE = 0.01
_TINY = 1e-9
#: least standard deviation of a run, relative to the largest value: half of the effects may be exactly 0
_LEAST_NOISE = 1e-9
#: maximum ratio of effects that are of one size
_ALIKE = 1.25
#: maximum number of terms named in a sentence
_MOST_NAMED = 3
_WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()
_COUNTS = ("", "One", "Two", "Three")


@dataclass(frozen=True)
class FewRuns:
    """Indices of the `runs` that explain the `doubted` terms; the `needed` terms are effects in any case."""

    runs: tuple[int, ...]
    doubted: tuple[str, ...]
    needed: tuple[str, ...] = ()


def few_runs(fit: Fit, rows: list[dict[str, Any]]) -> FewRuns | None:
    """The set of runs that, with the fewest required terms, explains the significant terms; None if none is
    smaller than they are.

    `rows`: those of the effects table, with `p_value` and Lenth's `standard_error`. Guard: pure error,
    shared settings, or fewer than two significant terms.
    """
    tested = [r for r in rows if r.get("method") == LENTH and "p_value" in r]
    sure = [str(r["term"]) for r in tested if together(float(r["p_value"]), len(tested)) < LEVEL]
    errors = [float(r["standard_error"]) for r in tested if "standard_error" in r]
    errors = [e for e in errors if math.isfinite(e)]
    n = len(fit.y)
    if len(sure) < 2 or not errors or len(fit.groups):
        return None
    names, columns = contrasts_of(fit)
    if columns.shape[1] < 4:
        return None
    base = basis_of(np.hstack([np.ones((n, 1)), fit.block_columns]))
    noise = noise_of(fit.y, errors[0])
    most = min(MOST_RUNS, n // _RUNS_EACH, len(sure) - 1)
    places = _suspects(fit, columns[:, [name in sure for name in names]])
    smallest: FewRuns | None = None
    fewest = len(sure)
    for count in range(1, most + 1):
        for chosen in itertools.combinations(places, count):
            if count >= fewest:
                break
            own = np.zeros((n, count))
            own[list(chosen), range(count)] = 1
            needed = needed_beside(
                fit.y, base, own, columns, names, noise, len(errors) / 3, fewest - count - 1
            )
            if needed is not None and not set(sure) <= set(needed):
                fewest = count + len(needed)
                doubted = tuple(t for t in sure if t not in needed)
                smallest = FewRuns(chosen, doubted, tuple(needed))
    return smallest


def noise_of(y: Values, error: float) -> float:
    """The variance of a run by Lenth's standard error of a coefficient, at least that of rounding."""
    return max(len(y) * error**2, (_LEAST_NOISE * float(np.abs(y).max())) ** 2)


def _suspects(fit: Fit, columns: Values) -> list[int]:
    """Candidate runs of a set: those farthest from the median, and those with the largest sum of the
    significant terms (`columns`)."""
    together = np.abs(columns @ np.linalg.lstsq(columns, fit.y - fit.y.mean(), rcond=None)[0])
    off = np.abs(fit.y - np.median(fit.y))
    suspects = {
        int(i) for by in (together, off) for i in np.argsort(-by, kind="stable")[:_MOST_SUSPECTS]
    }
    return sorted(suspects)


def in_few_runs(outcome: Outcome) -> Iterator[Finding]:
    """Runs that explain apparent effects, and that should be repeated.

    Guard: replicates, or effects that no few runs explain.
    """
    table = outcome.effects
    if table is None or not {"method", "scale", "p_value"} <= set(table.columns):
        return
    if not (table["method"] == LENTH).any():
        return
    try:
        plan = plan_from_json(outcome.plan)
    except BadInput:
        return
    for response in outcome.responses:
        rows_of_response = table[table["response"].astype(str) == response.name]
        try:
            fit = fitted(outcome.measured, plan, response.name, effect_scale(rows_of_response))
            data = usable(outcome.measured, plan, response.name)
        except PenstockError:
            continue
        rows = [{str(k): v for k, v in row.items()} for row in rows_of_response.to_dict("records")]
        doubt = few_runs(fit, rows)
        if doubt is None:
            continue
        runs = [str(data["run_id"].iloc[i]) for i in doubt.runs]
        values = [quantity(float(data[response.name].iloc[i]), response.unit) for i in doubt.runs]
        named = listed([f"{r}: {v}" for r, v in zip(runs, values, strict=True)])
        terms = [term_text(t) for t in doubt.doubted]
        one, equal = len(runs) == 1, "equal " * _alike(rows, doubt.doubted)
        yield Finding(
            "effect-few-runs",
            "warning",
            f"{_COUNTS[len(runs)]} run{'s' * (not one)} of {len(data)} ({named}) "
            f"{'explains' if one else 'explain'} {_number(len(terms))} {equal}contrasts of {response.name} "
            f"({listed(first_of(terms, _MOST_NAMED))}): repeat {'it' if one else 'them'} before anything is "
            "concluded.",
            {
                "table": "effects",
                "response": response.name,
                "run_id": runs,
                "terms": list(doubt.doubted),
            },
            "`penstock run STUDY -o OUT --augment replicates:1` repeats every treatment; effects are then "
            "tested against the spread of repeated runs.",
            "Without replicates a few slow runs look like many effects. "
            f"With a difference of {'its' if one else 'their'} own for "
            f"{'this run' if one else 'these runs'}"
            + (
                f" and the effects of {listed([term_text(t) for t in doubt.needed])}"
                if doubt.needed
                else ""
            )
            + ", what is left is noise.",
        )


def _alike(rows: Sequence[Mapping[str, Any]], terms: tuple[str, ...]) -> bool:
    """True if the effects of these terms are of one size."""
    sizes = [abs(float(r.get("effect", math.nan))) for r in rows if str(r["term"]) in terms]
    return max(sizes) <= _ALIKE * min(sizes)


def _number(count: int) -> str:
    return _WORDS[count] if count < len(_WORDS) else str(count)


def contrasts_of(fit: Fit) -> tuple[list[str], Values]:
    """The term of each column of the fit's terms, and the columns by runs."""
    names, columns = list[str](), list[Values]()
    for term, without in zip(fit.design.terms, fit.without, strict=True):
        if without or not np.any(term.columns):
            continue
        by_run = term.columns[fit.design.of_run]
        names += [term.name] * by_run.shape[1]
        columns.append(by_run)
    return names, np.hstack(columns) if columns else np.empty((len(fit.y), 0))


def needed_beside(
    y: Values,
    base: Values,
    own: Values,
    columns: Values,
    names: list[str],
    noise: float,
    df_noise: float,
    most: int,
) -> list[str] | None:
    """The fewest terms (at most `most`) that, adjusted for the columns `own`, leave only noise; None if more
    are needed, or if one of `own` makes no difference.

    `base`: an orthonormal basis of mean and blocks; `columns` and `names` of the terms; `noise`: the
    variance of a run, with `df_noise` degrees of freedom.
    """
    n = len(y)
    basis = basis_of(np.hstack([base, own]))
    residual = y - basis @ (basis.T @ y)
    needed: list[str] = []
    rest = columns - basis @ (basis.T @ columns)
    for _ in range(max(most, 0) + 1):
        df = n - basis.shape[1]
        if df < 2:
            return None
        limit = float(stats.f.ppf(1 - _CHANCE, df, max(df_noise, 1.0)))
        if float(residual @ residual) / df <= limit * noise:
            terms = basis[:, base.shape[1] + own.shape[1] :]
            return needed if _each_matters(y, base, own, terms, limit * noise) else None
        if len(needed) >= most:
            return None
        size = np.einsum("ij,ij->j", rest, rest)
        gain = np.where(size > _TINY * n, (rest.T @ residual) ** 2 / np.maximum(size, _TINY), -1.0)
        best = int(np.argmax(gain))
        same = [i for i, name in enumerate(names) if name == names[best]]
        new = basis_of(rest[:, same])
        basis = np.hstack([basis, new])
        residual = residual - new @ (new.T @ residual)
        rest = rest - new @ (new.T @ rest)
        needed.append(names[best])
    return None


def _each_matters(y: Values, base: Values, own: Values, terms: Values, noise: float) -> bool:
    """True if each column of `own` exceeds three standard errors, adjusted for base and terms."""
    design = np.hstack([base, terms, own])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return False
    inverse = np.linalg.inv(design.T @ design)
    size = (inverse @ design.T @ y)[-own.shape[1] :]
    spread = np.sqrt(np.diag(inverse)[-own.shape[1] :] * noise)
    return bool(np.all(np.abs(size) > 3 * spread))


def basis_of(columns: Values) -> Values:
    """An orthonormal basis of the columns."""
    q, values, _ = np.linalg.svd(columns, full_matrices=False)
    basis: Values = q[:, values > 1e-9 * max(float(values[0]), 1e-300)]
    return basis
