"""Predictions by the queue network: duration and cost of a workload on a platform."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from penstock.analyse.statistics.calibration import Pair, calibrated, predictions_of
from penstock.analyse.statistics.prediction_intervals import (
    DRAWS,
    LEVEL,
    Interval,
    half_share,
    least_draws,
    order_statistics,
)
from penstock.errors import PenstockError
from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import (
    Prediction,
    Row,
    find_bottleneck,
    mean_numbers,
    mean_rows,
    ranked_stations,
)
from penstock.parts.prediction.queue_network import explain
from penstock.parts.prediction.queue_network.applies import Applies, Reason, judge
from penstock.parts.prediction.queue_network.conditions import conditions, stored
from penstock.parts.prediction.queue_network.cost import run_cost
from penstock.parts.prediction.queue_network.energy import run_energy
from penstock.parts.prediction.queue_network.idle import idle_hosts
from penstock.parts.prediction.queue_network.simulate import TIMES, Simulator, makespan
from penstock.parts.prediction.queue_network.uncertainty import Drawn, sampled, uncertain_values
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.draws import of_draw
from penstock.platform.hosts import Platform

#: runs at the platform's own values if its uncertainty has separate draws
NOMINAL = 9
#: stations in a bulk prediction
KEPT = 8


def predict(
    workload: Workload,
    platform: Platform,
    *,
    seeds: int | Sequence[int] = DRAWS,
    level: float = LEVEL,
    detail: bool = False,
    explained: bool | None = None,
    threads: int = 0,
    pairs: Sequence[Pair] = (),
    own_calibration: bool = False,
    done: Callable[[int], None] | None = None,
    placement: str | None = None,
) -> Prediction:
    """Predict the workload on the platform, with an interval for one single run.

    `seeds` is the number of simulated runs, or their seeds. If the platform has estimates or assumptions,
    each run of the interval has a platform sampled from them, and further runs at the platform's own values
    give the prediction itself. `pairs` calibrate the interval. With `detail` one run's tasks are stored; with
    `explained` (default: as `detail`) sensitivity, what to measure next and the frequencies are simulated
    too. `done` is called after every simulation. `placement` has the locations of files (`Simulator`). Raises
    BadInput for inputs that the simulator refuses, PenstockError naming the host if the run cannot end (a
    store that fills up).
    """
    started = time.perf_counter()
    listed = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    simulator = Simulator(workload, threads, done, placement)
    network = platform.lower()
    uncertain = [v.path for v in uncertain_values(platform)]
    own_seeds = listed[:NOMINAL] if uncertain else listed
    outcomes = simulator.runs(network, own_seeds)
    placed = None if placement is None else _placed(workload, placement)
    failed = [o for o in outcomes if o.get("error")]
    if failed:
        reason = _failure(failed[0], network)
        raise PenstockError(f"{workload.name} cannot end on {platform.name}: {reason}")
    sources = ["random seeds, launch overhead and stagger"]
    draws, drawn = [(list(range(len(outcomes))), platform)], outcomes
    if uncertain:
        draws = sampled(platform, len(listed))
        fields = (*TIMES, "stages", *(["hosts"] if platform.power else []))
        drawn = simulator.drawn(draws, listed, fields)
        word = "value" if len(uncertain) == 1 else "values"
        sources.append(f"{len(uncertain)} uncertain {word} of the platform")
    makespans = [makespan(o) for o in drawn]
    simulated = order_statistics(makespans, level, tuple(sources))
    prediction = summarise(
        workload, platform, network, outcomes, own_seeds, simulated, pairs, own_calibration
    )
    prediction = replace(prediction, applies=_with_failing(prediction.applies, makespans))
    prediction = _with_intervals(prediction, draws, drawn, simulated)
    if detail:
        prediction = _with_tasks(prediction, simulator, network, outcomes, own_seeds)
    if detail if explained is None else explained:
        rows = explain.sensitivity(simulator, platform, own_seeds, outcomes)
        following = explain.next_measurement(simulator, platform, rows, makespans, listed, level)
        if not uncertain:
            following = following | {"why": "the platform names no value as assumed or estimated"}
        states = explain.frequencies(simulator, platform, own_seeds)
        prediction = replace(
            prediction, sensitivity=rows, measure_next=following, frequencies=states
        )
    return replace(
        prediction,
        placement=placed,
        events=simulator.events,
        simulations=simulator.simulations,
        wall_s=time.perf_counter() - started,
    )


def predict_many(
    workload: Workload,
    platforms: Iterable[Platform],
    seeds: int | Sequence[int] = 3,
    *,
    level: float = LEVEL,
    threads: int = 0,
    done: Callable[[int], None] | None = None,
) -> list[Prediction]:
    """One prediction per platform, at its own values, without detail: for bulk comparisons.

    A run that cannot end gives a prediction with `error`, an infinite makespan and the verdict `outside`.
    `wall_s` is each one's share of the total.
    """
    started = time.perf_counter()
    listed = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    simulator = Simulator(workload, threads, done)
    platform_list = list(platforms)
    networks: list[Row] = []

    def lowered() -> Iterable[Row]:
        for platform in platform_list:
            networks.append(platform.lower())
            yield networks[-1]

    predictions = []
    for i, outcomes in enumerate(simulator.many(lowered(), listed)):
        interval = order_statistics(
            [makespan(o) for o in outcomes], level, ("random seeds, launch overhead and stagger",)
        )
        prediction = summarise(workload, platform_list[i], networks[i], outcomes, listed, interval)
        networks[i] = {}
        predictions.append(replace(prediction, stations=prediction.stations[:KEPT], hosts=[]))
    each_s = (time.perf_counter() - started) / max(1, len(predictions))
    return [replace(p, wall_s=each_s) for p in predictions]


def summarise(
    workload: Workload,
    platform: Platform,
    network: Row,
    outcomes: Sequence[Row],
    seeds: Sequence[int],
    interval: Interval,
    pairs: Sequence[Pair] = (),
    own_calibration: bool = False,
) -> Prediction:
    """A prediction from the outcomes at the platform's own values and a given interval."""
    time_s = fmean(makespan(o) for o in outcomes)
    stations = ranked_stations(outcomes)
    stages = mean_rows([o["stages"] for o in outcomes])
    hosts = mean_rows([o["hosts"] for o in outcomes])
    error = next((o["error"] for o in outcomes if o.get("error")), None)
    measured = calibrated(interval, time_s, pairs) if math.isfinite(time_s) else interval
    inputs = conditions(
        workload,
        platform,
        network,
        stations,
        stages,
        hosts,
        error=error,
        pairs=len(pairs),
        predictions=predictions_of(pairs),
        half_width=half_share(measured, time_s),
        own_calibration=own_calibration,
        level=interval.level,
        draws=0 if interval.width == 0 and interval.draws > 1 else interval.draws,
        least_draws=least_draws(interval.level),
    )
    energy = cost = None
    if math.isfinite(time_s):
        energy = run_energy(time_s, hosts, platform.power) if platform.power else None
        cost = run_cost(time_s, platform.price)
    return Prediction(
        workload=workload.name,
        platform=platform.name,
        makespan_s=time_s,
        interval=measured,
        stages=stages,
        stations=stations,
        bottleneck=find_bottleneck(stations),
        hosts=hosts,
        bytes=mean_numbers([o["bytes"] for o in outcomes]),
        operations=_operations(outcomes),
        energy=energy,
        cost=cost,
        applies=judge(inputs),
        events=sum(int(o["events"]) for o in outcomes),
        requests=fmean(float(o["requests"]) for o in outcomes),
        simulations=len(outcomes),
        wall_s=0.0,
        seeds=list(seeds),
        error=error,
        idle=idle_hosts(platform, hosts) if error is None else None,
    )


