"""What the studies of storage layout must show, and whether they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from steps import Interval, Step, by_replicate, mean_interval, rank_correlation, ratio_interval

from bench import record

#: least gain on each disk, and the published one (20 GB: 1341 s to 108 s; 89 s to 32 s)
GAIN = {"hard-disk": (5.0, 1341 / 108), "flash": (1.5, 89 / 32)}
CORRELATION = 0.9
FEWEST_LOADS = 10


@dataclass(frozen=True)
class Claim:
    """A statement with what it rests on; `holds` is None where the runs cannot decide it."""

    of: str
    says: str
    published: str
    ours: str
    holds: bool | None


def kept(claims: Sequence[Claim]) -> list[record.Row]:
    """As rows of a result; what is said beside the claims has no goal."""
    return [
        record.claim(c.of, c.says, c.ours, "" if c.holds is None else c.published or "yes", c.holds)
        for c in claims
    ]


def disks_of(found: Sequence[Step]) -> list[str]:
    """Levels of `disk`, hard disk first."""
    return sorted({s.levels["disk"] for s in found}, key=lambda d: list(GAIN).index(d))


def gain(found: list[Step], disk: str) -> Interval:
    """Time of the scan before over after the rewriting, replicate by replicate."""
    before = by_replicate(found, disk=disk, step="scan-loaded")
    after = by_replicate(found, disk=disk, step="scan-rewritten")
    both = sorted(before.keys() & after.keys())
    return ratio_interval((before[r].time_s for r in both), (after[r].time_s for r in both))


def break_even(found: list[Step], disk: str) -> Interval:
    """Scans after which rewriting has paid: its time over the time that each scan saves."""
    before = by_replicate(found, disk=disk, step="scan-loaded")
    after = by_replicate(found, disk=disk, step="scan-rewritten")
    rewrite = by_replicate(found, disk=disk, step="rewrite")
    all_three = sorted(before.keys() & after.keys() & rewrite.keys())
    return mean_interval(
        rewrite[r].time_s / (before[r].time_s - after[r].time_s) for r in all_three
    )


def layout_claims(system: str, found: list[Step]) -> list[Claim]:
    """Before and after: patterns, gain, contents, break-even."""
    made = []
    for step, wanted, published in (
        ("scan-loaded", "random", "random (figures 4.7, 4.8-a, 4.9-a)"),
        ("scan-rewritten", "consecutive", "a diagonal (figure 4.9-b)"),
    ):
        mine = [s for s in found if s.levels["step"] == step]
        shares = [s.consecutive_share for s in mine]
        classes = ", ".join(sorted({s.verdict for s in mine}))
        ours = f"{classes}, consecutive {min(shares):.3f} to {max(shares):.3f}"
        holds = all(s.verdict == wanted for s in mine)
        made.append(Claim(system, f"{step} is {wanted} in every run", published, ours, holds))
    for disk in disks_of(found):
        least, published_gain = GAIN[disk]
        said = f"{published_gain:.3g}" if system == "wiredtiger" else ""
        one = gain(found, disk)
        if np.isnan(one.value):
            made.append(Claim(system, f"{disk}: the gain", said, "no pair of valid runs", None))
            continue
        says = f"{disk}: the scan is {least:g} times as fast after, or more"
        made.append(Claim(system, says, said, str(one), one.lowest >= least))
        paid = break_even(found, disk)
        says = f"{disk}: scans until rewriting has paid"
        made.append(Claim(system, says, "", str(paid), None))
    sums = {s.checksum for s in found if s.checksum}
    ours = f"{len(sums)} checksum in {sum(bool(s.checksum) for s in found)} runs"
    made.append(Claim(system, "the contents are the same in all steps", "", ours, len(sums) == 1))
    return made


def shuffled_claims(found: list[Step]) -> list[Claim]:
    """Time follows the pattern over loads of more and more disorder."""
    made = []
    for disk in disks_of(found):
        means = by_load(found, disk)
        rho = rank_correlation(means["consecutive_share"], means["time_s"])
        ours = f"{rho:.3f} over {len(means)} loads"
        holds = len(means) >= FEWEST_LOADS and rho <= -CORRELATION
        says = f"{disk}: rank correlation of consecutive share and time is -{CORRELATION} or beyond"
        published = "each shard's time follows its pattern"
        made.append(Claim("shuffled", says, published, ours, holds))
    return made


def by_load(found: list[Step], disk: str) -> pd.DataFrame:
    """Per share of shuffled keys: mean `time_s` with its range, mean `consecutive_share`, the verdicts."""
    rows = [
        {
            "shuffled": float(s.levels["shuffled"]),
            "time_s": s.time_s,
            "consecutive_share": s.consecutive_share,
            "verdict": s.verdict,
        }
        for s in found
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
