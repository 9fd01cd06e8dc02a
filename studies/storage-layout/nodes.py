"""What the runs of the Cassandra study took, and in which order its nodes read their data files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from claims import GAIN, Claim
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from steps import Interval, mean_interval, ratio_interval

from penstock.archive.bundle import Bundle
from penstock.report import style

SETTINGS = {"one-node": "one node", "half-memory": "half the memory", "two-nodes": "two nodes"}
DATA_FILES = 5
#: a data file of the indexed table
DATA = r"/documents/document-[0-9a-f]+/nb-\d+-big-Data\.db$"


@dataclass(frozen=True)
class Build:
    """One valid run: time and processor time [s], share of the time in which a disk served the data files.

    `patterns` has a row per data file: path, class, basis, requests, consecutive_share, sequential_share.
    """

    run_id: str
    disk: str
    setting: str
    replicate: int
    time_s: float
    cpu_s: float
    disk_share: float
    found: int
    patterns: pd.DataFrame


def builds(out: Path) -> tuple[list[Build], list[str]]:
    """The valid runs of the study in `out`, and the reasons for which others are left out."""
    made, left_out = [], []
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_id").to_dict("records"):
        if not row["valid"]:
            left_out.append(f"{row['disk']} {row['setting']} #{row['replicate']}: {row['reason']}")
            continue
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        stdout = (bundle.path / "stdout.txt").read_text()
        said = dict(line.split(": ", 1) for line in stdout.splitlines() if ": " in line)
        patterns = bundle.table("patterns").to_pandas()
        whole = patterns["tid"].isna() & patterns["phase_id"].isna()
        data = patterns["path"].str.contains(DATA, na=False)
        requests = bundle.table("device_requests").to_pandas()
        of_data = requests["file"].str.contains(DATA, na=False) & (requests["op"] == "read")
        by_disk = requests[of_data].groupby("disk_id", observed=True)["service_ns"].sum()
        time_s = float(row["time"])
        made.append(
            Build(
                run_id=str(row["run_id"]),
                disk=str(row["disk"]),
                setting=str(row["setting"]),
                replicate=int(row["replicate"]),
                time_s=time_s,
                cpu_s=float(row["cpu_time"]),
                disk_share=float(by_disk.max()) / 1e9 / time_s,
                found=int(said["with_seven"]),
                patterns=patterns[whole & data & (patterns["direction"] == "read")],
            )
        )
    return made, left_out


def ratio(made: Sequence[Build], disk: str, setting: str) -> Interval:
    """Time in that setting over that of one node, replicate by replicate."""
    mine = [b for b in made if b.disk == disk]
    one = {b.replicate: b.time_s for b in mine if b.setting == "one-node"}
    other = {b.replicate: b.time_s for b in mine if b.setting == setting}
    both = sorted(one.keys() & other.keys())
    return ratio_interval((other[r] for r in both), (one[r] for r in both))


def cassandra_claims(made: Sequence[Build]) -> list[Claim]:
    """Patterns, what it waits for, half the memory, two nodes."""
    claims = []
    rows = pd.concat([b.patterns for b in made])
    bases = "/".join(sorted(set(rows["basis"])))
    classes = ", ".join(f"{n} {c}" for c, n in rows["class"].value_counts().items())
    wanted = sum(DATA_FILES * (2 if b.setting == "two-nodes" else 1) for b in made)
    right = (rows["class"].isin(["consecutive", "sequential"]) & (rows["basis"] == "faults")).sum()
    ours = f"{classes} of {wanted} files in {len(made)} runs, basis {bases}"
    says = "every data file is read consecutively or sequentially, by faults"
    claims.append(_claim(says, "sequential (figure 4.10-d)", ours, int(right) == wanted))
    for disk in GAIN:
        mine = [b for b in made if b.disk == disk]
        if mine:
            claims += _of_disk(disk, mine)
    whole = {b.found for b in made if b.setting != "two-nodes"}
    says = "a query through the index finds the same rows in every build of the same data"
    claims.append(_claim(says, "", f"{sorted(whole)}", len(whole) == 1 and min(whole) > 0))
    return claims


def _of_disk(disk: str, made: Sequence[Build]) -> list[Claim]:
    claims = []
    busy, cores = max(b.disk_share for b in made), [b.cpu_s / b.time_s for b in made]
    ours = f"disk at most {busy:.0%}, cores {min(cores):.2f} to {max(cores):.2f}"
    says = f"{disk}: the disk serves the data files less than half of the time"
    # one head seeks between five files, however each is read: on the hard disk it is told, not demanded
    free = busy < 0.5 if disk == "flash" else None
    claims.append(_claim(says, "disk near 30 %, above 1.5 cores at most", ours, free))
    half = ratio(made, disk, "half-memory")
    outside = None if np.isnan(half.low) else not half.low <= 1 <= half.high
    says = f"{disk}: half the memory changes the time (ratio; the patterns stay)"
    claims.append(_claim(says, "longer", str(half), outside))
    two = ratio(made, disk, "two-nodes")
    within = None if np.isnan(two.value) else 0.45 <= two.value <= 0.60
    says = f"{disk}: two nodes take 45 to 60 % of the time of one"
    claims.append(_claim(says, "near 50 %", str(two), within))
    return claims


def _claim(says: str, published: str, ours: str, holds: bool | None) -> Claim:
    return Claim("cassandra", says, published, ours, holds)


def build_table(made: Sequence[Build]) -> list[tuple[str, ...]]:
    """Per disk and setting: time, processor time, share of the disk, least consecutive share."""
    rows = []
    for disk in GAIN:
        for setting, words in SETTINGS.items():
            mine = [b for b in made if b.setting == setting and b.disk == disk]
            if mine:
                shares = pd.concat([b.patterns for b in mine])["consecutive_share"]
                rows.append(
                    (
                        f"{disk}, {words}",
                        str(mean_interval(b.time_s for b in mine)),
                        str(mean_interval(b.cpu_s for b in mine)),
                        f"{max(b.disk_share for b in mine):.0%}",
                        f"{shares.min():.3f}",
                    )
                )
    return rows


def build_offsets(out: Path, made: Sequence[Build]) -> Figure:
    """Offset of one run's faults on data files against their number, a panel per setting, flash first."""
    fig = style.figure(style.WIDE_INCHES, 2.7)
    for axes, setting in zip(fig.subplots(1, 3, sharey=True), SETTINGS, strict=True):
        axes.set_title(SETTINGS[setting])
        mine = sorted((b for b in made if b.setting == setting), key=lambda b: b.disk)
        if not mine:
            continue
        bundle = Bundle.open(out / "runs" / mine[0].run_id)
        events = bundle.table("io_events").to_pandas()
        events = events[events["op"].astype(str) == "fault_read"]
        for series, number in zip(style.SERIES, mine[0].patterns["file_id"], strict=False):
            own = events[events["file_id"] == number].sort_values("t_ns", kind="stable")
            y = own["offset_bytes"].to_numpy(float) / 2**20
            axes.plot(np.arange(1, len(y) + 1), y, color=series.colour, lw=1, ls=series.line)
        axes.set_title(f"{SETTINGS[setting]}: {mine[0].time_s:.3g} s")
        axes.set_xlabel("number of the fault", fontsize=8)
        axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        style.grid(axes)
        axes.set_ylabel("offset in its data file (MiB)" if setting == "one-node" else "")
    return fig
