"""Evaluations: in memory, and in a directory batch by batch, so that completed ones survive a crash."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.schemas import TABLES, described
from penstock.errors import BadInput
from penstock.parts.prediction.exploration.evaluate import DRAWN, Evaluator, Measure
from penstock.parts.prediction.exploration.space.space import Candidate, Space

TABLE = "evaluations"
#: approximate duration of a batch, the most that a crash loses
_BATCH_S = 1.0
_FIRST_BATCH = 16
_PARTS = "evaluations.parts"
_PLAN = "explore.json"
#: averaged columns, and their indices in a measure
_COLUMNS = tuple(
    (name, Measure._fields.index(name))
    for name in ("makespan_s", "cost", "energy_j", "hosts", "network_bytes")
)


class Record:
    """Measures by candidate and seed; new ones are evaluated in batches of about a second.

    With a directory every completed batch is a Parquet file under `evaluations.parts/`, renamed atomically;
    `close` merges them into `evaluations.parquet`.
    """

    def __init__(
        self,
        space: Space,
        evaluator: Evaluator,
        directory: Path | None = None,
        advanced: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.space = space
        self.evaluator = evaluator
        self.measures: dict[Candidate, dict[int, Measure]] = {}
        self.infeasible: dict[Candidate, str] = {}
        self.evaluated_s = 0.0
        self.evaluations = 0
        self._directory = directory
        self._advanced = advanced
        self._batch = _FIRST_BATCH
        self._part = 0

    def feasible(self, candidate: Candidate) -> bool:
        """True if the candidate can be built; counts the reasons of those that cannot."""
        if candidate in self.measures:
            return True
        if candidate in self.infeasible:
            return False
        reason = self.evaluator.reason(candidate)
        if reason is not None:
            self.infeasible[candidate] = reason
        return reason is None

    def reasons(self) -> dict[str, int]:
        """Number of infeasible candidates by reason, most frequent first."""
        return dict(Counter(self.infeasible.values()).most_common())

    def evaluate(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> None:
        """Evaluate the missing measures of these candidates (if feasible) on these seeds."""
        by_missing: dict[tuple[int, ...], list[Candidate]] = {}
        for candidate in dict.fromkeys(candidates):
            if self.feasible(candidate):
                existing = self.measures.get(candidate, {})
                missing = tuple(s for s in seeds if s not in existing)
                if missing:
                    by_missing.setdefault(missing, []).append(candidate)
        for missing, candidates_missing in by_missing.items():
            done = 0
            while done < len(candidates_missing):
                size = max(1, self._batch // len(missing))
                self._evaluate_batch(candidates_missing[done : done + size], missing)
                done += size

    def _evaluate_batch(self, batch: list[Candidate], seeds: tuple[int, ...]) -> None:
        began = time.monotonic()
        results = self.evaluator.evaluate(batch, seeds)
        took = time.monotonic() - began
        for candidate, measures in zip(batch, results, strict=True):
            existing = self.measures.setdefault(candidate, {})
            existing.update(zip(seeds, measures, strict=True))
        if self._directory is not None:
            rows = [
                (c, s, m)
                for c, ms in zip(batch, results, strict=True)
                for s, m in zip(seeds, ms, strict=True)
            ]
            self._part += 1
            part = self._directory / _PARTS / f"{self._part:06d}.parquet"
            _write(_table(self.space, rows), part)
        n = len(batch) * len(seeds)
        self.evaluated_s += took
        self.evaluations += n
        fitting = n * _BATCH_S / max(took, 1e-4)
        self._batch = max(1, round(min(fitting, 4 * self._batch)))
        self._advanced(n)

    def error(self, candidate: Candidate) -> str:
        """Error of the candidate's runs, empty if none."""
        measures = self.measures[candidate].items()
        return next((m.error for s, m in measures if m.error and s <= DRAWN), "")

    def mean(self, candidate: Candidate, seeds: Sequence[int]) -> dict[str, float]:
        """Means over these seeds, by column; NaN for missing values."""
        measured = self.measures[candidate]
        measures = [measured[seed] for seed in seeds]
        return {name: _mean([m[i] for m in measures]) for name, i in _COLUMNS}

    def values(self, candidate: Candidate, seed: int) -> dict[str, float]:
        """Columns of one measure, and the magnitudes of the axes by key."""
        m = self.measures[candidate][seed]
        return self.magnitudes(candidate) | {
            "makespan_s": m.makespan_s,
            "cost": np.nan if m.cost is None else m.cost,
            "energy_j": np.nan if m.energy_j is None else m.energy_j,
            "hosts": float(m.hosts),
            "network_bytes": float(m.network_bytes),
        }

    def magnitudes(self, candidate: Candidate) -> dict[str, float]:
        """Magnitudes of the axes by key, known before an evaluation."""
        values: dict[str, float] = {}
        for axis, level in zip(self.space.axes, self.space.levels(candidate), strict=True):
            if axis.name != "split" and level.magnitude is not None:
                values[axis.name] = level.magnitude
            elif axis.name == "split":
                values.update({key: float(v) for key, v in level.values})
        return values

    def table(self) -> pa.Table:
        """All evaluations as the table `evaluations` of docs/formats.md, in order of candidate and seed."""
        rows = [
            (c, s, m)
            for c in sorted(self.measures, key=self.space.number)
            for s, m in sorted(self.measures[c].items())
        ]
        return _table(self.space, rows)

    def open(self, plan: Mapping[str, Any], resume: bool) -> int:
        """Use the directory: a new one, or with `resume` an existing exploration.

        `plan` has the inputs of evaluations (workload, platform, space). BadInput if the directory has an
        exploration without `resume`, or another one. Returns the number of evaluations read.
        """
        if self._directory is None:
            return 0
        plan_file = self._directory / _PLAN
        if plan_file.is_file():
            if not resume:
                raise BadInput(
                    f"{self._directory} contains an exploration "
                    "already; --resume continues it, -o names another directory"
                )
            self._check_plan(plan_file, plan)
        elif resume:
            raise BadInput(f"{self._directory} has no exploration to continue (no {_PLAN})")
        elif self._directory.exists() and not self._directory.is_dir():
            raise BadInput(f"{self._directory} is a file; expected a directory for the results")
        try:
            (self._directory / _PARTS).mkdir(parents=True, exist_ok=True)
            _write_text(plan_file, json.dumps(dict(plan), indent=1) + "\n")
        except OSError as error:
            raise BadInput(f"cannot write to {self._directory}: {error.strerror}") from None
        return self._read() if resume else 0

    @staticmethod
    def _check_plan(plan_file: Path, plan: Mapping[str, Any]) -> None:
        try:
            stored = json.loads(plan_file.read_text())
        except (OSError, ValueError) as error:
            raise BadInput(f"{plan_file} cannot be read: {error}") from None
        for key, value in plan.items():
            if not isinstance(stored, dict) or stored.get(key) != value:
                raise BadInput(
                    f"{plan_file} is of another {key}; expected the same workload, platform and axes "
                    "(objective, constraints, budget and seeds may change)"
                )

    def _read(self) -> int:
        assert self._directory is not None
        parts = sorted((self._directory / _PARTS).glob("*.parquet"))
        self._part = max((int(p.stem) for p in parts), default=0)
        complete = self._directory / f"{TABLE}.parquet"
        count = 0
        for path in ([complete] if complete.is_file() else []) + parts:
            try:
                rows = pq.read_table(path).to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise BadInput(f"{path} cannot be read: {error}") from None
            for row in rows:
                candidate = self.space.candidate(int(row["candidate_id"][1:]))
                existing = self.measures.setdefault(candidate, {})
                seed = row["seed"] + (DRAWN if row["draw"] else 0)
                count += seed not in existing
                existing[seed] = Measure(**{k: row[k] for k in Measure._fields})
        return count

    def close(self) -> None:
        """Write `evaluations.parquet` and remove the parts; without evaluations, remove everything."""
        if self._directory is None:
            return
        if self.measures:
            _write(self.table(), self._directory / f"{TABLE}.parquet")
        shutil.rmtree(self._directory / _PARTS, ignore_errors=True)
        if not self.measures:
            (self._directory / _PLAN).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the directory has other files
                self._directory.rmdir()


