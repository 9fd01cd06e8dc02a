"""Measured configurations beside their predictions: regret and Kendall's tau."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit

from penstock.analyse.treatments.rankings import kendall
from penstock.parts.prediction.exploration.describe import describe
from penstock.parts.prediction.exploration.record import candidate_id
from penstock.parts.prediction.exploration.space.space import Candidate, Space
from penstock.text import counted, percentage


@dataclass(frozen=True)
class Confirmed:
    """One configuration: predicted makespan, interval of one run, and measured makespans [s].

    The interval is None if unknown; without an upper end if only that is None. `error` is the reason why runs
    are missing. `predicted_loss` and `measured_loss` are those of the objective, the makespan without one.
    """

    candidate: Candidate
    predicted_s: float
    low_s: float | None
    high_s: float | None
    makespans_s: tuple[float, ...]
    predicted_loss: float
    measured_loss: float
    error: str = ""
    #: runs during which the host was saturated
    saturated: int = 0

    @property
    def measured_s(self) -> float | None:
        """Mean of the runs."""
        return fmean(self.makespans_s) if self.makespans_s else None

    def ends(self, level: float) -> tuple[float, float] | None:
        """Student's interval of the mean; None for fewer than two runs."""
        n = len(self.makespans_s)
        if n < 2:
            return None
        half = float(stdtrit(n - 1, (1 + level) / 2)) * stdev(self.makespans_s) / math.sqrt(n)
        return fmean(self.makespans_s) - half, fmean(self.makespans_s) + half

    @property
    def inside(self) -> bool:
        """True if the measured mean lies in the predicted interval."""
        if self.measured_s is None or self.low_s is None:
            return False
        return self.low_s <= self.measured_s <= (math.inf if self.high_s is None else self.high_s)


@dataclass(frozen=True)
class Confirmation:
    """Measured configurations, in the order of the prediction. `stopped`: some are missing."""

    rows: tuple[Confirmed, ...]
    repeat: int
    level: float
    objective: str
    stopped: bool = False

    @property
    def measured(self) -> list[Confirmed]:
        """Rows with at least one run."""
        return [row for row in self.rows if row.makespans_s]

    def covers(self, candidates: Collection[Candidate]) -> bool:
        """True if all of these were measured."""
        return {row.candidate for row in self.measured}.issuperset(candidates)

    @property
    def tau(self) -> float | None:
        """Kendall's tau-b of predicted and measured makespans; None if undefined."""
        predicted = np.array([row.predicted_s for row in self.measured])
        tau = kendall(predicted, np.array([row.measured_s for row in self.measured]))[0]
        return tau if math.isfinite(tau) else None

    @property
    def regret(self) -> float | None:
        """Loss of the configuration with the least predicted loss, over the least measured loss, less 1.

        Without an objective the loss is the makespan. None for fewer than two configurations.
        """
        if len(self.measured) < 2:
            return None
        chosen = min(self.measured, key=lambda row: row.predicted_loss)
        least = min(row.measured_loss for row in self.measured)
        return (chosen.measured_loss - least) / abs(least) if least else 0.0

    @property
    def text(self) -> str:
        """`3 configurations measured, 3 runs each; regret 2.0 %; Kendall's tau 0.33; …`."""
        count = counted(len(self.measured), "configuration")
        parts = [f"{count} measured, {counted(self.repeat, 'run')} each"]
        if self.regret is not None:
            of = "" if self.objective == "time" else f" ({self.objective})"
            parts.append(f"regret {percentage(self.regret, 1)}{of}")
        if self.tau is not None:
            parts.append(f"Kendall's tau {self.tau:.2f}".replace("-", "−"))
        bounded = [row for row in self.measured if row.low_s is not None]
        if bounded:
            inside = sum(row.inside for row in bounded)
            parts.append(f"{inside} of {len(bounded)} within the predicted interval")
        runs = sum(len(row.makespans_s) for row in self.rows)
        saturated = sum(row.saturated for row in self.rows)
        if saturated:
            parts.append(
                f"the host was saturated in {saturated} of {runs} runs, which lengthens them"
            )
        failed = sum(bool(row.error) for row in self.rows)
        parts += [f"{failed} failed"] if failed else []
        return f"{'; '.join(parts)}."

    def to_dict(self, space: Space) -> Mapping[str, object]:
        """As in `penstock/exploration/1`."""
        rows = []
        for row in self.rows:
            ends = row.ends(self.level)
            rows.append(
                {
                    "candidate_id": candidate_id(space, row.candidate),
                    "words": describe(space, row.candidate),
                    "levels": space.labels(row.candidate),
                    "predicted_s": row.predicted_s,
                    "predicted_low_s": row.low_s,
                    "predicted_high_s": row.high_s,
                    "measured_s": row.measured_s,
                    "measured_low_s": None if ends is None else ends[0],
                    "measured_high_s": None if ends is None else ends[1],
                    "makespans_s": list(row.makespans_s),
                    "saturated": row.saturated,
                    "error": row.error,
                }
            )
        return {
            "runs": self.repeat,
            "level": self.level,
            "tau": self.tau,
            "regret": self.regret,
            "stopped": self.stopped,
            "rows": rows,
        }
