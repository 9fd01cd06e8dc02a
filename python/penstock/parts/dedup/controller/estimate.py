"""Running estimate of a quantity that is noisy, and that changes abruptly, slowly or not at all.

Three means follow the observations: of the last two, of the last `window`, and of a long past. The one that
predicted recent observations best is the estimate: after a step the mean of two, under noise the long one. An
observation far outside of the noise so far restarts all three.
The state of an estimate is a slice of an array of floats, because a controller has several for each stream.
"""

from __future__ import annotations

import math
from array import array

# slots of one estimate: the estimate and its standard error; observations in the window, their sum, the place
# of the next one; the latest observation and the mean of the latest two; the long mean and its observations;
# number of predictions, and the mean squared errors of each of the three; then the window
_MEAN, _STANDARD_ERROR, _IN_WINDOW, _SUM, _NEXT, _LAST, _FAST, _LONG, _IN_LONG = range(9)
_PREDICTIONS, _ERROR_FAST, _ERROR_WINDOW, _ERROR_LONG, _HEAD = range(9, 14)
#: weight of a new squared error
_ERROR_RATE = 1 / 20
#: a faster mean must have at most this share of the squared error of a slower one
_PREFERENCE = 0.9
#: squared errors of the long mean, over the variance of single observations, that this variance explains
_EXPLAINED = 1.5
#: with at most this share of the long mean's squared error, the last two observations restart it
_STEP = 0.25
#: an observation restarts the means if it is this many standard deviations away, squared, and changes them
#: by a tenth at least
_OUTSIDE, _LEAST_JUMP = 25.0, 0.01
#: predictions after which the noise is measured well enough for that
_ENOUGH = 3


class Estimator:
    """Rules of estimates whose states are in arrays of `size` floats from an offset.

    `window`: observations of the moving average. `adaptive`: select among three means; otherwise the
    estimate is the moving average, as published (Costa 2014, section 5.3.2). `memory`: observations of the
    long mean.
    """

    __slots__ = ("_long_rate", "_most", "_window", "adaptive", "size")

    def __init__(self, window: int, adaptive: bool, memory: int) -> None:
        self._window, self.adaptive, self._long_rate = window, adaptive, 1 / memory
        # effective number of observations of an exponential mean (variance 1 / (2 / rate - 1))
        self._most = 2.0 * memory - 1
        self.size = _HEAD + window

    def add(self, state: array[float], at: int, value: float, variance: float = 0.0) -> None:
        """Add an observation; `variance` is that of its own error, as of a sample."""
        n = state[at + _IN_WINDOW]
        if n == 0 or (self.adaptive and self._compare(state, at, n, value, variance)):
            self._restart(state, at, value, variance)
            return
        place = int(state[at + _NEXT])
        if n < self._window:
            n = state[at + _IN_WINDOW] = n + 1
            total = state[at + _SUM] + value
        else:
            total = state[at + _SUM] + value - state[at + _HEAD + place]
        state[at + _SUM] = total
        state[at + _HEAD + place] = value
        state[at + _NEXT] = place + 1 if place + 1 < self._window else 0
        mean = total / n
        fast = state[at + _FAST] = (value + state[at + _LAST]) / 2
        state[at + _LAST] = value
        if not self.adaptive:
            state[at + _MEAN] = mean
            return
        # the slowest mean that does not predict worse
        error, weight = state[at + _ERROR_LONG], state[at + _IN_LONG]
        by_window, by_fast = state[at + _ERROR_WINDOW], state[at + _ERROR_FAST]
        changing = error > _EXPLAINED * variance
        if changing and by_window < _PREFERENCE * error:
            error, weight = by_window, n
        else:
            mean = state[at + _LONG]
            weight = min(weight, self._most)
        if changing and by_fast < _PREFERENCE * error:
            error, weight, mean = by_fast, 2.0, fast
        state[at + _MEAN] = mean
        if error < variance:
            error = variance
        # an error of prediction is that of the mean and that of the observation
        state[at + _STANDARD_ERROR] = math.sqrt(error / (weight + 1))

    def _restart(self, state: array[float], at: int, value: float, variance: float) -> None:
        state[at + _MEAN] = state[at + _SUM] = state[at + _LAST] = value
        state[at + _FAST] = state[at + _LONG] = state[at + _HEAD] = value
        state[at + _IN_WINDOW] = state[at + _IN_LONG] = state[at + _NEXT] = 1.0
        state[at + _STANDARD_ERROR] = math.sqrt(max(state[at + _ERROR_LONG] / 2, variance))

    def _compare(
        self, state: array[float], at: int, n: float, value: float, variance: float
    ) -> bool:
        """Update the long mean, and the errors of all predictions; True if `value` is a step by itself."""
        fast, window, long = state[at + _ERROR_FAST], state[at + _ERROR_WINDOW], state[at + _LONG]
        predictions = state[at + _PREDICTIONS] = state[at + _PREDICTIONS] + 1
        rate = _ERROR_RATE if predictions > 1 / _ERROR_RATE else 1 / predictions
        error = value - state[at + _FAST]
        by_fast = state[at + _ERROR_FAST] = fast + rate * (error * error - fast)
        error = value - state[at + _SUM] / n
        state[at + _ERROR_WINDOW] = window + rate * (error * error - window)
        error = value - long
        before = state[at + _ERROR_LONG]
        by_long = state[at + _ERROR_LONG] = before + rate * (error * error - before)
        step = value - state[at + _MEAN]
        step *= step
        if (
            predictions > _ENOUGH
            and step > _OUTSIDE * max(min(fast, before), variance)
            and step > _LEAST_JUMP * max(value * value, long * long)
        ):
            return True
        seen = state[at + _IN_LONG] = state[at + _IN_LONG] + 1
        rate = 1 / seen
        state[at + _LONG] = long + (rate if rate > self._long_rate else self._long_rate) * error
        if by_fast < _STEP * by_long and n > 1:
            state[at + _LONG] = (value + state[at + _LAST]) / 2
            state[at + _IN_LONG] = 2.0
            state[at + _ERROR_LONG] = by_fast
        return False

    def count(self, state: array[float], at: int) -> int:
        """Observations in the window; 0 for an unknown quantity."""
        return int(state[at + _IN_WINDOW])

    def mean(self, state: array[float], at: int) -> float:
        """The estimate."""
        return state[at + _MEAN]

    def standard_error(self, state: array[float], at: int) -> float:
        """Standard error of the estimate; 0 if it is the moving average."""
        return state[at + _STANDARD_ERROR]

    def forget(self, state: array[float], at: int) -> None:
        """Discard the observations, but not the size of the errors, which tells how noisy the quantity is."""
        state[at + _IN_WINDOW] = 0.0