def candidate_id(space: Space, candidate: Candidate) -> str:
    """`c000123`: the candidate's number in the space."""
    return f"c{space.number(candidate):06d}"


def _mean(values: list[Any]) -> float:
    """Mean, exact for equal values; NaN if one is missing."""
    if None in values:
        return float("nan")
    first = float(values[0])
    if len(values) == 1:
        return first
    return first if all(v == first for v in values) else float(np.mean(values))


def _table(space: Space, rows: Sequence[tuple[Candidate, int, Measure]]) -> pa.Table:
    columns: dict[str, Any] = {
        "candidate_id": [candidate_id(space, c) for c, _, _ in rows],
        "seed": [s if s <= DRAWN else s - DRAWN for _, s, _ in rows],
        "draw": [0 if s <= DRAWN else s - DRAWN for _, s, _ in rows],
        "source": ["queue"] * len(rows),
    }
    for i, name in enumerate(Measure._fields):
        columns[name] = [m[i] for _, _, m in rows]
    types = {c.name: c.arrow for c in TABLES[TABLE].columns}
    arrays = {name: pa.array(v, types.get(name)) for name, v in columns.items()}
    for k, axis in enumerate(space.axes):
        arrays[axis.name] = pa.array([axis.levels[c[k]].label for c, _, _ in rows], pa.string())
    return described(TABLE, pa.table(arrays))


def _write(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    hidden = path.with_name(f".{path.name}.partial")
    try:
        pq.write_table(table, hidden, compression="zstd")
        os.replace(hidden, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from None


def _write_text(path: Path, text: str) -> None:
    hidden = path.with_name(f".{path.name}.partial")
    hidden.write_text(text)
    os.replace(hidden, path)
