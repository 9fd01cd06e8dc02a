"""Effect of a time scale on a result: computation is not slowed with the disk.

If computation is a share f of the run and the disk the rest, then at full speed computation is f / (f + (1
- f) / s) of it: the disk weighs less, and so do differences between disks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.why import LITTLE, MUCH, processor_share, wall_ns
from penstock.analyse.outcome import Outcome
from penstock.study.disk_speeds import scale_of
from penstock.text import duration, listed, percent, speed


def slowed(outcome: Outcome) -> Iterator[Finding]:
    """The findings on time scales; none if every disk ran at full speed."""
    speeds = outcome.speeds
    if speeds.scales in ([], [1.0]):
        return
    for text in speeds.unequal():
        yield Finding(
            "time-scales-differ",
            "warning",
            f"{text[:1].upper()}{text[1:]}.",
            {"table": "manifest"},
            "Give them one time_scale; `auto` is one for all disks that say it.",
        )
    yield _caution(outcome)


def _caution(outcome: Outcome) -> Finding:
    speeds = outcome.speeds
    speed_list = listed([speed(scale) for scale in speeds.scales])
    disks = "disks" if speeds.several or len(speeds.scales) > 1 else "disk"
    text = f"The {disks} ran at {speed_list}, the processor at full speed: "
    most = _most_computing(outcome)
    if most is None:
        text += (
            "where the program computes, the disk matters more here than it would at full speed."
        )
        return Finding("time-scale", "info", text, {"table": "manifest"}, "", _disk_time(outcome))
    text += f"the program {_computed(most.share)}"
    name = outcome.phrase(outcome.levels(most.treatment_id), " + ")
    if most.others_less and name:
        text += f" with {name} (the most)"
    evidence = {"table": "manifest", "treatment_id": most.treatment_id}
    detail = _disk_time(outcome)
    if most.share < LITTLE:
        text = f"{text}, which hardly counts."
        return Finding("time-scale", "info", text, evidence, "", detail)
    if most.share < MUCH:
        severity, text = (
            "info",
            f"{text}, so at full speed the disk matters a little less than here.",
        )
    else:
        text += ", so at full speed the disk matters less than here, and differences between disks shrink."
        severity = "warning"
    detail = " ".join(filter(None, (_at_full_speed(most), detail)))
    return Finding("time-scale", severity, text, evidence, "", detail)


def _disk_time(outcome: Outcome) -> str:
    """Shortest run as time of a real disk, and the state of the page cache at its start."""
    durations = {run_id: wall_ns(outcome, run_id) for run_id in outcome.run_ids}
    shortest = min((d for d in durations.values() if d > 0), default=0.0)
    scale = max(outcome.speeds.scales)
    if not shortest or scale <= 1:
        return ""
    text = f"A run of {duration(shortest)} is {duration(shortest / scale)} of a real disk's time"
    settle = outcome.study.get("settle")
    settle = settle if isinstance(settle, dict) else {}
    cold = settle.get("drop_caches", True) and "resident_at_least" not in settle
    return f"{text}{', and begins without its data in the page cache' if cold else ''}."


def _computed(share: float) -> str:
    if share > 1.2:
        return f"used {share:.1f} processors"
    return f"computed for {percent(min(share, 1.0))} of the run"


@dataclass(frozen=True)
class _Computing:
    """A treatment with slowed disks: mean share of processor time in its runs, largest time scale, and
    whether other treatments compute less."""

    treatment_id: str
    share: float
    time_scale: float
    others_less: bool


def _at_full_speed(most: _Computing) -> str:
    if most.share >= 1:
        return ""
    at_full = most.share / (most.share + (1 - most.share) / most.time_scale)
    of_run = percent(at_full)
    return f"If all the rest of the time is the disk's, at full speed computing is {of_run} of the run."


def _most_computing(outcome: Outcome) -> _Computing | None:
    """The treatment with slowed disks that computes most; None if no run recorded it."""
    shares: dict[str, list[float]] = {}
    scales: dict[str, float] = {}
    runs = outcome.measured
    for row in runs[["run_id", "treatment_id"]].astype(str).to_dict("records") if len(runs) else []:
        disks = outcome.manifest(row["run_id"]).get("disks")
        every = disks.values() if isinstance(disks, dict) else ()
        slowest = max((scale_of(disk) or 1.0 for disk in every), default=1.0)
        share = processor_share(outcome, row["run_id"])
        if slowest != 1 and share is not None:
            shares.setdefault(row["treatment_id"], []).append(share)
            scales[row["treatment_id"]] = slowest
    if not shares:
        return None
    means = {treatment: sum(each) / len(each) for treatment, each in shares.items()}
    most = max(means, key=lambda treatment: means[treatment])
    alike = max(means.values()) - min(means.values()) < LITTLE
    return _Computing(most, means[most], scales[most], not alike)
