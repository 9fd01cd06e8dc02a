"""Robustness of the choice to uncertain values of the platform, sampled within their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.parts.prediction.exploration.space.space import Candidate

#: draws; tolerated loss relative to the best; required share of draws within the tolerance
DRAWS, TOLERATED, ENOUGH = 19, 0.05, 0.9
#: compared configurations
RIVALS = 16


@dataclass(frozen=True)
class Robust:
    """Relative regrets of candidates, (candidates, draws)."""

    candidates: tuple[Candidate, ...]
    regrets: NDArray[np.float64]

    @property
    def draws(self) -> int:
        return int(self.regrets.shape[1])

    def share_good(self, candidate: Candidate) -> float:
        """Share of draws in which the candidate is the best within the tolerance."""
        return float((self._of(candidate) <= TOLERATED).mean())

    def mean_regret(self, candidate: Candidate) -> float:
        """Mean regret over the draws."""
        return float(self._of(candidate).mean())

    def worst_regret(self, candidate: Candidate) -> float:
        """Largest regret over the draws."""
        return float(self._of(candidate).max())

    def winners(self) -> list[Candidate]:
        """Candidates that are best in some draw, most frequent first."""
        best = self.regrets.argmin(axis=0)
        counts = np.bincount(best, minlength=len(self.candidates))
        order = np.argsort(-counts, kind="stable")
        return [self.candidates[i] for i in order if counts[i]]

    def _of(self, candidate: Candidate) -> NDArray[np.float64]:
        row: NDArray[np.float64] = self.regrets[self.candidates.index(candidate)]
        return row


def robust(candidates: Sequence[Candidate], losses: NDArray[np.float64], relative: bool) -> Robust:
    """Regrets of the candidates from their losses (candidates, draws).

    `relative`: relative to the draw's best loss; else as differences (a distance in logarithms is relative
    already).
    """
    least = losses.min(axis=0)
    scale = np.where(least != 0, np.abs(least), 1.0) if relative else np.ones_like(least)
    return Robust(tuple(candidates), (losses - least) / scale)
