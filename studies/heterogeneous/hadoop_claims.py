"""What the Hadoop studies must show, and whether they did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from claims import Claim
from jobs import Run
from matplotlib.figure import Figure
from settings import SETTINGS
from steps import Interval, mean_interval, ratio_interval

from penstock.report import style

#: from fast to slow
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
#: largest departure from what the bytes predict, and of one storage from the other
PREDICTED_LIMIT, STORAGE_LIMIT = 0.15, 0.10
#: setting → nodes of which one must be the straggler
STRAGGLERS = {"one-slow": {"n2"}, "half-half": {"n4", "n5", "n6"}}


def _of(found: Iterable[Run], storage: str, setting: str) -> list[Run]:
    return [r for r in found if (r.storage, r.setting) == (storage, setting)]


def _time(found: list[Run], storage: str, setting: str) -> Interval:
    return mean_interval(r.time_s for r in _of(found, storage, setting))


def order_claims(name: str, found: list[Run]) -> list[Claim]:
    """The order of the times, one-slow beside all-half, and one checksum."""
    made = []
    for storage in sorted({r.storage for r in found}):
        of = f"{name}, {storage}"
        times = [(s, _time(found, storage, s)) for s in ORDER if _of(found, storage, s)]
        for (first, a), (second, b) in pairwise(times):
            published = PUBLISHED[storage]
            words = f"{published[first]:g} and {published[second]:g} min"
            holds = a.value < b.value
            if a.high == a.high and b.low == b.low:  # both have an interval
                holds = a.high < b.low
            made.append(Claim(of, f"{first} is faster than {second}", words, f"{a}; {b} s", holds))
        if len(times) > 1:
            says = f"the means stand in this order: {', '.join(setting for setting, _ in times)}"
            ours = ", ".join(f"{mean.value:.3g}" for _, mean in times) + " s"
            in_order = all(a.value < b.value for (_, a), (_, b) in pairwise(times))
            made.append(Claim(of, says, "as published", ours, in_order))
        slow, half = _of(found, storage, "one-slow"), _of(found, storage, "all-half")
        if slow and half:
            ratio = ratio_interval(*_paired(slow, half))
            said = PUBLISHED[storage]["one-slow"] / PUBLISHED[storage]["all-half"]
            made.append(Claim(of, "one-slow over all-half", f"{said:.2f}", str(ratio), None))
    sums = {r.checksum for r in found}
    ours = f"{len(sums)} checksum in {len(found)} runs"
    holds = len(sums) == 1 if found else None
    made.append(Claim(name, "the output is the same in all runs", "", ours, holds))
    return made


def job_claims(found: list[Run]) -> list[Claim]:
    """What only the job of our own can show: predictions, storage, stragglers."""
    made = []
    for setting in SETTINGS:
        mine = [r for r in found if r.setting == setting]
        if not mine:
            continue
        ratios = [r.time_s / r.predicted_s for r in mine if r.predicted_s]
        holds = all(abs(x - 1) <= PREDICTED_LIMIT for x in ratios)
        says = f"{setting}: time over that predicted from the disks' bytes, 0.85 to 1.15"
        ours = f"{mean_interval(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}"
        made.append(Claim("job", says, "", ours, holds))
        hdd, flash = _of(found, "hard-disk", setting), _of(found, "flash", setting)
        if hdd and flash:
            ratio = ratio_interval(*_paired(hdd, flash))
            said = PUBLISHED["hard-disk"][setting] / PUBLISHED["flash"][setting]
            holds = abs(ratio.value - 1) <= STORAGE_LIMIT
            says = f"{setting}: hard disk over flash, 0.9 to 1.1"
            made.append(Claim("job", says, f"{said:.2f}", str(ratio), holds))
        if setting in STRAGGLERS:
            names = sorted({r.straggler for r in mine})
            says = f"{setting}: the straggler is one of {', '.join(sorted(STRAGGLERS[setting]))}"
            made.append(Claim("job", says, "", ", ".join(names), set(names) <= STRAGGLERS[setting]))
    return made


def _paired(first: list[Run], second: list[Run]) -> tuple[list[float], list[float]]:
    """Times of the replicates that both have, in one order."""
    a = {r.replicate: r.time_s for r in first}
    b = {r.replicate: r.time_s for r in second}
    both = sorted(a.keys() & b.keys())
    return [a[r] for r in both], [b[r] for r in both]


def planted(found: list[Run]) -> list[Run]:
    """The same with every time of half-half a third too short."""
    return [replace(r, time_s=r.time_s * 2 / 3) if r.setting == "half-half" else r for r in found]


def times_figure(found: list[Run]) -> Figure:
    """Time by setting; a dot per run, a line for its mean, a tick for what is predicted."""
    fig = style.figure(style.WIDE_INCHES, 2.8)
    axes = fig.subplots(1, 1)
    storages = sorted({r.storage for r in found}, reverse=True)
    for i, storage in enumerate(storages):
        series = style.SERIES[i]
        for x, setting in enumerate(SETTINGS):
            mine = _of(found, storage, setting)
            if not mine:
                continue
            at = x + (i - (len(storages) - 1) / 2) * 0.26
            name = storage.replace("-", " ") if x == 0 else ""
            times = [r.time_s for r in mine]
            axes.bar(at, sum(times) / len(times), 0.22, color=series.colour, alpha=0.35, label=name)
            axes.plot([at] * len(times), times, series.mark, color=series.colour, ms=4)
            predicted = [r.predicted_s for r in mine if r.predicted_s]
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
