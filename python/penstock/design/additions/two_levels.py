"""Additions to a two-level design that separate aliased effects.

A *question* is a contrast that shows an effect, with its *rivals*: the other terms of at most `ORDER`
factors that are aliased with it. A rival is *plausible* if one of its factors has a main effect (weak
heredity; Hamada & Wu, Journal of Quality Technology 24, 1992). A step *breaks* a rival if, in a model of
mean, stages and main effects, term and rival then both have an estimate, and the term's interval is no
wider than before. Steps: folding over all factors (Box & Hunter, Technometrics 3, 1961) or one (Montgomery
& Runger, Journal of Quality Technology 28, 1996), half of such a fold (Mee & Peralta, Technometrics 42,
2000), another fraction of the same family, and D-optimal rows with a prior on terms that the runs do not
determine (DuMouchel & Jones, Technometrics 36, 1994).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design.matrix import Matrix, alias_words, column, constant_words, regular
from penstock.errors import BadInput

#: maximum number of factors of a rival
ORDER = 3
#: arguments of `--augment`
KINDS = (
    "foldover",
    "foldover:FACTOR",
    "semifold:FACTOR",
    "coset",
    "optimal:ROWS",
    "replicates:NUMBER",
    "best",
)
#: maximum numbers of fractions of a family, and of candidate rows for an optimal addition
_MOST_COSETS = 256
_MOST_ROWS = 4096
#: maximum number of rows that a stage may add
MOST_ADDED = 4096
#: maximum number of factors for which a step's defining words are listed
_MOST_RELATED = 15
_TINY = 1e-8

Values = NDArray[np.floating[Any]]
#: mask of the rows of a matrix that may be run
Allowed = Callable[[Matrix], NDArray[np.bool_]]


@dataclass(frozen=True)
class Question:
    """A contrast with an effect: its shortest `term` (a word), its `plausible` and `other` rivals.

    `shares`: for partial aliases, the bias that one unit of the rival adds to the term's coefficient (no
    entry: 1 or −1).
    """

    term: int
    plausible: tuple[int, ...]
    other: tuple[int, ...] = ()
    shares: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """Rows to add: `kind` as in `--augment`, `rows` treatments × factors of −1/+1 (empty: replicates).

    `broken` are pairs of term and rival that the step separates, `remaining` those that it does not;
    `relation` the signed defining words of all rows; `stage` the words confounded with the difference
    between stages.
    """

    kind: str
    rows: Matrix
    broken: tuple[tuple[int, int], ...] = ()
    remaining: tuple[tuple[int, int], ...] = ()
    relation: dict[int, int] = field(default_factory=dict)
    stage: tuple[int, ...] = ()


def questions(matrix: Matrix, active: Sequence[int]) -> list[Question]:
    """Contrasts that contain one of the words `active`, with their aliases.

    If a word of several factors is aliased, the shortest word of its alias set replaces it.
    """
    groups = [[w for w, _ in group] for group in alias_words(matrix, ORDER)[1:]]
    led = [g for g in groups if set(g) & set(active)]
    alone = sum(g[0] for g in led if g[0].bit_count() == 1)
    return [
        Question(
            g[0],
            tuple(w for w in g[1:] if w & alone),
            tuple(w for w in g[1:] if not w & alone),
        )
        for g in led
    ]


def steps(
    matrix: Matrix,
    stages: Sequence[int],
    open_questions: Sequence[Question],
    names: Sequence[str],
    allowed: Allowed | None = None,
) -> list[Step]:
    """The best step of each kind. `stages`: stage of each row, from 1."""
    distinct: list[Step] = []
    for kind in _kinds(matrix, names):
        try:
            step = make_step(kind, matrix, stages, open_questions, names, allowed=allowed)
        except BadInput:
            continue
        if not any(_same(step.rows, other.rows) for other in distinct):
            distinct.append(step)
    return distinct


def make_step(
    kind: str,
    matrix: Matrix,
    stages: Sequence[int],
    open_questions: Sequence[Question],
    names: Sequence[str],
    *,
    again: bool = False,
    allowed: Allowed | None = None,
) -> Step:
    """The step of this `kind` (one of `KINDS` but `best`). `again`: the new rows include the existing
    ones, so that nothing is confounded with the stage; `allowed`: rows that an optimal addition may use.
    BadInput if there is no such step."""
    word, _, argument = kind.partition(":")
    if word == "replicates":
        count = checked_count(argument or "1", kind, 1000)
        return _judged(
            f"replicates:{count}", matrix[:0], matrix, stages, open_questions, again=False
        )
    makers: dict[str, Callable[[], Matrix]] = {
        "foldover": lambda: _folded(matrix, names, argument),
        "semifold": lambda: _half(matrix, stages, open_questions, names, argument),
        "coset": lambda: _coset(matrix, stages, open_questions),
        "optimal": lambda: optimal_rows(
            matrix,
            stages,
            open_questions,
            checked_count(argument or str(max(1, -(-len(matrix) // 3))), kind, 4096),
            allowed,
        ),
    }
    if word not in makers:
        raise BadInput(f"--augment: found {kind!r}; expected {', '.join(KINDS)}")
    rows = _new(makers[word](), matrix)
    if not len(rows):
        raise BadInput(f"--augment {kind}: all of these treatments are in the plan already")
    if len(rows) > MOST_ADDED:
        raise BadInput(f"--augment {kind}: {len(rows)} treatments; expected at most {MOST_ADDED}")
    if word == "optimal":
        kind = f"optimal:{len(rows)}"
    return _judged(kind, rows, matrix, stages, open_questions, again=again)


# ---------------------------------------------------------------- rows


def _kinds(matrix: Matrix, names: Sequence[str]) -> Iterator[str]:
    yield "foldover"
    yield from (f"foldover:{name}" for name in names)
    yield from (f"semifold:{name}" for name in names)
    if regular(np.unique(matrix, axis=0)):
        yield "coset"
    rows = len(matrix)
    yield from (f"optimal:{n}" for n in sorted({-(-rows // 3), -(-rows // 2), rows}))


def _place(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise BadInput(f"--augment: found the factor {name!r}; expected {', '.join(names)}")
    return list(names).index(name)


def checked_count(text: str, kind: str, most: int) -> int:
    """The number in an argument of `--augment`. BadInput if it is not from 1 to `most`."""
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise BadInput(f"--augment {kind}: found {text!r}; expected a number from 1 to {most}")
    return int(text)


def _folded(matrix: Matrix, names: Sequence[str], name: str) -> Matrix:
    """Rows with the signs of one factor's column changed, or of all columns."""
    if not name:
        return (-matrix).astype(np.int8)
    rows = matrix.copy()
    rows[:, _place(names, name)] *= -1
    return rows


