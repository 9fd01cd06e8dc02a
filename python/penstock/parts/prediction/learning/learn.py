"""`penstock learn`: from a directory or a platform to a model. Rounds of points by the conductor, in one
archive for each deployment.

Every round is the same study with more levels at its end, so a killed `learn` resumes: the next points depend
only on the measurements.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.black_box.model import (
    LEAST_POINTS,
    BlackBoxModel,
    Overlap,
    learner,
    learnt,
)
from penstock.parts.prediction.black_box.plan import balanced, exploratory, next_round, subspace
from penstock.parts.prediction.black_box.show import points_csv, summary_lines, tree_lines, tree_of
from penstock.parts.prediction.black_box.space import LOCAL, MIB, Point, Space
from penstock.parts.prediction.black_box.tasks import fitted_overlap, with_computing
from penstock.parts.prediction.learning.deployment import Deployment, Ground, of_point
from penstock.parts.prediction.learning.measure_points import (
    Computing,
    Measured,
    Run,
    deployed_study,
    frozen_runs,
    host_facts,
    learn_study,
    make_runs,
    measured,
    points_of,
    storage_facts,
)
from penstock.spec.study import Study
from penstock.writing import atomic_folder

#: overhead of a point in addition to its own time: settling, fio's start, collecting [s, a guess]
AROUND_S = 0.7
#: ratios of computing to reading time in the runs that measure their overlap
COMPUTING = (0.5, 1.0, 2.0)
_COMPUTING_REQUEST = 128 << 10


@dataclass(frozen=True)
class Wanted:
    """Request to `learn`. `points`: maximum number; `cell_s`: longest time of a point."""

    ground: Ground
    space: Space
    points: int
    cell_s: float
    adaptive: bool = False
    subsample: bool = False
    overlap: bool = True
    kind: str = "tree"
    depth: int | None = None
    leaves: int = 24
    seed: int = 1


@dataclass
class Learning:
    """Result of `learn`; no model if it was interrupted."""

    out: Path
    model: BlackBoxModel | None = None
    interrupted: bool = False
    skipped: tuple[tuple[str, str], ...] = ()
    rounds: int = 0


def points_in(budget_s: float, cell_s: float, most: int | None = None) -> int:
    """Number of points within a time budget, which may be infinite if there are at `most` as many."""
    fitting = budget_s / (cell_s + AROUND_S)
    return max(LEAST_POINTS, int(fitting if most is None else min(fitting, most)))


def check_ground(ground: Ground, space: Space, out: Path) -> None:
    """Raise BadInput if the space cannot be measured there, PenstockError without fio."""
    ground.check(space)
    directories = [] if ground.is_platform else [ground.place, *ground.mounts.values()]
    for directory in directories:
        if not directory.is_dir():
            raise BadInput(
                f"{directory}: found no directory; expected one on the storage to be measured"
            )
        if out.resolve().is_relative_to(directory.resolve()):
            raise BadInput(
                f"{out}: found results inside the directory to be measured; expected another -o"
            )
    if shutil.which("fio") is None:
        raise PenstockError("fio is missing; install it (Debian: apt-get install fio)")


def learn(
    request: Wanted, out: Path, *, resume: bool, quiet: bool, say: Callable[[str], None]
) -> Learning:
    """Measure and learn; writes model.json, the files of the tree, points.csv and summary.txt into `out`.

    Raises BadInput for invalid requests or an unsuitable archive, PenstockError if the storage is too full or
    fails.
    """
    check_ground(request.ground, request.space, out)
    archives = request.ground.archives(out, request.space)
    planned = [run for one in archives.values() for run in frozen_runs(one)] if resume else []
    _refuse_other(planned, request.space, out)
    result = Learning(out)
    results: list[Measured] = []
    while True:
        runs = planned if result.rounds == 0 and planned else _next(request, planned, results, say)
        if len(runs) == len(planned) and result.rounds > 0:
            break
        planned = runs
        again = resume or result.rounds > 0
        result.rounds += 1
        outcome = _measure(request, archives, planned, resume=again, quiet=quiet)
        if outcome is None:
            result.interrupted = True
            return result
        results, skipped = outcome
        result.skipped = tuple(skipped)
        if not results:
            raise PenstockError(f"no point could be measured: {skipped[0][1]}")
    result.model = _model(request, results, result)
    write_results(result.model, out)
    return result


def _measure(
    request: Wanted,
    archives: Mapping[Deployment, Path],
    planned: Sequence[Run],
    *,
    resume: bool,
    quiet: bool,
) -> tuple[list[Measured], list[tuple[str, str]]] | None:
    """Make the runs of each deployment that are missing, and read all; None if interrupted."""
    results: list[Measured] = []
    skipped: list[tuple[str, str]] = []
    for deployment, out in archives.items():
        runs = [r for r in planned if _deployment(r) == deployment]
        if not runs:
            continue
        study = _study(request, deployment, runs)
        goes_on = resume and (out / "campaign.json").exists()
        campaign = make_runs(study, out, resume=goes_on, quiet=quiet)
        if campaign.interrupted:
            return None
        assert campaign.analysis is not None
        new, failed = measured(out, campaign.analysis.runs)
        results += new
        skipped += failed
    return results, skipped


def _study(request: Wanted, deployment: Deployment, runs: list[Run]) -> Study:
    ground = request.ground
    if not ground.is_platform:
        return learn_study(ground.directory(deployment), runs, request.cell_s)
    points = [r for r in runs if isinstance(r, Point)]
    return deployed_study(ground.place, deployment, points, request.cell_s)


def _deployment(run: Run) -> Deployment:
    return of_point(run if isinstance(run, Point) else run.point)


def _refuse_other(planned: Sequence[Run], space: Space, out: Path) -> None:
    points = set(space.grid())
    for run in planned:
        if isinstance(run, Point) and run not in points:
            raise BadInput(
                f"{out} has points of another space ({run.name}); use its --dimension and --space, or "
                "choose another -o"
            )


def _next(
    request: Wanted, planned: list[Run], results: list[Measured], say: Callable[[str], None]
) -> list[Run]:
    """The runs planned so far and those of the next round; the same list if complete."""
    points = [r for r in planned if isinstance(r, Point)]
    rates = points_of(results)
    candidates = request.space.grid()
    if request.subsample:
        first = exploratory(request.space)
        if not planned:
            say(f"exploring the dimensions: {len(first)} points")
            return list(first)
        subset = subspace(request.space, {p: rates[p] for p in first if p in rates})
        if len(points) <= len(first):
            say(f"dimensions that matter: {_values(subset)}")
        candidates = subset.grid()
    total = max(min(request.points, len(set(candidates) | set(points))), len(points))
    if len(points) < total:
        new = _new_points(request, points, rates, candidates, total)
        new = _paired(points, new, request.space)
        if planned:
            say(f"{len(points)} of {total} points are there; {len(new)} more where least is known")
        if new:
            return [*planned, *new]
    overlap = request.overlap and not request.ground.is_platform and LOCAL in request.space.storage
    if overlap and not any(isinstance(r, Computing) for r in planned):
        return [*planned, *_computing(request.space, rates)]
    return planned


def _values(space: Space) -> str:
    counts = [f"{d.removesuffix('_bytes')} {len(space.values(d))}" for d in vars(space)]
    return ", ".join(counts) + " values"


def _new_points(
    request: Wanted,
    points: list[Point],
    rates: dict[Point, float],
    candidates: list[Point],
    total: int,
) -> list[Point]:
    remaining = [p for p in candidates if p not in set(points)]
    if not request.adaptive:
        return _shuffled(balanced(remaining, total - len(points), request.seed), request.seed)
    failed = len(points) - len(rates)  # failed points are not repeated, and count
    return next_round(request.space, rates, remaining, total - failed, request.seed)


def _paired(points: list[Point], new: list[Point], space: Space) -> list[Point]:
    """The new points, with one more for each deployment that would have a single one: a study has two."""
    every = [*points, *new]
    number = Counter(map(of_point, every))
    added = list(new)
    for deployment in [d for d, count in number.items() if count == 1]:
        rest = (p for p in space.grid() if of_point(p) == deployment and p not in every)
        more = next(rest, None)
        if more is None:
            raise BadInput(
                f"found one point of {deployment.folder}; expected two values of another dimension"
            )
        added.append(more)
    return added


def _shuffled(points: list[Point], seed: int) -> list[Point]:
    """Random order, so that drift of the host does not correlate with a dimension."""
    return [points[i] for i in np.random.default_rng(seed).permutation(len(points))]


def _computing(space: Space, rates_of_points: dict[Point, float]) -> list[Run]:
    """A scan alone, and scans that compute for half, once and twice the reading time; none if the space has
    no buffered reads."""
    if "buffered" not in space.access or "read" not in space.operation:
        return []
    rates = [
        x for p, x in rates_of_points.items() if p.operation == "read" and p.pattern == "sequential"
    ]
    if not rates:
        return []
    alone = [
        x
        for p, x in rates_of_points.items()
        if (p.operation, p.pattern, p.clients, p.storage) == ("read", "sequential", 0, LOCAL)
    ]
    io_ns = 1e9 / float(np.median(alone or rates))
    scan = Point("read", "sequential", "buffered", 0, _COMPUTING_REQUEST, _scanned(space))
    return [Computing(scan, 0.0), *(Computing(scan, round(c * io_ns, 4)) for c in COMPUTING)]


def _scanned(space: Space) -> int:
    """Data of the computing scans: those of the space, at most 128 MiB."""
    return min(max(space.data_bytes), 128 * MIB)


def _model(request: Wanted, results: list[Measured], result: Learning) -> BlackBoxModel:
    rates = points_of(results)
    model = learnt(
        request.space,
        list(rates),
        list(rates.values()),
        chosen=request.kind,
        depth=request.depth,
        leaves=request.leaves,
        storage={**_facts(request.ground), "cell_s": request.cell_s},
        seed=request.seed,
    )
    model.overlap, model.cpu_s_per_byte = overlap_of(results)
    model.notes = [f"left out: {name}: {reason}" for name, reason in result.skipped]
    return model


def _facts(ground: Ground) -> Mapping[str, object]:
    """Facts on the storages: of the directory, of each mount; or the platform file."""
    if ground.is_platform:
        return {"platform": str(ground.place.resolve()), **host_facts()}
    facts = storage_facts(ground.place)
    mounts = {name: storage_facts(path) for name, path in ground.mounts.items()}
    return {**facts, "mounts": mounts} if mounts else facts


def overlap_of(results: Sequence[Measured]) -> tuple[Overlap | None, float | None]:
    """ω from the computing scans, and the processor time of reading itself [s per byte]."""
    scans = [m for m in results if isinstance(m.run, Computing)]
    plain = [m for m in scans if m.run.cpu_ns_per_byte == 0.0]  # type: ignore[union-attr]
    busy = [m for m in scans if m not in plain]
    alone = [
        m.cpu_s_per_byte
        for m in results
        if isinstance(m.run, Point)
        and (m.run.operation, m.run.pattern, m.run.clients) == ("read", "sequential", 0)
    ]
    own = float(np.median(alone)) if alone else None
    if not plain or not busy:
        return None, own
    io = [1 / plain[0].throughput_bps] * len(busy)
    cpu = [m.cpu_s_per_byte for m in busy]
    measured_s = [1 / m.throughput_bps for m in busy]
    omega = fitted_overlap(io, cpu, measured_s)
    off = [
        abs(with_computing(i, c, omega) / t - 1)
        for i, c, t in zip(io, cpu, measured_s, strict=True)
    ]
    return Overlap(omega, len(busy), max(off)), own


def write_results(model: BlackBoxModel, out: Path) -> None:
    """Write the model and its readable forms."""
    from penstock.parts.prediction.report.storage_tree import figure

    with atomic_folder(out) as draft:
        model.save(draft / "model.json")
        (draft / "tree.txt").write_text("\n".join(tree_lines(model)) + "\n")
        (draft / "tree.json").write_text(json.dumps(tree_of(model), indent=1) + "\n")
        (draft / "points.csv").write_text(points_csv(model))
        (draft / "summary.txt").write_text("\n".join(summary_lines(model)) + "\n")
        (draft / "tree.svg").write_bytes(figure(model))


__all__ = [
    "Learning",
    "Wanted",
    "check_ground",
    "learn",
    "learner",
    "overlap_of",
    "points_in",
    "write_results",
]
