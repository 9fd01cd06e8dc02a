"""Claims of the Hadoop studies, and the figure of their times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from jobs import Run
from matplotlib.figure import Figure
from settings import SETTINGS
from steps import Interval, mean_interval, ratio_interval

from penstock.report import style
from studies.claims import Claim, Finding, Result, claim, met_if, valid_runs
from studies.common.published_figures import Point, comparison_figure

#: settings from fast to slow
ORDER = ("all-fast", "all-half", "half-half", "all-quarter")
#: published times [min]
PUBLISHED = {
    "hard-disk": {
        "all-fast": 8.0,
        "one-slow": 21.1,
        "all-half": 24.3,
        "all-quarter": 84.0,
        "half-half": 51.3,
    },
    "flash": {
        "all-fast": 4.5,
        "one-slow": 19.6,
        "all-half": 20.6,
        "all-quarter": 91.0,
        "half-half": 47.0,
    },
}
#: study → storages of its factor; TeraSort's disks are flash drives
STORAGES = {"job": ("hard-disk", "flash"), "terasort": ("flash",)}
#: largest deviation from the prediction by bytes, and of one storage from the other
PREDICTED_LIMIT, STORAGE_LIMIT = 0.15, 0.10
#: setting → nodes of which one must be the straggler
STRAGGLERS = {"one-slow": {"n2"}, "half-half": {"n4", "n5", "n6"}}


def _of(runs: Iterable[Run], storage: str, setting: str) -> list[Run]:
    return [r for r in runs if (r.storage, r.setting) == (storage, setting)]


def _time(runs: list[Run], storage: str, setting: str) -> Interval:
    return mean_interval(r.time_s for r in _of(runs, storage, setting))


def _needs(runs: Iterable[Run], storages: Iterable[str], settings: Iterable[str]) -> dict[str, int]:
    """Runs of each setting on each storage."""
    treatments = [f"{storage} {setting}" for storage in storages for setting in settings]
    return valid_runs(treatments, (f"{r.storage} {r.setting}" for r in runs))


def order_claims(name: str, runs: list[Run]) -> list[Claim]:
    """Order of the times, and one checksum."""
    claims = []
    for storage in STORAGES[name]:
        for first, second in pairwise(ORDER):
            minutes = PUBLISHED[storage]
            claims.append(
                claim(
                    f"{name}, {storage}",
                    f"{first} is faster than {second}",
                    _needs(runs, [storage], [first, second]),
                    lambda storage=storage, first=first, second=second: _faster(
                        _time(runs, storage, first), _time(runs, storage, second)
                    ),
                    published=f"{minutes[first]:g} and {minutes[second]:g} min",
                    criterion="95 % intervals apart",
                    relaxed="means in this order",
                )
            )
    needs = _needs(runs, STORAGES[name], SETTINGS)
    wording = "the output is the same in all runs"
    return [*claims, claim(name, wording, needs, lambda: _one_checksum(runs))]


def _faster(first: Interval, second: Interval) -> Finding:
    evidence = f"{first}; {second} s"
    if first.value >= second.value:
        return met_if(False, evidence, relaxed=False)
    if np.isnan(first.high) or np.isnan(second.low):
        return Finding(Result.UNDECIDED, f"{evidence}, single runs", Result.MET)
    return met_if(first.high < second.low, evidence, relaxed=True)


def _one_checksum(runs: Sequence[Run]) -> Finding:
    sums = {r.checksum for r in runs}
    return met_if(len(sums) == 1, f"{len(sums)} checksum in {len(runs)} runs")


def slow_node_ratios(name: str, runs: list[Run]) -> list[tuple[str, Interval, float]]:
    """Time of one-slow over that of all-half: storage, ratio, published ratio. No goal was stated."""
    ratios = []
    for storage in STORAGES[name]:
        slow, half = _of(runs, storage, "one-slow"), _of(runs, storage, "all-half")
        first, second = _paired(slow, half)
        if first:
            published = PUBLISHED[storage]["one-slow"] / PUBLISHED[storage]["all-half"]
            ratios.append((storage, ratio_interval(first, second), published))
    return ratios


def job_claims(runs: list[Run]) -> list[Claim]:
    """Claims on the map-reduce job only: predictions, storage, stragglers."""
    claims = []
    storages = STORAGES["job"]
    for setting in SETTINGS:
        needs = _needs(runs, storages, [setting])
        setting_runs = [r for r in runs if r.setting == setting]
        flash, disk = PUBLISHED["flash"][setting], PUBLISHED["hard-disk"][setting]
        claims += [
            claim(
                "job",
                f"{setting}: time over that predicted from the disks' bytes, 0.85 to 1.15",
                needs,
                lambda setting_runs=setting_runs: _as_predicted(setting_runs),
            ),
            claim(
                "job",
                f"{setting}: hard disk over flash, 0.9 to 1.1",
                needs,
                lambda setting=setting: _alike(runs, setting),
                published=f"{disk / flash:.2f}",
            ),
        ]
        if setting in STRAGGLERS:
            nodes = STRAGGLERS[setting]
            claims.append(
                claim(
                    "job",
                    f"{setting}: the straggler is one of {', '.join(sorted(nodes))}",
                    needs,
                    lambda setting_runs=setting_runs, nodes=nodes: _straggles(setting_runs, nodes),
                )
            )
    return claims


def _as_predicted(runs: Sequence[Run]) -> Finding:
    ratios = [r.time_s / r.predicted_s for r in runs if r.predicted_s]
    if len(ratios) < len(runs):
        return Finding(Result.NOT_MEASURED, f"{len(runs) - len(ratios)} runs without a prediction")
    evidence = f"{mean_interval(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}"
    return met_if(all(abs(ratio - 1) <= PREDICTED_LIMIT for ratio in ratios), evidence)


def _alike(runs: list[Run], setting: str) -> Finding:
    first, second = _paired(_of(runs, "hard-disk", setting), _of(runs, "flash", setting))
    if not first:
        return Finding(Result.NOT_MEASURED, "no replicate with valid runs of both storages")
    ratio = ratio_interval(first, second)
    return met_if(abs(ratio.value - 1) <= STORAGE_LIMIT, str(ratio))


def _straggles(runs: Sequence[Run], nodes: set[str]) -> Finding:
    names = sorted({r.straggler for r in runs})
    return met_if(set(names) <= nodes, ", ".join(names))


def _paired(first: list[Run], second: list[Run]) -> tuple[list[float], list[float]]:
    """Times of common replicates, in one order."""
    a = {r.replicate: r.time_s for r in first}
    b = {r.replicate: r.time_s for r in second}
    replicates = sorted(a.keys() & b.keys())
    return [a[r] for r in replicates], [b[r] for r in replicates]


def planted(runs: list[Run]) -> list[Run]:
    """The planted failure: every time of half-half a third too short."""
    return [replace(r, time_s=r.time_s * 2 / 3) if r.setting == "half-half" else r for r in runs]


def ratios_figure(runs: list[Run]) -> Figure:
    """Time over that of all-fast by setting, measured (a dot per run) and published; a panel per storage."""
    panels = {}
    for storage in sorted({r.storage for r in runs}, reverse=True):
        fast = _time(runs, storage, "all-fast").value
        minutes = PUBLISHED[storage]
        panels[storage.replace("-", " ")] = [
            Point(
                setting,
                [minutes[setting] / minutes["all-fast"]],
                {"here": [r.time_s / fast for r in _of(runs, storage, setting)]},
            )
            for setting in SETTINGS
        ]
    return comparison_figure(panels, "time (times that of all-fast)", log=True)


def times_figure(runs: list[Run]) -> Figure:
    """Time by setting; a dot per run, a line for the mean, a tick for the prediction."""
    fig = style.figure(style.WIDE_INCHES, 2.8)
    axes = fig.subplots(1, 1)
    storages = sorted({r.storage for r in runs}, reverse=True)
    for i, storage in enumerate(storages):
        series = style.SERIES[i]
        for x, setting in enumerate(SETTINGS):
            setting_runs = _of(runs, storage, setting)
            if not setting_runs:
                continue
            at = x + (i - (len(storages) - 1) / 2) * 0.26
            name = storage.replace("-", " ") if x == 0 else ""
            times = [r.time_s for r in setting_runs]
            axes.bar(at, sum(times) / len(times), 0.22, color=series.colour, alpha=0.35, label=name)
            axes.plot([at] * len(times), times, series.mark, color=series.colour, ms=4)
            predicted = [r.predicted_s for r in setting_runs if r.predicted_s]
            if predicted:
                label = "predicted from bytes" if x == 0 and i == 0 else ""
                mean = sum(predicted) / len(predicted)
                axes.plot(
                    [at - 0.11, at + 0.11], [mean, mean], color=style.INK, lw=1.4, label=label
                )
    axes.set_xticks(range(len(SETTINGS)), list(SETTINGS))
    axes.set_ylabel("time of the job (s)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    style.grid(axes)
    return fig
