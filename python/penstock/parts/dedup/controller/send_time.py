"""Seconds to send a byte, which changes over time and differs between configurations.

The published model has one send time. Small chunks may take longer than a plain file, though: of a store
with `fsync` per chunk, several times. One estimate follows the changes that all configurations share, in
the unit of the first configuration; a factor for each other one is the mean ratio of its times to that
estimate, from the writes after each change of configuration. A factor close to 1 counts as 1.
"""

from __future__ import annotations

from array import array

from penstock.parts.dedup.controller.estimate import Estimator

# slots of a stream
_AGE, _REMAINING, _SHARED = range(3)
# slots of a configuration
_FACTOR, _OBSERVATIONS, _CONFIGURATION = range(3)
#: observations of a factor that count; the first configuration has more, as its factor is 1 by definition
_MOST, _FIRST = 20.0, 1e9
#: deviations of a factor from 1 that may be chance
_CHANCE = 0.15


class SendTimes:
    """Rules of send times whose states are in arrays of `size` floats from `at`."""

    __slots__ = ("_adaptive", "_at", "_estimator", "_tables", "_window", "size")

    def __init__(self, estimator: Estimator, at: int, configurations: int, settling: int) -> None:
        """`settling`: observations after a change of configuration that its factor is learned from."""
        self._estimator, self._window = estimator, settling
        self._adaptive = estimator.adaptive
        self._tables = [at + _SHARED + _CONFIGURATION * i for i in range(configurations)]
        self._at = at
        self.size = _SHARED + _CONFIGURATION * configurations + estimator.size

    @property
    def _estimate(self) -> int:
        return self._at + self.size - self._estimator.size

    def add(self, state: array[float], index: int, seconds: float, changed: bool) -> None:
        """Add an observation of a configuration; `changed` if the write before had another one."""
        at, table, estimator = self._at, self._tables[index], self._estimator
        state[at + _AGE] = 0.0
        n = state[table + _OBSERVATIONS]
        if not self._adaptive or not estimator.count(state, self._estimate):
            state[table + _FACTOR], state[table + _OBSERVATIONS] = 1.0, _FIRST
        elif n < _FIRST:
            if changed:
                state[at + _REMAINING] = self._window
            if state[at + _REMAINING] > 0:
                state[at + _REMAINING] -= 1
                ratio = seconds / estimator.mean(state, self._estimate)
                n = state[table + _OBSERVATIONS] = min(n + 1, _MOST)
                state[table + _FACTOR] += (ratio - state[table + _FACTOR]) / n
                return
        estimator.add(state, self._estimate, seconds / self.factor(state, index))

    def miss(self, state: array[float]) -> None:
        """Count a write that sent nothing."""
        state[self._at + _AGE] += 1.0

    def age(self, state: array[float]) -> int:
        """Writes since the last observation: with a similarity of 100 % there is none."""
        return int(state[self._at + _AGE])

    def has_estimate(self, state: array[float]) -> bool:
        """True if there is an observation of any configuration."""
        return self._estimator.count(state, self._estimate) > 0

    def measured(self, state: array[float], index: int) -> bool:
        """True if there is an observation of this configuration."""
        return state[self._tables[index] + _OBSERVATIONS] > 0

    def shared(self, state: array[float]) -> float:
        """The shared estimate."""
        return self._estimator.mean(state, self._estimate)

    def error(self, state: array[float]) -> float:
        """Standard error of the shared estimate."""
        return self._estimator.standard_error(state, self._estimate)

    def of(self, state: array[float], index: int) -> float:
        """Seconds to send a byte in a configuration."""
        return self.shared(state) * self.factor(state, index)

    def factor(self, state: array[float], index: int) -> float:
        """Send time of a configuration over the shared estimate."""
        factor = state[self._tables[index] + _FACTOR]
        return factor if factor and abs(factor - 1) > _CHANCE else 1.0