def _half(
    matrix: Matrix,
    stages: Sequence[int],
    open_: Sequence[Question],
    names: Sequence[str],
    name: str,
) -> Matrix:
    """The half of the fold on a factor (one level of another factor) that breaks most rivals."""
    if not name:
        raise BadInput("--augment semifold: found no factor; expected semifold:FACTOR")
    rows = _folded(matrix, names, name)
    halves = [
        _new(rows[rows[:, j] == sign], matrix) for j in range(matrix.shape[1]) for sign in (1, -1)
    ]
    halves = [h for h in halves if 0 < len(h) < len(rows)]
    if not halves:
        raise BadInput(f"--augment semifold:{name}: there is no half that is new")
    return max(
        halves,
        key=lambda h: (
            _merit(h, matrix, stages, open_),
            _determinant(h, matrix, stages, open_),
        ),
    )


def _coset(matrix: Matrix, stages: Sequence[int], open_questions: Sequence[Question]) -> Matrix:
    """The fraction of the same family (columns with changed signs) that breaks most rivals."""
    factors = matrix.shape[1]
    best: Matrix | None = None
    most = (-1, -1)
    looked = 0
    for size in range(1, factors + 1):
        for chosen in itertools.combinations(range(factors), size):
            looked += 1
            if looked > _MOST_COSETS:
                break
            rows = matrix.copy()
            rows[:, list(chosen)] *= -1
            rows = _new(rows, matrix)
            if len(rows) < len(matrix):
                continue
            broken = _merit(rows, matrix, stages, open_questions)
            if broken > most:
                best, most = rows, broken
    if best is None:
        raise BadInput("--augment coset: every fraction of this family has been run")
    return best


