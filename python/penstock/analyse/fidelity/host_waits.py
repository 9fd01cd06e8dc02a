"""Late replies of a disk that its host explains, from the windows that the disk server recorded of the host.

`host_waits` records time that the host took from the server's threads: their wait for a processor, time
stolen by other machines, late wake-ups of a thread that shares no lock with the disks. Time in which some
task of the host waited (PSI) is no explanation, since the run's own tasks wait as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.analyse.fidelity.fidelity_log import Flags, Integers, Log, is_late, union

#: span before and after a late reply that is searched for host delays: interval between counter readings [ns]
AROUND_NS = 100_000_000
#: minimum share of overdue time that the host must have taken
EXPLAINED_SHARE = 0.5

_TAKEN = ("waited_ns", "stolen_ns", "overslept_ns")


def explained(log: Log, host_waits: pa.Table | None) -> Flags:
    """The late replies around which the host took at least half of the overdue time.

    `host_waits` of the disk's run; None or an empty table explains nothing.
    """
    late = is_late(log)
    if host_waits is None or host_waits.num_rows == 0 or not late.any():
        return np.zeros_like(late)
    windows = {
        name: np.asarray(host_waits[name].to_numpy(zero_copy_only=False), np.int64)
        for name in ("t_ns", "window_ns", *_TAKEN)
    }
    ends, lengths = windows["t_ns"], windows["window_ns"]
    # counters may overlap in time: take the largest, at most the window
    taken = np.minimum(np.maximum.reduce([windows[name] for name in _TAKEN]), lengths)
    begins, overdue_until = union(log.due[late], log.done[late])
    since, until = log.due - AROUND_NS, log.done + AROUND_NS
    by_host = _within(ends - lengths, ends, taken, since, until)
    overdue = _within(begins, overdue_until, overdue_until - begins, since, until)
    return late & (by_host >= EXPLAINED_SHARE * overdue)


def _within(
    begins: Integers, ends: Integers, amounts: Integers, since: Integers, until: Integers
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Part of the amounts, each spread evenly over its interval, within the spans since…until.

    The intervals are in order and disjoint.
    """
    total = np.cumsum(amounts)
    knots = np.column_stack((begins, ends)).ravel()
    reached = np.column_stack((total - amounts, total)).ravel()
    first = int(knots[0])

    def before(at: Integers) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(np.interp(at - first, knots - first, reached), np.float64)

    return before(until) - before(since)
