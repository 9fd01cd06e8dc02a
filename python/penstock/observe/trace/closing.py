"""The closing sentence: where the time of reads and writes went, and what to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.analyse.words import duration, percent, size

_CACHED_NS = 20_000  # below this mean a call did not wait for a device
_LITTLE = 0.05

_ADVICE = {
    ("read", "random"): "order the accesses, cluster the data, or give it a lower-latency disk",
    ("read", "hot-set"): "give it memory for its hot blocks",
    ("read", "irregular"): "order the accesses, or give it a lower-latency disk",
    ("read", "mixed"): "look at its phases one by one",
    ("read", "strided"): "store together what is read together",
    ("read", "reverse"): "read forward: the kernel reads ahead only that way",
    ("write", "random"): "batch the writes, or write them as a log",
}


def closing_sentence(
    rows: list[dict[str, Any]],
    paths: Mapping[int, str | None],
    wall_ns: int,
    lost: int = 0,
    by_device: Mapping[tuple[int, str], float] | None = None,
) -> str:
    """One sentence a person can act on, from the verdicts' rows and the run's wall time [ns].

    Rows of direction `sync` (flushes; without a verdict) count as time too. `by_device` gives, where layers
    were watched, the share of a file's and direction's calls that had to wait for the device.
    """
    warning = f" {lost} events were lost: shares and verdicts are of the others." if lost else ""
    total_ns = sum(row["time_ns"] for row in rows)
    if not rows or total_ns == 0:
        return "It neither read nor wrote regular files." + warning
    top = max(rows, key=lambda row: row["time_ns"])
    direction = top["direction"]
    if direction == "sync":
        return _of_flushes(top, paths, total_ns / max(wall_ns, 1)) + warning
    verdict = top["together"]
    same_way_ns = sum(row["time_ns"] for row in rows if row["direction"] == direction)
    mean_ns = top["time_ns"] / max(top["calls"], 1)
    share = 100 * top["time_ns"] / same_way_ns
    what = f"{size(verdict['median_size_bytes'])} {verdict['class']} {direction}s"
    if verdict["k"]:
        what = what.replace("interleaved", f"interleaved ({verdict['k']} streams)")
    where = paths.get(top["file_id"]) or f"file {top['file_id']}"
    said = f"{share:.0f} % of {direction} time: {what} on {where}"
    waited = (by_device or {}).get((top["file_id"], direction))
    if waited is not None and mean_ns >= _CACHED_NS:
        said += f" ({percent(waited)} of them from the device)"
    said += f", {duration(mean_ns)} each, {percent(total_ns / max(wall_ns, 1))} of the run"
    if total_ns < _LITTLE * wall_ns:
        return f"{said}; storage is not what it waits for.{warning}"
    if mean_ns < _CACHED_NS:
        why = "the page cache serves them: fewer, larger calls would help, not a faster disk"
        return f"{said}; {why}.{warning}"
    advice = _ADVICE.get((direction, verdict["class"]))
    if advice is None and verdict["median_size_bytes"] < 65536:
        advice = f"ask for more per call than {size(verdict['median_size_bytes'])}"
    elif advice is None:
        advice = "the order is good: only more bandwidth makes it faster"
    return f"{said}; {advice}.{warning}"


def _of_flushes(row: Mapping[str, Any], paths: Mapping[int, str | None], share: float) -> str:
    where = paths.get(row["file_id"]) or f"file {row['file_id']}"
    mean_ns = row["time_ns"] / max(row["calls"], 1)
    said = f"Most time goes to {row['calls']:,} flushes of {where}, {duration(mean_ns)} each"
    if share < _LITTLE:
        return f"{said}, {percent(share)} of the run; storage is not what it waits for."
    said += f"; calls on files take {percent(share)} of the run"
    return (
        f"{said}; commit in groups, or put this file on a device whose cache outlives a power cut."
    )