def optimal_rows(
    matrix: Matrix,
    stages: Sequence[int],
    open_questions: Sequence[Question],
    count: int,
    allowed: Allowed | None = None,
) -> Matrix:
    """`count` rows that maximise the determinant for stages, main effects, terms and their rivals.

    Greedy, then by exchange (Fedorov 1972) until there is no gain; terms that the existing rows do not
    determine have a weak prior. Candidates are all 2^K rows, or a random sample.
    """
    factors = matrix.shape[1]
    columns_of = [1 << i for i in range(factors)]
    columns_of += sorted(
        {w for q in open_questions for w in (q.term, *q.plausible)} - set(columns_of)
    )
    if 2**factors <= _MOST_ROWS:
        numbers = np.arange(2**factors)
    else:
        numbers = np.unique(np.random.default_rng(1).integers(0, 2**factors, _MOST_ROWS))
    everything = (2 * (numbers[:, None] >> np.arange(factors) & 1) - 1).astype(np.int8)
    if allowed is not None:
        everything = everything[allowed(everything)]
    pool = _new(everything, matrix)
    if len(pool) < count:
        raise BadInput(f"--augment optimal:{count}: only {len(pool)} treatments have not been run")

    def terms(rows: Matrix, stage: int | Sequence[int]) -> Values:
        labels = np.broadcast_to(np.asarray(stage), (len(rows),))
        kinds = [(labels == s).astype(float) for s in range(1, max(stages) + 2)]
        return np.column_stack([*kinds, *(column(rows, w).astype(float) for w in columns_of)])

    had, may = terms(matrix, stages), terms(pool, max(stages) + 1)
    return pool[chosen_rows(had, may, count)]


def chosen_rows(had: Values, may: Values, count: int) -> list[int]:
    """The `count` rows of `may` that most increase the determinant of the information of the rows `had`.

    Greedy, then by exchange (Fedorov 1972); terms that `had` does not determine have a weak prior.
    """
    information = had.T @ had + 1e-3 * np.eye(had.shape[1])
    chosen: list[int] = []

    def gain(inverse: Values) -> Values:
        gains = np.einsum("ij,jk,ik->i", may, inverse, may)
        gains[chosen] = -1
        return np.asarray(gains)

    for _ in range(count):
        at = int(np.argmax(gain(np.linalg.inv(information))))
        chosen.append(at)
        information = information + np.outer(may[at], may[at])
    for _ in range(10):
        changed = False
        for place in range(count):
            old = chosen[place]
            without = information - np.outer(may[old], may[old])
            inverse = np.linalg.inv(without)
            now = float(may[old] @ inverse @ may[old])
            best = gain(inverse)
            at = int(np.argmax(best))
            if best[at] > now * (1 + 1e-9):
                chosen[place] = at
                information = without + np.outer(may[at], may[at])
                changed = True
        if not changed:
            break
    return sorted(chosen)


def _merit(
    rows: Matrix, matrix: Matrix, stages: Sequence[int], open_questions: Sequence[Question]
) -> tuple[int, int]:
    """Number of two-factor rivals that the rows break, then of all rivals."""
    broken = _broken(rows, matrix, stages, open_questions)[0]
    return sum(r.bit_count() <= 2 for _, r in broken), len(broken)


def _determinant(
    rows: Matrix, matrix: Matrix, stages: Sequence[int], open_questions: Sequence[Question]
) -> float:
    """Log-determinant of the information matrix of main effects, terms and two-factor rivals."""
    together, labels = _together(rows, matrix, stages)
    columns_of = [1 << i for i in range(matrix.shape[1])]
    columns_of += sorted(
        {w for q in open_questions for w in (q.term, *q.plausible) if w.bit_count() == 2}
    )
    model = np.column_stack(
        [_stage_columns(labels), *(column(together, w).astype(float) for w in columns_of)]
    )
    return float(np.linalg.slogdet(model.T @ model + 1e-3 * np.eye(model.shape[1]))[1])


def _new(rows: Matrix, matrix: Matrix) -> Matrix:
    """Distinct rows that are not in the matrix, in their order."""
    existing = {row.tobytes() for row in matrix.astype(np.int8)}
    new = []
    for row in rows.astype(np.int8):
        if row.tobytes() not in existing:
            existing.add(row.tobytes())
            new.append(row)
    return np.array(new, dtype=np.int8).reshape(len(new), matrix.shape[1])


def _same(one: Matrix, other: Matrix) -> bool:
    return {r.tobytes() for r in one} == {r.tobytes() for r in other}


# ---------------------------------------------------------------- effect of a step


def _judged(
    kind: str,
    rows: Matrix,
    matrix: Matrix,
    stages: Sequence[int],
    open_questions: Sequence[Question],
    *,
    again: bool,
) -> Step:
    broken, remaining = _broken(rows, matrix, stages, open_questions, again=again)
    together, labels = _together(rows, matrix, stages, again=again)
    every = together if len(rows) else matrix
    relation = constant_words(every) if every.shape[1] <= _MOST_RELATED else {0: 1}
    return Step(kind, rows, broken, remaining, relation, stage_words(together, labels))


def _together(
    rows: Matrix, matrix: Matrix, stages: Sequence[int], *, again: bool = False
) -> tuple[Matrix, list[int]]:
    added = np.vstack([matrix, rows]) if again else rows
    return np.vstack([matrix, added]), [*stages, *[max(stages) + 1] * len(added)]


