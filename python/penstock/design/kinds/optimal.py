"""D- and I-optimal treatments for a model, by exchange of single levels.

Coordinate exchange (Meyer and Nachtsheim, Technometrics 37, 1995) from several random starts: D-optimal
designs make the determinant of X'X largest, I-optimal ones the mean variance of predictions over all allowed
combinations smallest. Forbidden combinations are never entered, kept treatments never left.
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
    "runs": "how many treatments, kept ones included; the coefficients of the model and five more",
    "model": "main, pairs or quadratic: what must have an estimate; main",
    "keep": "treatments that were made already, each a mapping of factor to level, or a CSV file",
}
#: random starts, fewer where runs x levels are many, and passes of exchanges of each
_STARTS, _ROOM, _PASSES = 8, 8_000, 20
#: treatments and coefficients at most
MOST_RUNS, MOST_COEFFICIENTS = 400, 150
#: combinations over which variance is averaged: all, or a sample of so many
_REGION = 4096
_BETTER = 1 + 1e-9
#: designs that this process found, by what was asked: a study is read, planned and shown with the same
_MADE: dict[tuple[str, str], Numbers] = {}
_MOST_MADE = 64


@dataclass(frozen=True)
class Optimal:
    """A kind of design by its criterion."""

    criterion: Literal["D", "I"]

    OPTIONS = OPTIONS
    CANNOT = (
        "Optimal for its model alone: effects outside of it (higher interactions, and pairs unless the model "
        "has them) are mixed into those that it has.",
    )

    @property
    def WHAT(self) -> str:  # noqa: N802 - as a module has it
        """A line that says what it is."""
        aim = "estimates" if self.criterion == "D" else "predictions"
        return f"As many runs as wanted for any levels, with the best {aim} of a model."

    def fault(self, asked: Asked) -> str:
        """A model, enough runs, rows to keep that are treatments."""
        model = asked.options.get("model", "main")
        if model not in MODELS:
            return f"model: {', '.join(MODELS)}"
        least = models.coefficients(asked.factors, model)
        if least > MOST_COEFFICIENTS:
            return f"a model of at most {MOST_COEFFICIENTS} coefficients; {model} has {least}"
        most = min(asked.combinations, MOST_RUNS)
        if least > most:
            return f"a smaller model: {model} has {least} coefficients, {most} runs are possible"
        said = asked.options.get("keep", [])
        names = set(asked.names)
        if not isinstance(said, list):
            return "keep: treatments, each a mapping of factor to level"
        for number, row in enumerate(said, start=1):
            if not isinstance(row, dict) or set(row) != names:
                return f"keep, row {number}: a level for each of {', '.join(asked.names)}"
            for factor in asked.factors:
                known = [v.name for v in factor.levels]
                if level_name(row[factor.name]) not in known:
                    return f"keep, row {number}: a level of {factor.name} ({', '.join(known)})"
        return whole_number(asked, "runs", max(least, len(said)), most)

    def treatments(self, asked: Asked) -> Numbers:
        """The best of several starts; BadInput where too few combinations are allowed."""
        key = (self.criterion, repr(asked))
        if key not in _MADE:
            if len(_MADE) >= _MOST_MADE:
                _MADE.clear()
            _MADE[key] = self._made(asked)
        return _MADE[key].copy()

    def _made(self, asked: Asked) -> Numbers:
        said = asked.options.get("keep", [])
        kept = (
            numbers_of(asked, said) if said else np.empty((0, len(asked.factors)), dtype=np.int64)
        )
        kept = kept[np.sort(np.unique(kept, axis=0, return_index=True)[1])] if len(kept) else kept
        model: Model = asked.options.get("model", "main")
        least = models.coefficients(asked.factors, model)
        runs = asked.whole("runs", min(least + 5, possible(asked)))
        random = np.random.default_rng([asked.seed & 0xFFFFFFFF, asked.seed >> 32])
        moments = self._moments(asked, model, random)
        best: tuple[float, Numbers] | None = None
        for _ in range(max(1, min(_STARTS, _ROOM // (runs * sum(asked.levels))))):
            rows = _start(asked, kept, runs, random)
            score, rows = _exchange(asked, model, rows, len(kept), moments)
            if best is None or score > best[0] * (_BETTER if best[0] > 0 else 1):
                best = score, rows
        assert best is not None
        if int(np.linalg.matrix_rank(models.matrix(asked.factors, model, best[1]))) < least:
            raise BadInput(
                f"found no {runs} allowed combinations that tell the {least} coefficients of the model "
                f"{model} apart; expected a smaller model, more runs or fewer design.forbidden"
            )
        return best[1]

    def claim(self, asked: Asked) -> Claim:
        """Every coefficient of the model has an estimate."""
        runs = asked.options.get("runs")
        return Claim(model=asked.options.get("model", "main"), runs=runs)

    def _moments(self, asked: Asked, model: Model, random: np.random.Generator) -> Values | None:
        if self.criterion == "D":
            return None
        if asked.combinations <= _REGION:
            region = full.treatments(asked)
        else:
            region = _allowed_sample(asked, _REGION, random)
        x = models.matrix(asked.factors, model, region)
        moments: Values = x.T @ x / len(x)
        return moments


D = Optimal("D")
I = Optimal("I")  # noqa: E741 - the criterion's name


def possible(asked: Asked) -> int:
    """Allowed combinations; all where they are too many to count."""
    if asked.combinations > full.MOST:
        return asked.combinations
    return len(full.treatments(asked))


def _allowed_sample(asked: Asked, count: int, random: np.random.Generator) -> Numbers:
    found: list[Numbers] = []
    for _ in range(50):
        drawn = random.integers(0, asked.levels, size=(count, len(asked.levels)))
        found.append(drawn[asked.allowed(drawn)])
        if sum(map(len, found)) >= count:
            break
    rows: Numbers = np.concatenate(found)[:count]
    if not len(rows):
        raise BadInput(
            "found no allowed combination in many draws; expected fewer design.forbidden"
        )
    return rows


def _start(asked: Asked, kept: Numbers, runs: int, random: np.random.Generator) -> Numbers:
    """Kept rows and random distinct allowed ones."""
    if asked.combinations <= 1 << 16:
        pool = full.treatments(asked)
    else:
        pool = np.unique(_allowed_sample(asked, 20 * runs, random), axis=0)
    have = {tuple(row) for row in kept.tolist()}
    free = np.array([row for row in pool.tolist() if tuple(row) not in have], dtype=np.int64)
    if len(free) + len(kept) < runs:
        raise BadInput(
            f"found {len(free) + len(kept)} allowed combinations; expected at least the {runs} runs of "
            "the optimal design: fewer runs, or fewer design.forbidden"
        )
    chosen = free[random.permutation(len(free))[: runs - len(kept)]].reshape(-1, len(asked.levels))
    found: Numbers = np.concatenate([kept, chosen])
    return found


def _score(x: Values, moments: Values | None) -> float:
    information = x.T @ x
    sign, size = np.linalg.slogdet(information)
    if moments is None:
        return float(np.exp(size / len(information))) if sign > 0 else 0.0
    if sign <= 0 or np.linalg.cond(information) > 1e12:
        return 0.0
    return 1 / float(np.trace(np.linalg.solve(information, moments)))


def _exchange(
    asked: Asked, model: Model, rows: Numbers, kept: int, moments: Values | None
) -> tuple[float, Numbers]:
    rows = rows.copy()
    x = models.matrix(asked.factors, model, rows)
    ridge = 1e-6 * np.eye(x.shape[1])
    have = {tuple(row) for row in rows.tolist()}
    for _ in range(_PASSES):
        changed = False
        for i in range(kept, len(rows)):
            rest = np.linalg.inv(x.T @ x - np.outer(x[i], x[i]) + ridge)
            for j, count in enumerate(asked.levels):
                others = np.repeat(rows[i][None, :], count, axis=0)
                others[:, j] = np.arange(count)
                good = asked.allowed(others)
                good &= [tuple(r) not in have or r[j] == rows[i, j] for r in others.tolist()]
                candidates = models.matrix(asked.factors, model, others)
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

    By the matrix determinant lemma and the formula of Sherman and Morrison.
    """
    along = candidates @ rest
    leverage = np.einsum("ij,ij->i", along, candidates)
    if moments is None:
        return 1 + leverage
    return np.einsum("ij,ij->i", along @ moments, along) / (1 + leverage)
