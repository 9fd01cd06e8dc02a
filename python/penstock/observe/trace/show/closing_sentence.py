"""The closing sentence: where the time of reads and writes went, and what to try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.analyse.served import Served, quick_ns
from penstock.text import FAULTS, basis_text, duration, percent, size

_LITTLE = 0.05
#: part of the time from which on devices or flushes matter
_MUCH = 0.2

_ADVICE = {
    ("read", "random"): "order the accesses, cluster the data, or give it a lower-latency disk",
    ("read", "hot-set"): "give it memory for its hot blocks",
    ("read", "irregular"): "order the accesses, or give it a lower-latency disk",
    ("read", "mixed"): "look at its phases one by one",
    ("read", "strided"): "store together what is read together",
    ("read", "reverse"): "read forward: the kernel reads ahead only that way",
    ("write", "random"): "batch the writes, or write them as a log",
}


def of_paths(
    rows: Iterable[Mapping[str, Any]], paths: Mapping[int, str | None]
) -> list[dict[str, Any]]:
    """Rows of verdicts and flushes, one per path, direction and basis; `files` is how many files it was.

    Calls, bytes, errors and time are those of all its files, the verdict that of the one with most calls.
    """
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: -row["calls"]):
        path = paths.get(row["file_id"]) or row["file_id"]
        first = made.setdefault((path, row["direction"], row.get("basis")), {**row, "files": 0})
        if first["files"]:
            for name in {"calls", "time_ns", "done_bytes", "errors"} & set(row):
                first[name] += row[name]
        first["files"] += row.get("files", 1)
    return list(made.values())


def named(row: Mapping[str, Any], path: str | None) -> str:
    """The path of a row, with how many files it was: `t.db-journal × 50 files`."""
    again = row.get("files", 1)
    return (path or f"file {row['file_id']}") + (f" × {again} files" if again > 1 else "")


def closing_sentence(
    rows: list[dict[str, Any]],
    paths: Mapping[int, str | None],
    wall_ns: int,
    lost: int = 0,
    served: Served | None = None,
    others_ns: int = 0,
    before: Mapping[int, int] | None = None,
) -> str:
    """One sentence a person can act on, from the verdicts' rows and the run's wall time [ns].

    Rows of direction `sync` (flushes; without a verdict) count as time too, `others_ns` is that of all
    other calls on files (open, unlink, …). `served` says, where layers were watched, what served the calls of
    the row with most time; `before` the bytes of files that were mapped before tracing began.
    """
    warning = _already_mapped(before or {}, paths)
    warning += f" {lost} events were lost: shares and verdicts are of the others." if lost else ""
    rows = of_paths(rows, paths)
    total_ns = sum(row["time_ns"] for row in rows)
    if (not rows or total_ns == 0) and before:
        return "No read or write of regular files was seen." + warning
    if not rows or total_ns == 0:
        return "It neither read nor wrote regular files." + warning
    top = max(rows, key=lambda row: row["time_ns"])
    direction = top["direction"]
    little = total_ns + others_ns < _LITTLE * wall_ns
    if top.get("basis") == FAULTS:
        warning = f" By {basis_text(FAULTS)}.{warning}"
    if direction == "sync":
        return _of_flushes(top, paths, total_ns, wall_ns, little) + warning
    verdict = top["together"]
    same_way_ns = sum(row["time_ns"] for row in rows if row["direction"] == direction)
    mean_ns = top["time_ns"] / max(top["calls"], 1)
    share = 100 * top["time_ns"] / same_way_ns
    what = f"{size(verdict['median_size_bytes'])} {verdict['class']} {direction}s"
    if verdict["k"]:
        what = what.replace("interleaved", f"interleaved ({verdict['k']} streams)")
    where = named(top, paths.get(top["file_id"]))
    said = f"{share:.0f} % of {direction} time: {what} on {where}"
    served = served if served is not None and served.known else None
    if served is not None and served.waiting:
        said += f" ({percent(served.waiting / served.total)} of them waited for the device)"
    said += f", {duration(mean_ns)} each, {percent(total_ns / max(wall_ns, 1))} of the run"
    if little:
        return f"{said}; storage is not what it waits for.{warning}"
    flushed_ns = sum(row["time_ns"] for row in rows if row["direction"] == "sync")
    advice = _of_memory(top, served, flushed_ns) or _ADVICE.get((direction, verdict["class"]))
    if advice is None and verdict["median_size_bytes"] < 65536:
        advice = f"ask for more per call than {size(verdict['median_size_bytes'])}"
    elif advice is None:
        advice = "the order is good: only more bandwidth makes it faster"
    said = f"{said}; {advice}"
    if flushed_ns >= _MUCH * total_ns:
        said += f"; flushes take {percent(flushed_ns / max(wall_ns, 1))} of the run"
    if others_ns >= total_ns:
        said += f"; open and other calls on names take {percent(others_ns / max(wall_ns, 1))}"
    return f"{said}.{warning}"


def already_mapped(receipt: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of files that were mapped when tracing began, of a receipt."""
    return {
        int(number): nbytes for number, nbytes in receipt.get("already_mapped_bytes", {}).items()
    }


def _already_mapped(before: Mapping[int, int], paths: Mapping[int, str | None]) -> str:
    if not before:
        return ""
    most = max(before, key=lambda number: before[number])
    others = f" and of {len(before) - 1} more files" if len(before) > 1 else ""
    return (
        f" {size(before[most])} of {paths.get(most) or f'file {most}'}{others} were already mapped "
        "when tracing began: what is done to them leaves no fault."
    )


def _of_memory(top: Mapping[str, Any], served: Served | None, flushed_ns: int) -> str | None:
    """What to do where the calls of a row do not wait for a device; None where they do."""
    nbytes = top["done_bytes"] / max(top["calls"], 1)
    small = nbytes < 65536
    fewer = "fewer, larger calls would help" if small else "reading or writing less would help"
    if flushed_ns < _MUCH * top["time_ns"]:
        fewer += ", not a faster disk"
    if served is None:
        quick = top["time_ns"] / max(top["calls"], 1) < quick_ns(nbytes)
        if top.get("basis") == "device" or not quick:
            return None
        return f"so quick that the page cache serves them, as far as that time tells: {fewer}"
    if served.waiting_ns >= _MUCH * served.total_ns:
        return None
    most = max(("cached", "ahead", "filled", "untold"), key=lambda name: served.time_ns[name])
    if most == "untold":
        return None
    why = {
        "cached": f"the page cache serves them: {fewer}",
        "ahead": f"the kernel has read ahead what they ask for: {fewer}",
        "filled": "no device was asked for most of it, as in holes of a sparse file",
    }
    return why[most]


def _of_flushes(
    row: Mapping[str, Any],
    paths: Mapping[int, str | None],
    total_ns: int,
    wall_ns: int,
    little: bool,
) -> str:
    path = paths.get(row["file_id"])
    where = "the disk" if row.get("basis") == "device" and not path else named(row, path)
    mean_ns = row["time_ns"] / max(row["calls"], 1)
    share = percent(total_ns / max(wall_ns, 1))
    part = "Most time" if 2 * row["time_ns"] >= total_ns else "The largest part of the time"
    said = f"{part} goes to {row['calls']:,} flushes of {where}, {duration(mean_ns)} each"
    if little:
        return f"{said}, {share} of the run; storage is not what it waits for."
    what = "requests" if row.get("basis") == "device" else "calls on files"
    said += f"; {what} take {share} of the run"
    return (
        f"{said}; commit in groups, or put this file on a device whose cache outlives a power cut."
    )
