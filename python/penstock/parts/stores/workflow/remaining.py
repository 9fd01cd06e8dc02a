"""Remaining time of a run, for its progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]


class TaskProgress:
    """Reports completed tasks with the remaining time, at most twice a second.

    The remaining time is that of the prediction, if there is one, corrected by the pace until now: the
    predicted time of the completed share is compared with the elapsed time. Else it is proportional to the
    remaining tasks.
    """

    def __init__(self, progress: Progress, predicted_s: float | None = None) -> None:
        self._progress = progress
        self._predicted_s = predicted_s
        self._begin: tuple[float, int] | None = None
        self._last = 0.0

    def heard(self, done: int, total: int) -> None:
        """`done` of `total` tasks are complete."""
        now = time.monotonic()
        if self._begin is None:
            self._begin = (now, max(0, done - 1))
        if done < total and now - self._last < 0.5:
            return
        self._last = now
        estimate_s = remaining_s(
            now - self._begin[0], done - self._begin[1], total - done, self._predicted_s
        )
        text = "tasks"
        if estimate_s is not None and done < total:
            text = f"tasks, {shown(estimate_s)} remain"
        self._progress(text, done, total)


def remaining_s(
    elapsed_s: float, done: int, rest: int, predicted_s: float | None = None
) -> float | None:
    """Estimate of the remaining time; None if nothing is complete and nothing predicted.

    With a prediction, a weighted mean of its remainder and of the pace; the weight of the pace is the
    completed share.
    """
    pace_s = elapsed_s / done * rest if done else None
    if predicted_s is None:
        return pace_s
    by_model_s = max(0.0, predicted_s - elapsed_s)
    if pace_s is None:
        return by_model_s
    share = done / (done + rest)
    return share * pace_s + (1 - share) * by_model_s


def shown(seconds: float) -> str:
    """A duration as text: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
