"""Model of one storage: points, learners, their errors, intervals, overlap of computing and reading; in JSON.

Learners fit the logarithm of the throughput (bytes/s of one client), which spans orders of magnitude: leaves
are geometric means, errors are ratios.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.analyse.statistics.prediction_intervals import exact
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.black_box.beyond import Beyond, beyond, refuse_unmeasured
from penstock.parts.prediction.black_box.comparison import Comparison, compared
from penstock.parts.prediction.black_box.estimator import LEARNERS, MEASURED_ONLY, restored
from penstock.parts.prediction.black_box.features import Feature, features, matrix, to_rows
from penstock.parts.prediction.black_box.intervals import CrossConformal, grouped
from penstock.parts.prediction.black_box.space import Point, Space
from penstock.parts.prediction.black_box.surrogate import completed

SCHEMA = "penstock/blackbox/2"
#: earlier version, read by training on its points again
_SCHEMA_1 = "penstock/blackbox/1"
LEVEL = 0.9
#: fewest points of a model
LEAST_POINTS = 8

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Overlap:
    """Overlap of computing and reading on this storage: ω, and the number of runs behind it."""

    overlap: float
    runs: int
    worst_error: float


@dataclass
class BlackBoxModel:
    """A storage as throughput over the space of points."""

    storage: dict[str, Any]
    space: Space
    points: list[Point]
    throughput_bps: Floats
    chosen: str
    learners: dict[str, Any]
    errors: dict[str, Comparison]
    conformal: CrossConformal
    of_fold: list[Any]
    overlap: Overlap | None = None
    cpu_s_per_byte: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[Feature]:
        """Columns of the learners' input."""
        return features(self.space)

    def throughput(self, points: Sequence[Point], learner: str | None = None) -> Floats:
        """Bytes per second of one client at each point."""
        rates: Floats = self.learners[learner or self.chosen].predict(matrix(self.columns, points))
        return rates

    def interval(self, points: Sequence[Point], level: float = LEVEL) -> tuple[Floats, Floats]:
        """Low and high throughput [bytes/s] at each point; 0 and infinite with too few measured points.

        Wider for a point outside of the measured grid.
        """
        x = matrix(self.columns, points)
        of_fold = np.array([np.log(m.predict(x)) for m in self.of_fold])
        measured_classes = np.array([_class(p) for p in dict.fromkeys(self.points)])
        classes = np.array([_class(p) for p in points])
        low, high = np.empty(len(points)), np.empty(len(points))
        for one in set(classes.tolist()):
            at = classes == one
            alike = self.conformal.among(measured_classes == one, level)
            low[at], high[at] = alike.interval(of_fold[:, at], level)
        outside = [math.prod(b.factor for b in self.beyond(p)) for p in points]
        return np.exp(low) / outside, np.exp(high) * outside

    def beyond(self, point: Point) -> list[Beyond]:
        """Dimensions in which a point lies outside of the measured grid; BadInput for an unmeasured
        category."""
        refuse_unmeasured(self.points, point)
        return beyond(self.points, self.throughput_bps.tolist(), point)

    def point(self, **dimensions: Any) -> Point:
        """A point of the given dimensions; others: sequential, buffered, alone, 64 KiB (or the nearest), and
        the first storage."""
        defaults: dict[str, Any] = {
            "operation": "read",
            "pattern": "sequential",
            "access": self.space.access[0],
            "clients": 0,
            "request_bytes": min(self.space.request_bytes, key=lambda v: abs(math.log(v / 65536))),
            "data_bytes": max(self.space.data_bytes),
            "nodes": self.space.nodes[0],
            "storage": self.space.storage[0],
        }
        unknown = set(dimensions) - set(defaults)
        if unknown:
            raise BadInput(f"found {', '.join(sorted(unknown))}; expected {', '.join(defaults)}")
        return Point(**{**defaults, **dimensions})

    def to_dict(self) -> dict[str, Any]:
        """Plain values of the JSON file."""
        return {
            "schema": SCHEMA,
            "storage": self.storage,
            "space": self.space.to_dict(),
            "points": [
                {**row, "throughput_bps": float(x)}
                for row, x in zip(to_rows(self.points), self.throughput_bps, strict=True)
            ],
            "chosen": self.chosen,
            "learners": {name: learner.to_dict() for name, learner in self.learners.items()},
            "errors": {name: one.to_dict() for name, one in self.errors.items()},
            "conformal": {
                "fold": self.conformal.fold.tolist(),
                "residual": self.conformal.residual.tolist(),
                "of_fold": [m.to_dict() for m in self.of_fold],
            },
            "overlap": vars(self.overlap) if self.overlap else None,
            "cpu_s_per_byte": self.cpu_s_per_byte,
            "notes": self.notes,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "model") -> BlackBoxModel:
        """The model of `to_dict`; BadInput for invalid values."""
        if not isinstance(values, Mapping) or values.get("schema") not in (SCHEMA, _SCHEMA_1):
            schema = values.get("schema") if isinstance(values, Mapping) else type(values).__name__
            raise BadInput(f"{where}: found schema {schema!r}; expected {SCHEMA!r}")
        try:
            rows = [dict(row) for row in values["points"]]
            rates = np.array([row.pop("throughput_bps") for row in rows], dtype=float)
            if not np.all(np.isfinite(rates) & (rates > 0)):
                raise ValueError("throughputs above 0")
            points, space = [Point(**row) for row in rows], Space.from_dict(values["space"])
            overlap = Overlap(**values["overlap"]) if values["overlap"] else None
            if values["schema"] == _SCHEMA_1:
                old = learnt(space, points, rates.tolist(), storage=dict(values["storage"]))
                old.overlap, old.cpu_s_per_byte = overlap, values["cpu_s_per_byte"]
                old.notes = list(values["notes"])
                return old
            conformal = values["conformal"]
            return cls(
                storage=dict(values["storage"]),
                space=space,
                points=points,
                throughput_bps=rates,
                chosen=values["chosen"],
                learners={name: restored(one) for name, one in values["learners"].items()},
                errors={k: Comparison.from_dict(one) for k, one in values["errors"].items()},
                conformal=CrossConformal(
                    np.asarray(conformal["fold"], dtype=np.int64),
                    np.asarray(conformal["residual"], dtype=float),
                ),
                of_fold=[restored(one) for one in conformal["of_fold"]],
                overlap=overlap,
                cpu_s_per_byte=values["cpu_s_per_byte"],
                notes=list(values["notes"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadInput(
                f"{where}: found an incomplete model ({error}); expected {SCHEMA}"
            ) from None

    def save(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(self.to_dict()) + "\n")


def load_model(path: Path) -> BlackBoxModel:
    """Model of a JSON file, or of a directory of results. BadInput if absent."""
    file = path / "model.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror or error}; expected a model") from None
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        raise BadInput(f"{file}:{line}:{column}: found no JSON; expected a model") from None
    return BlackBoxModel.from_dict(values, str(file))


def learner(kind: str, depth: int | None = None, leaves: int = 24) -> Any:
    """An unfitted learner of throughput, a row of `LEARNERS`. BadInput for another kind."""
    if kind not in LEARNERS:
        raise BadInput(f"found the model {kind!r}; expected {', '.join(LEARNERS)}")
    if kind == "tree":
        return LEARNERS[kind](max_depth=depth, max_leaves=leaves, scale="log")
    return LEARNERS[kind](scale="log")


def learnt(
    space: Space,
    points: Sequence[Point],
    throughput_bps: Sequence[float],
    *,
    chosen: str = "tree",
    depth: int | None = None,
    leaves: int = 24,
    storage: dict[str, Any] | None = None,
    seed: int = 1,
    complete: bool = True,
) -> BlackBoxModel:
    """Train all learners on the points (Algorithm 1, step 6); errors by cross-validation.

    `complete`: trees on the grid completed by a surrogate from the points, else on these alone, as published.
    The learners have the same folds; repetitions of a point share one. All preprocessing of the points
    excludes the test fold. Intervals are of the chosen learner. Raises PenstockError with fewer than 8
    different points.
    """
    if len(set(points)) < LEAST_POINTS:
        raise PenstockError(
            f"{len(set(points))} points measured; a model needs at least {LEAST_POINTS}"
        )
    columns = features(space)
    y = np.asarray(throughput_bps, dtype=float)
    group, fold_of_group = grouped(points, seed)
    fold = fold_of_group[group]

    def trained(rows: NDArray[np.int64]) -> dict[str, Any]:
        training, rates = [points[i] for i in rows], y[rows]
        full, full_rates = completed(space, training, rates) if complete else (training, rates)
        data = {
            True: (matrix(columns, training), rates),
            False: (matrix(columns, full), full_rates),
        }
        return {
            kind: learner(kind, depth, leaves).fit(*data[kind in MEASURED_ONLY])
            for kind in LEARNERS
        }

    learners = trained(np.arange(len(points)))
    by_fold = [trained(np.flatnonzero(fold != k)) for k in range(int(fold.max()) + 1)]
    x = matrix(columns, points)
    log_errors: dict[str, Floats] = {}
    for kind in LEARNERS:
        predicted = np.empty(len(y))
        for number, models in enumerate(by_fold):
            predicted[fold == number] = models[kind].predict(x[fold == number])
        log_errors[kind] = np.log(predicted / y)
    # a point counts once, by the largest residual of its repetitions
    residual = np.zeros(len(fold_of_group))
    np.maximum.at(residual, group, np.abs(log_errors[chosen]))
    return BlackBoxModel(
        storage or {},
        space,
        list(points),
        y,
        chosen,
        learners,
        compared(log_errors, group),
        CrossConformal(fold_of_group, residual),
        [models[chosen] for models in by_fold],
    )


def _class(point: Point) -> str:
    """Class of a point for its interval: its operation, sequential or not, and its storage."""
    pattern = "sequential" if point.pattern == "sequential" else "skewed"
    return f"{point.operation} {pattern} {point.storage}"


def guarantee(model: BlackBoxModel, level: float = LEVEL) -> str:
    """The guarantee of the model's intervals as text."""
    exact(level)
    return model.conformal.guarantee(level)


def retrained(model: BlackBoxModel, **options: Any) -> BlackBoxModel:
    """Retrain on the same points with other options of `learnt`."""
    settings = {"chosen": model.chosen, "storage": model.storage, **options}
    again = learnt(model.space, model.points, model.throughput_bps.tolist(), **settings)
    again.overlap, again.cpu_s_per_byte = model.overlap, model.cpu_s_per_byte
    return again
