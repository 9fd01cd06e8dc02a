"""Predicted and measured times, and the claims on them.

A prediction of a run on a disk uses the model of that disk, which was trained without programs, and the
bytes and processor time of one run of the program on *another* disk (the next in order). It uses no program's
run on the predicted disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any

import numpy as np
from observed import Observed

from penstock.parts.prediction.black_box.model import LEVEL, BlackBoxModel
from penstock.parts.prediction.black_box.predict import task_time
from penstock.parts.prediction.black_box.programs import ProgramRun, over_programs, scores
from penstock.parts.prediction.black_box.tasks import TaskTime, accuracy
from studies.claims import Claim, Finding, claim, met_if, valid_runs

#: programs → the task of the model, and the known properties of their reads
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "grep-fixed": ("grep", {"request": 96 << 10}),
    "grep-regex": ("grep", {"request": 96 << 10}),
    "table-scan": ("table_scan", {"request": 8 << 10}),
    "word-count": ("mapreduce", {"nodes": 1, "reducers": 1}),
}
#: the published accuracy, local and distributed, and this study's goals without and with computing
PUBLISHED = {
    "grep-fixed": ("90 % / 90 %", 0.90, 0.92),
    "grep-regex": ("30 % / 40 %", 0.40, 0.85),
    "table-scan": ("60 % / 80 %", 0.80, 0.85),
    "word-count": ("31 % to 60 %", 0.60, 0.80),
}
#: predictions closer than this are not ranked
RANKED = 0.15
#: accepted deviation of a run below its lower bound
SLACK = 0.05


@dataclass(frozen=True)
class Compared:
    """One run and its predictions [s]: from the storage alone, and with computing (and its interval)."""

    run: Observed
    storage_s: float
    whole_s: float
    low_s: float
    high_s: float

    @property
    def task(self) -> TaskTime:
        """The prediction with computing."""
        ends = (self.low_s, self.high_s)
        return TaskTime(self.whole_s, *ends, "none", self.storage_s, None, None, LEVEL)

    @property
    def plain(self) -> float:
        """Accuracy of the storage alone."""
        return accuracy(self.storage_s, self.run.time_s)

    @property
    def corrected(self) -> float:
        """Accuracy with computing."""
        return accuracy(self.whole_s, self.run.time_s)


def donor(run: Observed, runs: Sequence[Observed], disks: Sequence[str]) -> Observed | None:
    """The run that determines the bytes and the processor time of a program: the first of the next disk that
    has one.
    """
    at = disks.index(run.disk)
    for disk in [*disks[at + 1 :], *disks[:at]]:
        for candidate in runs:
            if (candidate.disk, candidate.program, candidate.size) == (disk, run.program, run.size):
                return candidate
    return None


def compared(
    runs: Sequence[Observed], models: Mapping[str, BlackBoxModel], disks: Sequence[str]
) -> list[Compared]:
    """Each run with its predictions; runs of programs that ran on no other disk are omitted."""
    rows = []
    for run in runs:
        donor_run = donor(run, runs, disks)
        if donor_run is None:
            continue
        kind, properties = TASKS[run.program]
        model, arguments = models[run.disk], {**donor_run.moved, **properties}
        storage = task_time(model, kind, **arguments)
        computing = task_time(model, kind, cpu_s=donor_run.cpu_s, **arguments)
        rows.append(Compared(run, storage.time_s, computing.time_s, computing.low, computing.high))
    return rows


@dataclass(frozen=True)
class Coverage:
    """Runs of a program inside of their intervals: of storage and computing (90 %), and as calibrated by the
    other programs, at the level that these attain (None without another program)."""

    runs: int
    inside: int
    calibrated: int
    level: float | None


def coverage(rows: Sequence[Compared], program: str) -> Coverage:
    """Coverage of a program; its own runs are not used for calibration."""
    own_rows = [r for r in rows if r.run.program == program]
    other_rows = [r for r in rows if r.run.program != program]
    score_of = scores([ProgramRun(r.run.program, r.task, r.run.time_s) for r in other_rows])
    calibrated = [over_programs(r.task, score_of) for r in own_rows]
    inside = sum(r.low_s <= r.run.time_s <= r.high_s for r in own_rows)
    within_calibrated = sum(
        t.low <= r.run.time_s <= t.high for r, t in zip(own_rows, calibrated, strict=True)
    )
    level = calibrated[0].level if own_rows and score_of else None
    return Coverage(len(own_rows), int(inside), int(within_calibrated), level)


def turned(models: Mapping[str, BlackBoxModel], by: int) -> dict[str, BlackBoxModel]:
    """Each disk with the model of another one: the planted failure."""
    names = list(models)
    return {name: models[names[(i + by) % len(names)]] for i, name in enumerate(names)}


def by_disk(rows: Sequence[Compared], program: str, of: Callable[[Compared], float]) -> list[float]:
    """Mean over the runs of each disk."""
    of_program = [r for r in rows if r.run.program == program]
    return [
        fmean(of(r) for r in of_program if r.run.disk == disk)
        for disk in dict.fromkeys(r.run.disk for r in of_program)
    ]


def ranked_alike(
    rows: Sequence[Compared], program: str, of: Callable[[Compared], float]
) -> tuple[int, int]:
    """Number of pairs of disks that the prediction ranks (at one size), and number measured in that order."""
    of_program = [r for r in rows if r.run.program == program]
    pairs = agreeing = 0
    for size in {r.run.size for r in of_program}:
        at: dict[str, tuple[float, float]] = {}
        for disk in {r.run.disk for r in of_program if r.run.size == size}:
            cell_rows = [r for r in of_program if (r.run.size, r.run.disk) == (size, disk)]
            at[disk] = (
                fmean(of(r) for r in cell_rows),
                float(np.median([r.run.time_s for r in cell_rows])),
            )
        for first in at:
            for second in at:
                if at[first][0] * (1 + RANKED) < at[second][0]:
                    pairs += 1
                    agreeing += at[first][1] < at[second][1]
    return pairs, agreeing


@dataclass(frozen=True)
class Treatments:
    """Treatments of the study: its programs, disks and sizes."""

    programs: Sequence[str]
    disks: Sequence[str]
    sizes: Sequence[str]

    def valid(self, rows: Sequence[Compared], program: str) -> dict[str, int]:
        """Valid runs of a program on each disk with each size."""
        required = [f"{program} {disk} {size}" for disk in self.disks for size in self.sizes]
        runs = (f"{r.run.program} {r.run.disk} {r.run.size}" for r in rows)
        return valid_runs(required, runs)


def claims(rows: Sequence[Compared], treatments: Treatments) -> list[Claim]:
    """Accuracy, ranking, lower bound and interval of each program."""
    result: list[Claim] = []
    for program in treatments.programs:
        published, plain_gate, corrected_gate = PUBLISHED[program]
        needs = treatments.valid(rows, program)
        of_program = [r for r in rows if r.run.program == program]

        def add(
            of: str,
            wording: str,
            evaluate: Callable[[], Finding],
            published: str = "",
            program: str = program,
            needs: dict[str, int] = needs,
        ) -> None:
            full = f"{program}{wording}"
            result.append(claim(of, full, needs, evaluate, published=published))

        shape = "shape" if program == "grep-fixed" else "number"
        add(
            shape,
            f": at least {plain_gate:.0%} (published {published})",
            lambda of_program=of_program, gate=plain_gate: _accuracy(
                of_program, attrgetter("plain"), gate
            ),
            published,
        )
        add(
            "number",
            f", with computing: at least {corrected_gate:.0%}",
            lambda of_program=of_program, gate=corrected_gate: _accuracy(
                of_program, attrgetter("corrected"), gate
            ),
        )
        wording = ": disks ranked as measured"
        add(
            "shape",
            wording,
            lambda of_program=of_program: _ranking(of_program, attrgetter("storage_s")),
        )
        if program != "grep-fixed":
            bound = f": storage alone is a lower bound (within {SLACK:.0%})"
            add("shape", bound, lambda of_program=of_program: _lower_bound(of_program))
            wording += ", with computing"
            add(
                "number",
                wording,
                lambda of_program=of_program: _ranking(of_program, attrgetter("whole_s")),
            )
        inside = ": runs inside of the 90 % interval (of storage and computing)"
        add("number", inside, lambda of_program=of_program: _inside(of_program))
    return result


def _accuracy(rows: Sequence[Compared], of: Callable[[Compared], float], least: float) -> Finding:
    mean = fmean(by_disk(rows, rows[0].run.program, of))
    return met_if(mean >= least, f"{mean:.1%}")


def _ranking(rows: Sequence[Compared], of: Callable[[Compared], float]) -> Finding:
    pairs, right = ranked_alike(rows, rows[0].run.program, of)
    return met_if(right == pairs, f"{right} of {pairs}")


def _lower_bound(rows: Sequence[Compared]) -> Finding:
    highest = max(r.storage_s / r.run.time_s for r in rows)
    return met_if(highest <= 1 + SLACK, f"highest {highest:.2f} of measured")


def _inside(rows: Sequence[Compared]) -> Finding:
    inside = sum(r.low_s <= r.run.time_s <= r.high_s for r in rows)
    return met_if(inside >= 0.8 * len(rows), f"{inside} of {len(rows)}")


def best_of_others(swapped: Sequence[Sequence[Compared]]) -> float | None:
    """Accuracy of grep-fixed by the best of models of other disks; None without a run of it."""
    means = [
        fmean(by_disk(rows, "grep-fixed", lambda r: r.plain))
        for rows in swapped
        if any(r.run.program == "grep-fixed" for r in rows)
    ]
    return max(means) if means else None
