"""D- and I-optimal treatments for a model, by coordinate exchange.

Coordinate exchange (Meyer and Nachtsheim, Technometrics 37, 1995) from several random starts: D-optimal
designs maximise the determinant of X'X, I-optimal ones minimise the mean prediction variance over all
allowed combinations. Forbidden combinations never enter, fixed treatments never leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.design import model as models
from penstock.design.contrasts import Values
from penstock.design.kinds import full
from penstock.design.kinds.base import MODELS, Asked, Claim, Model, Numbers, whole_number
from penstock.design.kinds.table import numbers_of
from penstock.errors import BadInput
from penstock.spec.study import level_name

OPTIONS = {
    "runs": "number of treatments, including those in keep; by default that of the coefficients plus five",
    "model": "estimated terms: main (default), pairs or quadratic",
    "keep": "existing treatments, each a mapping of factor to level, or a CSV file",
}
#: random starts (fewer for large runs × levels, limited by _ROOM), and exchange passes per start
_STARTS, _ROOM, _PASSES = 8, 8_000, 20
#: maximum numbers of treatments and coefficients
MOST_RUNS, MOST_COEFFICIENTS = 400, 150
#: combinations over which variance is averaged: all, or a sample of this size
_REGION = 4096
_BETTER = 1 + 1e-9
#: computed designs by request: one study is read, planned and shown in the same process
_CACHE: dict[tuple[str, str], Numbers] = {}
_MOST_CACHED = 64


@dataclass(frozen=True)
class Optimal:
    """A kind of design, by its criterion."""

    criterion: Literal["D", "I"]

    OPTIONS = OPTIONS
    CANNOT = (
        "Optimal for its model only: effects outside of it (higher interactions, and pairs unless the model "
        "has them) are mixed into those that it has.",
    )

    @property
    def WHAT(self) -> str:  # noqa: N802 - as a module has it
        """One-line description."""
        aim = "estimates" if self.criterion == "D" else "predictions"
        return f"As many runs as wanted for any levels, with the best {aim} of a model."

    def fault(self, request: Asked) -> str:
        """Fault of the model, the number of runs, or the fixed rows."""
        model = request.options.get("model", "main")
        if model not in MODELS:
            return f"model: {', '.join(MODELS)}"
        least = models.coefficients(request.factors, model)
        if least > MOST_COEFFICIENTS:
            return f"a model of at most {MOST_COEFFICIENTS} coefficients; {model} has {least}"
        most = min(request.combinations, MOST_RUNS)
        if least > most:
            return f"a smaller model: {model} has {least} coefficients, {most} runs are possible"
        keep = request.options.get("keep", [])
        names = set(request.names)
        if not isinstance(keep, list):
            return "keep: treatments, each a mapping of factor to level"
        for number, row in enumerate(keep, start=1):
            if not isinstance(row, dict) or set(row) != names:
                return f"keep, row {number}: a level for each of {', '.join(request.names)}"
            for factor in request.factors:
                level_names = [v.name for v in factor.levels]
                if level_name(row[factor.name]) not in level_names:
                    return (
                        f"keep, row {number}: a level of {factor.name} ({', '.join(level_names)})"
                    )
        return whole_number(request, "runs", max(least, len(keep)), most)

    def treatments(self, request: Asked) -> Numbers:
        """The best of several starts; BadInput if too few combinations are allowed."""
        key = (self.criterion, repr(request))
        if key not in _CACHE:
            if len(_CACHE) >= _MOST_CACHED:
                _CACHE.clear()
            _CACHE[key] = self._computed(request)
        return _CACHE[key].copy()

    def _computed(self, request: Asked) -> Numbers:
        keep = request.options.get("keep", [])
        fixed = (
            numbers_of(request, keep)
            if keep
            else np.empty((0, len(request.factors)), dtype=np.int64)
        )
        fixed = (
            fixed[np.sort(np.unique(fixed, axis=0, return_index=True)[1])] if len(fixed) else fixed
        )
        model: Model = request.options.get("model", "main")
        least = models.coefficients(request.factors, model)
        runs = request.whole("runs", min(least + 5, possible(request)))
        random = np.random.default_rng([request.seed & 0xFFFFFFFF, request.seed >> 32])
        moments = self._moments(request, model, random)
        best: tuple[float, Numbers] | None = None
        for _ in range(max(1, min(_STARTS, _ROOM // (runs * sum(request.levels))))):
            rows = _start(request, fixed, runs, random)
            score, rows = _exchange(request, model, rows, len(fixed), moments)
            if best is None or score > best[0] * (_BETTER if best[0] > 0 else 1):
                best = score, rows
        assert best is not None
        if int(np.linalg.matrix_rank(models.matrix(request.factors, model, best[1]))) < least:
            raise BadInput(
                f"found no {runs} allowed combinations that separate the {least} coefficients of the model "
                f"{model} apart; expected a smaller model, more runs or fewer design.forbidden"
            )
        return best[1]

    def claim(self, request: Asked) -> Claim:
        """Claim an estimate of every coefficient of the model."""
        runs = request.options.get("runs")
        return Claim(model=request.options.get("model", "main"), runs=runs)

    def _moments(self, request: Asked, model: Model, random: np.random.Generator) -> Values | None:
        if self.criterion == "D":
            return None
        if request.combinations <= _REGION:
            region = full.treatments(request)
        else:
            region = _allowed_sample(request, _REGION, random)
        x = models.matrix(request.factors, model, region)
        moments: Values = x.T @ x / len(x)
        return moments


D = Optimal("D")
I = Optimal("I")  # noqa: E741 - the criterion's name


def possible(request: Asked) -> int:
    """Number of allowed combinations; of all combinations if they are too many to count."""
    if request.combinations > full.MOST:
        return request.combinations
    return len(full.treatments(request))


def _allowed_sample(request: Asked, count: int, random: np.random.Generator) -> Numbers:
    parts: list[Numbers] = []
    for _ in range(50):
        drawn = random.integers(0, request.levels, size=(count, len(request.levels)))
        parts.append(drawn[request.allowed(drawn)])
        if sum(map(len, parts)) >= count:
            break
    rows: Numbers = np.concatenate(parts)[:count]
    if not len(rows):
        raise BadInput(
            "found no allowed combination in many draws; expected fewer design.forbidden"
        )
    return rows


def _start(request: Asked, fixed: Numbers, runs: int, random: np.random.Generator) -> Numbers:
    """Fixed rows and random distinct allowed ones."""
    if request.combinations <= 1 << 16:
        pool = full.treatments(request)
    else:
        pool = np.unique(_allowed_sample(request, 20 * runs, random), axis=0)
    have = {tuple(row) for row in fixed.tolist()}
    free = np.array([row for row in pool.tolist() if tuple(row) not in have], dtype=np.int64)
    if len(free) + len(fixed) < runs:
        raise BadInput(
            f"found {len(free) + len(fixed)} allowed combinations; expected at least the {runs} runs of "
            "the optimal design: fewer runs, or fewer design.forbidden"
        )
    chosen = free[random.permutation(len(free))[: runs - len(fixed)]].reshape(
        -1, len(request.levels)
    )
    rows: Numbers = np.concatenate([fixed, chosen])
    return rows


def _score(x: Values, moments: Values | None) -> float:
    information = x.T @ x
    sign, size = np.linalg.slogdet(information)
    if moments is None:
        return float(np.exp(size / len(information))) if sign > 0 else 0.0
    if sign <= 0 or np.linalg.cond(information) > 1e12:
        return 0.0
    return 1 / float(np.trace(np.linalg.solve(information, moments)))


def _exchange(
    request: Asked, model: Model, rows: Numbers, n_fixed: int, moments: Values | None
) -> tuple[float, Numbers]:
    rows = rows.copy()
    x = models.matrix(request.factors, model, rows)
    ridge = 1e-6 * np.eye(x.shape[1])
    have = {tuple(row) for row in rows.tolist()}
    for _ in range(_PASSES):
        changed = False
        for i in range(n_fixed, len(rows)):
            rest = np.linalg.inv(x.T @ x - np.outer(x[i], x[i]) + ridge)
            for j, count in enumerate(request.levels):
                others = np.repeat(rows[i][None, :], count, axis=0)
                others[:, j] = np.arange(count)
                good = request.allowed(others)
                good &= [tuple(r) not in have or r[j] == rows[i, j] for r in others.tolist()]
                candidates = models.matrix(request.factors, model, others)
                gain = _gains(rest, candidates, moments)
                gain[~good] = -np.inf
                best, now = int(np.argmax(gain)), int(rows[i, j])
                if best != now and gain[best] > gain[now] + 1e-9 * abs(gain[now]):
                    have.discard(tuple(rows[i].tolist()))
                    rows[i, j] = best
                    have.add(tuple(rows[i].tolist()))
                    x[i] = candidates[best]
                    changed = True
        if not changed:
            break
    return _score(x, moments), rows


def _gains(rest: Values, candidates: Values, moments: Values | None) -> Any:
    """Criterion, up to a constant, with each candidate added to the other rows, whose (X'X)^-1 is `rest`.

    By the matrix determinant lemma and the Sherman-Morrison formula.
    """
    along = candidates @ rest
    leverage = np.einsum("ij,ij->i", along, candidates)
    if moments is None:
        return 1 + leverage
    return np.einsum("ij,ij->i", along @ moments, along) / (1 + leverage)