def _placed(workload: Workload, placement: str) -> Row:
    """Number of the workload's files in an accepted placement."""
    names = {o.file for task in workload.tasks for o in task.operations if o.file is not None}
    names |= {file.name for file in workload.files}
    return {"files": len(json.loads(placement)), "of": len(names)}


def _failure(outcome: Row, network: Row) -> str:
    """Error that ended the run, with the fullest host if space ran out."""
    error = outcome["error"]
    message = str(error.get("message") or error["kind"])
    room = stored(network, outcome["hosts"])
    if error["kind"] != "full" or not room:
        return message
    host = max(room, key=lambda name: room[name][0] / room[name][1])
    used, most = room[host]
    return (
        f"{message}; the fullest is {host}, with {quantities.size(used)} of {quantities.size(most)}"
    )


def _operations(outcomes: Sequence[Row]) -> dict[str, Row]:
    names = dict.fromkeys(name for o in outcomes for name in o["operations"])
    means = {}
    for name in names:
        rows = [
            [{"name": name} | o["operations"][name]] for o in outcomes if name in o["operations"]
        ]
        means[name] = {k: v for k, v in mean_rows(rows)[0].items() if k != "name"}
    return means


def _with_intervals(
    prediction: Prediction,
    draws: Sequence[Drawn],
    outcomes: Sequence[Row],
    simulated: Interval,
) -> Prediction:
    """Energy, cost and ends of stages with intervals from the same runs as the makespan's."""

    def of(values: Sequence[float]) -> Interval:
        return order_statistics(values, simulated.level, simulated.sources)

    energies, costs = [math.inf] * len(outcomes), [math.inf] * len(outcomes)
    for rows, platform in draws:
        powers, prices = platform.power, platform.price
        for draw, i in enumerate(rows):
            time_s = makespan(outcomes[i])
            if powers and math.isfinite(time_s):
                of_hosts = outcomes[i]["hosts"]
                energies[i] = run_energy(time_s, of_hosts, of_draw(powers, draw)).total_j
            cost = run_cost(time_s, of_draw(prices, draw)) if math.isfinite(time_s) else None
            costs[i] = math.inf if cost is None else cost.amount
    ended = [{s["name"]: s for s in o["stages"]} if not o.get("error") else {} for o in outcomes]
    stages = []
    for stage in prediction.stages:
        ends = of(
            [s[stage["name"]]["end_s"] if stage["name"] in s else math.inf for s in ended]
        ).ends()
        lasts = of(
            [_lasts(s[stage["name"]]) if stage["name"] in s else math.inf for s in ended]
        ).ends()
        stages.append(
            stage
            | {"end_low_s": ends["low"], "end_high_s": ends["high"]}
            | {"lasts_low_s": lasts["low"], "lasts_high_s": lasts["high"]}
        )
    return replace(
        prediction,
        stages=stages,
        energy=None
        if prediction.energy is None
        else replace(prediction.energy, interval=of(energies)),
        cost=None if prediction.cost is None else replace(prediction.cost, interval=of(costs)),
    )


def _lasts(stage: Row) -> float:
    return float(stage["end_s"]) - float(stage["start_s"])


def _with_failing(applies: Applies, draws: Sequence[float]) -> Applies:
    failing = sum(not math.isfinite(d) for d in draws)
    if not failing:
        return applies
    text = f"{failing} of {len(draws)} runs with sampled uncertain values cannot end"
    return Applies.of([*applies.reasons, Reason("may-fail", "caution", text)])


def _with_tasks(
    prediction: Prediction,
    simulator: Simulator,
    network: Row,
    outcomes: Sequence[Row],
    seeds: Sequence[int],
) -> Prediction:
    """The tasks of the run whose makespan is nearest to the prediction."""
    off = [abs(makespan(o) - prediction.makespan_s) for o in outcomes]
    seed = seeds[off.index(min(off))]
    return replace(prediction, tasks=simulator.full(network, seed)["tasks"], task_seed=seed)