def _broken(
    rows: Matrix,
    matrix: Matrix,
    stages: Sequence[int],
    open_questions: Sequence[Question],
    *,
    again: bool = False,
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Pairs of term and plausible rival that the rows separate, and pairs that they do not."""
    together, labels = _together(rows, matrix, stages, again=again)
    broken: list[tuple[int, int]] = []
    remaining: list[tuple[int, int]] = []
    before, after = _Beside(matrix, stages), _Beside(together, labels)
    for question in open_questions:
        now = before.variance(question.term)
        for rival in question.plausible:
            width = after.variance(question.term, rival)
            apart = len(rows) > 0 and np.isfinite(width) and width <= (1 + 1e-9) * now
            (broken if apart else remaining).append((question.term, rival))
    return tuple(broken), tuple(remaining)


class _Beside:
    """Variances of a matrix's terms adjusted for mean, stages and main effects, computed together.

    A rival z adds a²/‖z − Xb‖² to the variance of a main effect, b being the coefficients of z and a that
    of the main effect.
    """

    def __init__(self, matrix: Matrix, stages: Sequence[int]) -> None:
        self.matrix, self.stages = matrix, stages
        of_stage = _stage_columns(stages)
        self.first = of_stage.shape[1]
        self.x = np.hstack([of_stage, matrix.astype(float)])
        gram = self.x.T @ self.x
        full_rank = int(np.linalg.matrix_rank(gram, hermitian=True)) == len(gram)
        self.inverse = np.linalg.inv(gram) if full_rank else None

    def variance(self, term: int, rival: int | None = None) -> float:
        """As `variance`."""
        if self.inverse is None or term.bit_count() != 1 or (rival and rival.bit_count() == 1):
            return variance(self.matrix, self.stages, term, rival)
        at = self.first + term.bit_length() - 1
        alone = float(self.inverse[at, at])
        if rival is None:
            return alone
        its = column(self.matrix, rival).astype(float)
        b = self.inverse @ (self.x.T @ its)
        rest = its - self.x @ b
        rest_squares = float(rest @ rest)
        return alone + float(b[at]) ** 2 / rest_squares if rest_squares >= _TINY else float("inf")


def variance(matrix: Matrix, stages: Sequence[int], term: int, rival: int | None = None) -> float:
    """Variance of a term's coefficient, in σ², adjusted for mean, stages, main effects and at most one
    rival; infinite if the rows do not determine both."""
    mains = [1 << i for i in range(matrix.shape[1])]
    others = [column(matrix, w).astype(float) for w in mains if w not in (term, rival)]
    base = np.column_stack([_stage_columns(stages), *others])
    own = column(matrix, term).astype(float)
    if rival is not None:
        its = column(matrix, rival).astype(float)
        if _rest(its, np.column_stack([base, own])) < _TINY:
            return float("inf")
        base = np.column_stack([base, its])
    rest_squares = _rest(own, base)
    return 1 / rest_squares if rest_squares >= _TINY else float("inf")


def stage_words(matrix: Matrix, stages: Sequence[int], order: int = ORDER) -> tuple[int, ...]:
    """Words up to `order` that vary only between stages, and are thus confounded with their difference."""
    columns = _stage_columns(stages)
    if columns.shape[1] == 1:
        return ()
    between_stages = []
    for group in alias_words(matrix, order)[1:]:
        if _rest(column(matrix, group[0][0]).astype(float), columns) < _TINY:
            between_stages += [w for w, _ in group]
    constant = constant_words(matrix) if matrix.shape[1] <= 15 else {}
    return tuple(w for w in between_stages if w not in constant)


def _stage_columns(stages: Sequence[int]) -> Values:
    labels = np.asarray(stages)
    return np.column_stack([(labels == s).astype(float) for s in np.unique(labels)])


def _rest(values: Values, columns: Values) -> float:
    """Residual sum of squares of values regressed on columns."""
    residual = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]
    return float(residual @ residual)


def recommended(steps_offered: Sequence[Step]) -> Step | None:
    """The recommended step: most plausible rivals of fewest factors broken (large effects tend to be of
    few factors); ties: fewest rows, then most rivals broken in total."""
    pairs = [p for s in steps_offered for p in (*s.broken, *s.remaining)]
    if not pairs:
        return None
    shortest = min(r.bit_count() for _, r in pairs)

    def merit(step: Step) -> tuple[int, int, int]:
        short = sum(r.bit_count() == shortest for _, r in step.broken)
        return short, -len(step.rows), len(step.broken)

    best = max(steps_offered, key=merit)
    return best if best.broken else None
