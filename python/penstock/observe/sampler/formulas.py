"""Formulas of utilisation: shares of time and capacity from differences of counters.

Source: the kernel documentation of the counters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: states of a processor, without guest time, which is included in `user` and `nice`
STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
IDLE_STATES = ("idle", "iowait")


def cpu_percent(delta: Mapping[str, Array | float]) -> Array:
    """Share of processor time that was busy [%]: 100 x d(busy)/d(all).

    `delta` has the differences of the eight states in any one unit; all is their sum, busy is all without
    idle and iowait. NaN where no time passed.
    """
    total = np.sum([np.asarray(delta[s], dtype=float) for s in STATES], axis=0)
    idle = np.sum([np.asarray(delta[s], dtype=float) for s in IDLE_STATES], axis=0)
    return percent_of(np.asarray(total - idle), np.asarray(total))


def disk_percent(
    delta_io_ms: Array | float, delta_cpu_ticks: Array | float, hz: float, cpus: int
) -> Array:
    """Share of time a disk was busy [%]: 100 x d(iotime)/(d(cputime)/cpus), both in milliseconds.

    `delta_cpu_ticks` is summed over the processors, in ticks of 1/`hz` s. On devices that serve several
    requests at once it means busy, not saturated.
    """
    elapsed_ms = np.asarray(delta_cpu_ticks, dtype=float) * 1000.0 / hz / cpus
    return percent_of(np.asarray(delta_io_ms, dtype=float), elapsed_ms)


def disk_percent_of_time(delta_io_ms: Array | float, dt_s: Array | float) -> Array:
    """Share of time a disk was busy [%] by the clock: 100 x d(iotime)/(1000 x dt)."""
    return percent_of(np.asarray(delta_io_ms, dtype=float), 1000.0 * np.asarray(dt_s, dtype=float))


def network_percent(
    delta_sent: Array | float, delta_received: Array | float, link_bps: float, dt_s: Array | float
) -> tuple[Array, Array, Array]:
    """Use of a link [%]: both directions together (up to 200 with full duplex), out, in.

    Bytes against `link_bps`, the link's *bytes* per second, over `dt_s` seconds.
    """
    capacity = link_bps * np.asarray(dt_s, dtype=float)
    sent, received = np.asarray(delta_sent, dtype=float), np.asarray(delta_received, dtype=float)
    return (
        percent_of(sent + received, capacity),
        percent_of(sent, capacity),
        percent_of(received, capacity),
    )


def percent_of(part: Array, total: Array) -> Array:
    """A part of a total [%]; NaN where the total is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(total > 0, 100.0 * part / total, np.nan), dtype=float)
