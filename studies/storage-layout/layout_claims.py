"""Claims of the studies of storage layout, and their figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from steps import Interval, Step, by_replicate, mean_interval, rank_correlation, ratio_interval

from studies.claims import Claim, Finding, Result, claim, met_if, valid_runs

#: smallest gain on each disk, and the published one (20 GB: 1341 s to 108 s; 89 s to 32 s)
GAIN = {"hard-disk": (5.0, 1341 / 108), "flash": (1.5, 89 / 32)}
STEPS = ("scan-loaded", "rewrite", "scan-rewritten")
#: step, pattern of its reads, published pattern
PATTERNS = (
    ("scan-loaded", "random", "random (figures 4.7, 4.8-a, 4.9-a)"),
    ("scan-rewritten", "consecutive", "a diagonal (figure 4.9-b)"),
)
CORRELATION = 0.9


def disks_of(valid_steps: Sequence[Step]) -> list[str]:
    """Levels of `disk`, hard disk first."""
    return sorted({s.levels["disk"] for s in valid_steps}, key=lambda d: list(GAIN).index(d))


def gain(valid_steps: list[Step], disk: str) -> Interval:
    """Ratio of the scan's time before the rewriting to that after it, replicate by replicate."""
    before = by_replicate(valid_steps, disk=disk, step="scan-loaded")
    after = by_replicate(valid_steps, disk=disk, step="scan-rewritten")
    replicates = sorted(before.keys() & after.keys())
    return ratio_interval(
        (before[r].time_s for r in replicates), (after[r].time_s for r in replicates)
    )


def break_even(valid_steps: list[Step], disk: str) -> Interval:
    """Number of scans after which rewriting has paid off: its time over the time that each scan saves."""
    before = by_replicate(valid_steps, disk=disk, step="scan-loaded")
    after = by_replicate(valid_steps, disk=disk, step="scan-rewritten")
    rewrite = by_replicate(valid_steps, disk=disk, step="rewrite")
    replicates = sorted(before.keys() & after.keys() & rewrite.keys())
    return mean_interval(
        rewrite[r].time_s / (before[r].time_s - after[r].time_s) for r in replicates
    )


def _needs(
    valid_steps: Sequence[Step], disks: Sequence[str], steps: Sequence[str]
) -> dict[str, int]:
    """Valid runs of each step on each disk."""
    treatments = [f"{disk} {step}" for disk in disks for step in steps]
    return valid_runs(treatments, (f"{s.levels['disk']} {s.levels['step']}" for s in valid_steps))


def layout_claims(system: str, valid_steps: list[Step]) -> list[Claim]:
    """Before and after the rewriting: patterns, gain, contents."""
    disks = tuple(GAIN)
    claims = [
        claim(
            system,
            f"{step} is {pattern} in every run",
            _needs(valid_steps, disks, [step]),
            lambda step=step, pattern=pattern: _patterns(valid_steps, step, pattern),
            published=published,
        )
        for step, pattern, published in PATTERNS
    ]
    for disk, (least, published_gain) in GAIN.items():
        claims.append(
            claim(
                system,
                f"{disk}: the scan is {least:g} times as fast after, or more",
                _needs(valid_steps, [disk], ["scan-loaded", "scan-rewritten"]),
                lambda disk=disk, least=least: _gain(valid_steps, disk, least),
                published=f"{published_gain:.3g}" if system == "wiredtiger" else "",
            )
        )
    needs = _needs(valid_steps, disks, STEPS)
    wording = "the contents are the same in all steps"
    return [*claims, claim(system, wording, needs, lambda: _contents(valid_steps))]


def _patterns(valid_steps: Sequence[Step], step: str, pattern: str) -> Finding:
    runs = [s for s in valid_steps if s.levels["step"] == step]
    shares = [s.consecutive_share for s in runs]
    classes = ", ".join(sorted({s.verdict for s in runs}))
    evidence = f"{classes}, consecutive {min(shares):.3f} to {max(shares):.3f}, n = {len(runs)}"
    return met_if(all(s.verdict == pattern for s in runs), evidence)


def _gain(valid_steps: list[Step], disk: str, least: float) -> Finding:
    ratio = gain(valid_steps, disk)
    if np.isnan(ratio.value):
        return Finding(Result.NOT_MEASURED, "no replicate with a valid run of both scans")
    paid = break_even(valid_steps, disk)
    evidence = str(ratio)
    if not np.isnan(paid.value):
        evidence += f"; rewriting pays after {paid} scans"
    return met_if(ratio.lowest >= least, evidence)


def _contents(valid_steps: Sequence[Step]) -> Finding:
    sums = {s.checksum for s in valid_steps if s.checksum}
    evidence = f"{len(sums)} checksum in {sum(bool(s.checksum) for s in valid_steps)} runs"
    return met_if(len(sums) == 1, evidence)


def shuffled_claims(valid_steps: list[Step], loads: Sequence[str]) -> list[Claim]:
    """Time follows the pattern over `loads` of increasing disorder."""
    return [
        claim(
            "shuffled",
            f"{disk}: rank correlation of consecutive share and time is -{CORRELATION} or beyond",
            valid_runs(
                [f"{disk} {load} %" for load in loads],
                (f"{s.levels['disk']} {s.levels['shuffled']} %" for s in valid_steps),
            ),
            lambda disk=disk: _correlation(valid_steps, disk),
            published="each shard's time follows its pattern",
        )
        for disk in GAIN
    ]


def _correlation(valid_steps: list[Step], disk: str) -> Finding:
    means = by_load(valid_steps, disk)
    rho = rank_correlation(means["consecutive_share"], means["time_s"])
    return met_if(rho <= -CORRELATION, f"{rho:.3f} over {len(means)} loads")


def by_load(valid_steps: list[Step], disk: str) -> pd.DataFrame:
    """Per share of shuffled keys: mean `time_s` with its range, mean `consecutive_share`, the verdicts."""
    rows = [
        {
            "shuffled": float(s.levels["shuffled"]),
            "time_s": s.time_s,
            "consecutive_share": s.consecutive_share,
            "verdict": s.verdict,
        }
        for s in valid_steps
        if s.levels["disk"] == disk
    ]
    groups = pd.DataFrame(rows).groupby("shuffled")
    return groups.agg(
        time_s=("time_s", "mean"),
        low_s=("time_s", "min"),
        high_s=("time_s", "max"),
        consecutive_share=("consecutive_share", "mean"),
        verdict=("verdict", lambda v: "/".join(sorted(set(v)))),
    ).reset_index()
