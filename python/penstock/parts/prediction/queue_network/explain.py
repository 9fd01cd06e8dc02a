"""Explanation of a prediction: sensitivity to uncertain values, what to measure next, frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from scipy.stats import spearmanr

from penstock.analyse.statistics.prediction_intervals import order_statistics
from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import Row, mean_rows
from penstock.parts.prediction.queue_network.cost import run_cost
from penstock.parts.prediction.queue_network.energy import run_energy
from penstock.parts.prediction.queue_network.sensitivity import measure_next, sensitivity_rows
from penstock.parts.prediction.queue_network.simulate import TIMES, Simulator, makespan
from penstock.parts.prediction.queue_network.uncertainty import Drawn, sampled, uncertain_values
from penstock.platform.hosts import Platform
from penstock.platform.uncertain import amount
from penstock.spec.units import parse_frequency

#: seeds for each end of a value's range; the first ones of the prediction
SEEDS = 5
#: significance level of the rank correlation of runs and sampled values
_SIGNIFICANT = 0.05


def sensitivity(
    simulator: Simulator, platform: Platform, seeds: Sequence[int], nominal: Sequence[Row]
) -> list[Row]:
    """Rows of `sensitivity_rows`, for every estimate and assumption of the platform.

    `nominal` are outcomes at the platform's values with the same seeds. A value without influence on the
    simulation (a power, a price) has no row: the makespan does not depend on it.
    """
    values = [v for v in uncertain_values(platform) if not v.path.startswith(("power", "price"))]
    few = list(seeds[:SEEDS])
    here = fmean(makespan(o) for o in nominal[: len(few)])
    platforms = [
        platform.with_values({v.path: text}) for v in values for text in (v.low_text, v.high_text)
    ]
    unchanged = platform.lower()
    networks = [p.lower() for p in platforms]
    moved = [n != unchanged for n in networks]
    outcomes = simulator.many((n for n, m in zip(networks, moved, strict=True) if m), few, TIMES)
    base = [makespan(o) for o in nominal[: len(few)]]
    times = [[makespan(o) for o in next(outcomes)] if m else base for m in moved]
    means = [fmean(t) for t in times]
    errors = [_error_of_difference(t, base) for t in times]
    ends = list(zip(means[::2], means[1::2], strict=True))
    chance = [max(pair) for pair in zip(errors[::2], errors[1::2], strict=True)]
    return sensitivity_rows(values, here, ends, chance)


def _error_of_difference(times: Sequence[float], base: Sequence[float]) -> float:
    """Standard error of the mean paired difference; 0 with one seed, or for runs that do not end."""
    differences = [a - b for a, b in zip(times, base, strict=True)]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return 0.0
    return stdev(differences) / math.sqrt(len(differences))


def next_measurement(
    simulator: Simulator,
    platform: Platform,
    rows: Sequence[Row],
    draws: Sequence[float],
    seeds: Sequence[int],
    level: float,
) -> Row:
    """The row `measure_next`; `draws` are the makespans of the interval, one per seed."""
    by_path = {v.path: v.text for v in uncertain_values(platform)}
    drawn = sampled(platform, len(seeds)) if by_path else []

    def width_without(path: str) -> float:
        """Interval width of the same draws with this value fixed at its current one."""
        fixed = [(rows, p.with_values({path: by_path[path]})) for rows, p in drawn]
        outcomes = simulator.drawn(fixed, seeds)
        return order_statistics([makespan(o) for o in outcomes], level).width

    def related(path: str) -> bool:
        """True if the makespans of the draws correlate with the value's draws."""
        values = dict(pair for one in drawn for pair in _values(one, path))
        of_seeds = [values[i] for i in range(len(seeds))]
        return len(set(of_seeds)) > 2 and spearmanr(of_seeds, draws).pvalue < _SIGNIFICANT

    return measure_next(rows, order_statistics(draws, level).width, width_without, related)


def _values(drawn: Drawn, path: str) -> Iterator[tuple[int, float]]:
    """Index and number of each draw of a value, in the base unit."""
    rows, platform = drawn
    value = platform.value(path)
    like = amount(value)
    numbers = getattr(value, "numbers", [like.base(like.number)] * len(rows))
    return zip(rows, map(float, numbers), strict=True)


def frequencies(simulator: Simulator, platform: Platform, seeds: Sequence[int]) -> Row | None:
    """Time, energy and cost at each frequency of the platform's power states.

    None without power states. `conflict` is True if the fastest does not have the least energy.
    """
    paths = _state_paths(platform)
    if not paths:
        return None
    chosen = sorted({f for states in paths.values() for f in states}, key=parse_frequency)
    few = list(seeds[:SEEDS])
    rows: list[Row] = []
    for frequency in chosen:
        values = {path: frequency for path, states in paths.items() if frequency in states}
        there = platform.with_values(values)
        outcomes = simulator.runs(there.lower(), few)
        time_s = fmean(makespan(o) for o in outcomes)
        hosts = mean_rows([o["hosts"] for o in outcomes])
        energy = run_energy(time_s, hosts, there.power)
        cost = run_cost(time_s, there.price)
        rows.append(
            {
                "frequency": frequency,
                "makespan_s": time_s,
                "energy_j": energy.total_j if energy.hosts else None,
                "cost": None if cost is None else cost.amount,
            }
        )
    return conflict(rows)


def conflict(rows: list[Row]) -> Row:
    """Trade-off of time and energy among frequencies; rows as in `frequencies`."""
    fastest = min(rows, key=lambda r: (r["makespan_s"], r["energy_j"] or 0.0))
    with_energy = [r for r in rows if r["energy_j"] is not None]
    if not with_energy:
        return {"conflict": False, "statement": "the platform gives no power", "states": rows}
    thrifty = min(with_energy, key=lambda r: (r["energy_j"], r["makespan_s"]))
    if thrifty is fastest or fastest["energy_j"] is None:
        statement = f"{fastest['frequency']} is both the fastest and takes the least energy"
        return {"conflict": False, "statement": statement, "states": rows}
    saved = 1 - thrifty["energy_j"] / fastest["energy_j"]
    longer = thrifty["makespan_s"] / fastest["makespan_s"] - 1
    statement = (
        f"{thrifty['frequency']} takes {quantities.share(saved)} less energy and "
        f"{quantities.share(longer)} more time than {fastest['frequency']}"
    )
    return {"conflict": longer > 0, "statement": statement, "states": rows}


def _state_paths(platform: Platform) -> dict[str, list[str]]:
    """Path that selects a frequency → its options, for the platform and its groups."""
    paths = {}
    file = platform.file
    if file.power is not None and file.power.states:
        paths["power.frequency"] = [s.frequency for s in file.power.states]
    for group in file.hosts:
        if group.power is not None and group.power.states:
            path = f"hosts.{group.group}.power.frequency"
            paths[path] = [s.frequency for s in group.power.states]
    return paths
