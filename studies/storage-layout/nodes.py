"""Results of the runs of the Cassandra study, and the order in which its nodes read their data files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from layout_claims import GAIN
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from steps import Interval, mean_interval, ratio_interval

from penstock.archive.bundle import Bundle
from penstock.report import style
from studies.claims import Claim, Finding, Result, claim, met_if, valid_runs

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
    found_rows: int
    patterns: pd.DataFrame


def builds(out: Path) -> tuple[list[Build], list[str]]:
    """Valid runs of the study in `out`, and the reasons why others are excluded."""
    valid, excluded = [], []
    if not (out / "runs.parquet").exists():
        return valid, ["no run"]
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_id").to_dict("records"):
        if not row["valid"]:
            excluded.append(f"{row['disk']} {row['setting']} #{row['replicate']}: {row['reason']}")
            continue
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        stdout = (bundle.path / "stdout.txt").read_text()
        output = dict(line.split(": ", 1) for line in stdout.splitlines() if ": " in line)
        patterns = bundle.table("patterns").to_pandas()
        all_threads = patterns["tid"].isna() & patterns["phase_id"].isna()
        data = patterns["path"].str.contains(DATA, na=False)
        requests = bundle.table("device_requests").to_pandas()
        of_data = requests["file"].str.contains(DATA, na=False) & (requests["op"] == "read")
        by_disk = requests[of_data].groupby("disk_id", observed=True)["service_ns"].sum()
        time_s = float(row["time"])
        valid.append(
            Build(
                run_id=str(row["run_id"]),
                disk=str(row["disk"]),
                setting=str(row["setting"]),
                replicate=int(row["replicate"]),
                time_s=time_s,
                cpu_s=float(row["cpu_time"]),
                disk_share=float(by_disk.max()) / 1e9 / time_s,
                found_rows=int(output["with_seven"]),
                patterns=patterns[all_threads & data & (patterns["direction"] == "read")],
            )
        )
    return valid, excluded


def ratio(valid_builds: Sequence[Build], disk: str, setting: str) -> Interval:
    """Ratio of the time in that setting to that of one node, replicate by replicate."""
    on_disk = [b for b in valid_builds if b.disk == disk]
    one_node = {b.replicate: b.time_s for b in on_disk if b.setting == "one-node"}
    compared = {b.replicate: b.time_s for b in on_disk if b.setting == setting}
    replicates = sorted(one_node.keys() & compared.keys())
    return ratio_interval((compared[r] for r in replicates), (one_node[r] for r in replicates))


def _needs(
    valid_builds: Sequence[Build], disks: Iterable[str], settings: Iterable[str]
) -> dict[str, int]:
    """Valid runs of each setting on each disk."""
    treatments = [f"{disk} {setting}" for disk in disks for setting in settings]
    return valid_runs(treatments, (f"{b.disk} {b.setting}" for b in valid_builds))


def cassandra_claims(valid_builds: Sequence[Build]) -> list[Claim]:
    """Patterns, use of the disk, half the memory, two nodes, results of a query."""
    claims = [
        claim(
            "cassandra",
            "every data file is read consecutively or sequentially, by faults",
            _needs(valid_builds, GAIN, SETTINGS),
            lambda: _ordered(valid_builds),
            published="sequential (figure 4.10-d)",
        )
    ]
    for disk in GAIN:
        claims += _of_disk(disk, [b for b in valid_builds if b.disk == disk])
    wording = "a query through the index finds the same rows in every build of the same data"
    needs = _needs(valid_builds, GAIN, ("one-node", "half-memory"))
    return [*claims, claim("cassandra", wording, needs, lambda: _same_rows(valid_builds))]


def _ordered(valid_builds: Sequence[Build]) -> Finding:
    rows = pd.concat([b.patterns for b in valid_builds])
    bases = "/".join(sorted(set(rows["basis"])))
    classes = ", ".join(f"{n} {c}" for c, n in rows["class"].value_counts().items())
    files = sum(DATA_FILES * (2 if b.setting == "two-nodes" else 1) for b in valid_builds)
    in_order = (
        rows["class"].isin(["consecutive", "sequential"]) & (rows["basis"] == "faults")
    ).sum()
    evidence = f"{classes} of {files} files in {len(valid_builds)} runs, basis {bases}"
    return met_if(int(in_order) == files, evidence)


def _same_rows(valid_builds: Sequence[Build]) -> Finding:
    rows = {b.found_rows for b in valid_builds if b.setting != "two-nodes"}
    return met_if(len(rows) == 1 and min(rows) > 0, f"{sorted(rows)}")


def _of_disk(disk: str, valid_builds: Sequence[Build]) -> list[Claim]:
    return [
        claim(
            "cassandra",
            f"{disk}: the disk serves the data files less than half of the time",
            _needs(valid_builds, [disk], SETTINGS),
            lambda: _waiting(valid_builds),
            published="disk near 30 %, above 1.5 cores at most",
        ),
        claim(
            "cassandra",
            f"{disk}: with half the memory the time is longer (ratio)",
            _needs(valid_builds, [disk], ("one-node", "half-memory")),
            lambda: _half_memory(valid_builds, disk),
            published="longer",
            criterion="interval above 1",
            relaxed="interval without 1",
            least=2,
        ),
        claim(
            "cassandra",
            f"{disk}: two nodes take 45 to 60 % of the time of one",
            _needs(valid_builds, [disk], ("one-node", "two-nodes")),
            lambda: _two_nodes(valid_builds, disk),
            published="near 50 %",
        ),
    ]


def _waiting(valid_builds: Sequence[Build]) -> Finding:
    busy, cores = (
        max(b.disk_share for b in valid_builds),
        [b.cpu_s / b.time_s for b in valid_builds],
    )
    return met_if(
        busy < 0.5, f"disk at most {busy:.0%}, cores {min(cores):.2f} to {max(cores):.2f}"
    )


def _half_memory(valid_builds: Sequence[Build], disk: str) -> Finding:
    half = ratio(valid_builds, disk, "half-memory")
    if np.isnan(half.low):
        return Finding(Result.NOT_MEASURED, "fewer than 2 replicates with valid runs of both")
    return met_if(half.low > 1, str(half), relaxed=not half.low <= 1 <= half.high)


def _two_nodes(valid_builds: Sequence[Build], disk: str) -> Finding:
    two = ratio(valid_builds, disk, "two-nodes")
    if np.isnan(two.value):
        return Finding(Result.NOT_MEASURED, "no replicate with valid runs of both")
    return met_if(0.45 <= two.value <= 0.60, str(two))


def build_table(valid_builds: Sequence[Build]) -> list[tuple[str, ...]]:
    """Per disk and setting: time, processor time, share of the disk, smallest consecutive share."""
    rows = []
    for disk in GAIN:
        for setting, setting_text in SETTINGS.items():
            selected = [b for b in valid_builds if b.setting == setting and b.disk == disk]
            if selected:
                shares = pd.concat([b.patterns for b in selected])["consecutive_share"]
                rows.append(
                    (
                        f"{disk}, {setting_text}",
                        str(mean_interval(b.time_s for b in selected)),
                        str(mean_interval(b.cpu_s for b in selected)),
                        f"{max(b.disk_share for b in selected):.0%}",
                        f"{shares.min():.3f}",
                    )
                )
    return rows


def build_offsets(out: Path, valid_builds: Sequence[Build]) -> Figure:
    """Offset of one run's faults on data files by their number, a panel per setting, flash first."""
    fig = style.figure(style.WIDE_INCHES, 2.7)
    for axes, setting in zip(fig.subplots(1, 3, sharey=True), SETTINGS, strict=True):
        axes.set_title(SETTINGS[setting])
        selected = sorted((b for b in valid_builds if b.setting == setting), key=lambda b: b.disk)
        if not selected:
            continue
        bundle = Bundle.open(out / "runs" / selected[0].run_id)
        events = bundle.table("io_events").to_pandas()
        events = events[events["op"].astype(str) == "fault_read"]
        for series, number in zip(style.SERIES, selected[0].patterns["file_id"], strict=False):
            own = events[events["file_id"] == number].sort_values("t_ns", kind="stable")
            y = own["offset_bytes"].to_numpy(float) / 2**20
            axes.plot(np.arange(1, len(y) + 1), y, color=series.colour, lw=1, ls=series.line)
        axes.set_title(f"{SETTINGS[setting]}: {selected[0].time_s:.3g} s")
        axes.set_xlabel("number of the fault", fontsize=8)
        axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        style.grid(axes)
        axes.set_ylabel("offset in its data file (MiB)" if setting == "one-node" else "")
    return fig
