"""Dependencies among traced tasks: a reader waits for the last preceding writers of its files.

A task that reads the output of another one that ended after the task's start (a driver that starts programs
and reads their results) is split: the part before, and the part with the result. A file that is read while
another task is writing it, or before another one rewrites it, becomes a separate input, so that the workload
can run in other orders than the traced one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

_ROUNDS = 50


@dataclass
class Lineage:
    """Steps with their segment numbers, segments, and edges between them.

    `steps`: as in `Steps`, with `segment` and `aside` (the file is read as a separate input). `segments`:
    task, start_ns, end_ns, part (from 0). `edges`: pairs (waits, for) of segment numbers.
    """

    steps: pd.DataFrame
    segments: pd.DataFrame
    edges: list[tuple[int, int]]
    shared: int


def lineage(steps: pd.DataFrame, tasks: pd.DataFrame, parted: bool = False) -> Lineage:
    """Split the tasks and find the edges. Every edge goes forward in time, so there are no cycles.

    `parted`: also split a command's first process at each wait for others.
    """
    cuts: dict[int, list[int]] = {}
    if parted:
        for task, at in steps.loc[steps["parted"], ["task", "start_ns"]].to_numpy().tolist():
            cuts.setdefault(task, []).append(at)
    for _ in range(_ROUNDS):
        segments, number = _segments(steps, tasks, cuts)
        pairs = _pairs(steps, segments, number)
        late = pairs[pairs["before"] & (pairs["written_ns"] > pairs["reader_start_ns"])]
        new = late.groupby("reader")["read_ns"].min()
        if not len(new):
            break
        for segment, at in new.items():
            cuts.setdefault(int(segments["task"].iloc[int(str(segment))]), []).append(int(at))
    else:
        segments, number = _segments(steps, tasks, cuts)
        pairs = _pairs(steps, segments, number)
    good = pairs["before"] & (pairs["written_ns"] <= pairs["reader_start_ns"])
    over = pairs["behind"] & (pairs["reader_end_ns"] <= pairs["writer_start_ns"])
    # rewritten files are separate inputs: a reader waits for all writers of a file
    keys = pd.MultiIndex.from_frame(pairs[["reader", "file"]])
    over &= ~keys.isin(keys[good.to_numpy()])
    edges = {(int(r), int(w)) for r, w in pairs.loc[good, ["reader", "writer"]].to_numpy()}
    edges |= {(int(w), int(r)) for r, w in pairs.loc[over, ["reader", "writer"]].to_numpy()}
    edges |= {(i, i - 1) for i in range(1, len(segments)) if segments["part"].iloc[i] > 0}
    odd = pairs[~good & ~over]
    aside = pd.MultiIndex.from_frame(odd[["reader", "file"]].drop_duplicates())
    placed = steps.assign(segment=number)
    _without_waiting(placed, segments, pairs[good])
    own = pd.MultiIndex.from_frame(placed[["segment", "file"]])
    placed["aside"] = own.isin(aside) & (placed["write"] == 0).to_numpy()
    return Lineage(placed, segments, sorted(edges), odd["file"].nunique())


def _without_waiting(steps: pd.DataFrame, segments: pd.DataFrame, pairs: pd.DataFrame) -> None:
    """Limit the time before the first read of a split task to that since its input was written."""
    written = pairs.groupby("reader")["written_ns"].max()
    first = np.flatnonzero(~steps["segment"].duplicated().to_numpy())
    cut = segments["part"].to_numpy()[steps["segment"].to_numpy()[first]] > 0
    rows = first[cut]
    since = written.reindex(steps["segment"].iloc[rows]).to_numpy()
    most = steps["start_ns"].to_numpy()[rows] - since
    before = steps["before_ns"].to_numpy().copy()
    before[rows] = np.fmin(before[rows], most).astype(np.int64)
    steps["before_ns"] = before


def _segments(
    steps: pd.DataFrame, tasks: pd.DataFrame, cuts: dict[int, list[int]]
) -> tuple[pd.DataFrame, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Segments in order of task and time, and the segment of every step."""
    number = np.zeros(len(steps), dtype=np.int64)
    rows: list[tuple[int, int, int, int]] = []
    task = steps["task"].to_numpy()
    start = steps["start_ns"].to_numpy()
    end = steps["end_ns"].to_numpy()
    edges = np.flatnonzero(np.r_[True, task[1:] != task[:-1]])
    for low, high in zip(edges, np.r_[edges[1:], len(task)], strict=True):
        own = int(task[low])
        marks = np.unique(np.searchsorted(start[low:high], sorted(set(cuts.get(own, [])))))
        marks = np.r_[0, marks[(marks > 0) & (marks < high - low)], high - low]
        for part, (a, b) in enumerate(pairwise(marks.tolist())):
            number[low + a : low + b] = len(rows)
            begun = int(tasks["start_ns"].iloc[own]) if part == 0 else int(start[low + a])
            done = int(end[low + a : low + b].max())
            if b == high - low:
                done = max(done, int(tasks["last_ns"].iloc[own]))
            rows.append((own, begun, done, part))
    return pd.DataFrame(rows, columns=["task", "start_ns", "end_ns", "part"]), number


def _pairs(
    steps: pd.DataFrame, segments: pd.DataFrame, number: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pd.DataFrame:
    """Pairs of segments of which one reads a file that the other writes, with their order."""
    numbered = steps.assign(segment=number)
    uses = numbered.groupby(["write", "segment", "file"]).agg(
        first=("start_ns", "min"), begun=("start_ns", "max"), last=("end_ns", "max")
    )
    uses = uses.reset_index()
    reads = uses[uses["write"] == 0].drop(columns="write")
    writes = uses[uses["write"] == 1].drop(columns="write")
    pairs = reads.merge(writes, on="file", suffixes=("_r", "_w"))
    pairs = pairs[pairs["segment_r"] != pairs["segment_w"]]
    by_pair = pd.DataFrame(
        {
            "file": pairs["file"],
            "reader": pairs["segment_r"],
            "writer": pairs["segment_w"],
            "read_ns": pairs["first_r"],
            "written_ns": pairs["last_w"],
            "before": pairs["last_w"] <= pairs["first_r"],
            "behind": pairs["first_w"] >= pairs["begun_r"],
        }
    ).reset_index(drop=True)
    start, end = segments["start_ns"].to_numpy(), segments["end_ns"].to_numpy()
    by_pair["reader_start_ns"] = start[by_pair["reader"]]
    by_pair["reader_end_ns"] = end[by_pair["reader"]]
    by_pair["writer_start_ns"] = start[by_pair["writer"]]
    return by_pair
