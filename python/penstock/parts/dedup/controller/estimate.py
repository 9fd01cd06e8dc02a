"""Running estimate of a quantity that is noisy, and that changes abruptly, slowly or not at all.

Three means follow the observations: of the last two, of the last `window`, and of a long past. The one that
predicted recent observations best is the estimate: after a step the mean of two, under noise the long one. An
observation far outside of the noise so far restarts all three.
The state of an estimate is a slice of an array of floats, because a controller has several for each stream.
"""

from __future__ import annotations

import math
from array import array

# slots of one estimate: the estimate and its standard error; observations in the window; observations in the
# long mean; that mean; number of predictions, and the mean squared errors of each of the three; then the
# window, oldest first
_MEAN, _STANDARD_ERROR, _IN_WINDOW, _IN_LONG, _LONG, _PREDICTIONS = range(6)
_ERROR_FAST, _ERROR_WINDOW, _ERROR_LONG, _HEAD = range(6, 10)
#: weight of a new squared error
_ERROR_RATE = 1 / 20
#: a faster mean must have at most this share of the squared error of a slower one
_PREFERENCE = 0.9
#: with at most this share of the long mean's squared error, the last two observations restart it
_STEP = 0.25
#: an observation restarts the means if it is this many standard deviations away, squared, and changes them
#: by a tenth at least
_OUTSIDE, _LEAST_JUMP = 25.0, 0.01
#: predictions after which the noise is known well enough for that
_NOISE_KNOWN = 3


class Estimator:
    """Rules of estimates whose states are in arrays of `size` floats from an offset.

    `window`: observations of the moving average. `adaptive`: select among three means; otherwise the
    estimate is the moving average, as published (Costa 2014, section 5.3.2). `memory`: observations of the
    long mean.
    """

    __slots__ = ("_adaptive", "_long_rate", "_most", "_window", "size")

    def __init__(self, window: int, adaptive: bool, memory: int) -> None:
        self._window, self._adaptive, self._long_rate = window, adaptive, 1 / memory
        # effective number of observations of an exponential mean (variance 1 / (2 / rate - 1))
        self._most = 2.0 * memory - 1
        self.size = _HEAD + window

    def add(self, state: array[float], at: int, value: float) -> None:
        """Add an observation."""
        n = int(state[at + _IN_WINDOW])
        head = at + _HEAD
        if n and self._adaptive and self._compare(state, at, n, value):
            n = 0
        if n == 0:
            state[head] = state[at + _LONG] = state[at + _MEAN] = value
            state[at + _IN_WINDOW] = state[at + _IN_LONG] = 1.0
            state[at + _STANDARD_ERROR] = math.sqrt(state[at + _ERROR_LONG] / 2)
            return
        if n < self._window:
            state[head + n] = value
            n += 1
            state[at + _IN_WINDOW] = n
        else:
            last = head + n - 1
            state[head:last] = state[head + 1 : last + 1]
            state[last] = value
        self._select(state, at, n)

    def _compare(self, state: array[float], at: int, n: int, value: float) -> bool:
        """Update the long mean, and the errors of all predictions; True if `value` is a step by itself."""
        head, long, seen = at + _HEAD, state[at + _LONG], state[at + _IN_LONG]
        last = state[head + n - 1]
        fast = (last + state[head + n - 2]) / 2 if n > 1 else last
        predictions = state[at + _PREDICTIONS] = state[at + _PREDICTIONS] + 1
        rate = _ERROR_RATE if predictions > 1 / _ERROR_RATE else 1 / predictions
        step = value - state[at + _MEAN]
        square = step * step
        least = min(state[at + _ERROR_FAST], state[at + _ERROR_LONG])
        error = value - fast
        state[at + _ERROR_FAST] += rate * (error * error - state[at + _ERROR_FAST])
        error = value - sum(state[head : head + n]) / n
        state[at + _ERROR_WINDOW] += rate * (error * error - state[at + _ERROR_WINDOW])
        error = value - long
        state[at + _ERROR_LONG] += rate * (error * error - state[at + _ERROR_LONG])
        if (
            predictions > _NOISE_KNOWN
            and square > _OUTSIDE * least
            and square > _LEAST_JUMP * max(value * value, long * long)
        ):
            return True
        state[at + _IN_LONG] = seen + 1
        state[at + _LONG] = long + max(1 / (seen + 1), self._long_rate) * error
        if n > 1 and state[at + _ERROR_FAST] < _STEP * state[at + _ERROR_LONG]:
            state[at + _LONG] = (value + last) / 2
            state[at + _IN_LONG] = 2.0
            state[at + _ERROR_LONG] = state[at + _ERROR_FAST]
        return False

    def _select(self, state: array[float], at: int, n: int) -> None:
        """Store the estimate and its standard error."""
        head = at + _HEAD
        mean = sum(state[head : head + n]) / n
        if not self._adaptive:
            state[at + _MEAN] = mean
            return
        error, weight = state[at + _ERROR_LONG], min(state[at + _IN_LONG], self._most)
        if state[at + _ERROR_WINDOW] < _PREFERENCE * error:
            error, weight = state[at + _ERROR_WINDOW], n
        else:
            mean = state[at + _LONG]
        if state[at + _ERROR_FAST] < _PREFERENCE * error:
            error, weight = state[at + _ERROR_FAST], 2
            mean = (state[head + n - 1] + state[head + n - 2]) / 2
        state[at + _MEAN] = mean
        # an error of prediction is that of the mean and that of the observation
        state[at + _STANDARD_ERROR] = math.sqrt(error / (weight + 1))

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
