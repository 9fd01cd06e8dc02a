"""Closing sentence: the operations that took most time, and the advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.analyse.traces.many_files import SMALL_FILE_BYTES, FileSet, largest_set
from penstock.analyse.traces.served import Served, quick_ns
from penstock.text import FAULTS, basis_text, duration, of_run, percent, size

_LITTLE = 0.05
#: share of the time above which devices or flushes matter
_MUCH = 0.2
#: bytes read over size of the files: read once below the first, read repeatedly above the second
_ONCE, _AGAIN = 1.05, 2.0
_ORDERLY = {"consecutive", "sequential", "interleaved", "reverse", "strided"}

_ADVICE = {
    ("read", "random"): "order the accesses, cluster the data, or give it a lower-latency disk",
    ("read", "hot-set"): "give it memory for its hot blocks",
    ("read", "irregular"): "order the accesses, or give it a lower-latency disk",
    ("read", "mixed"): "look at its phases one by one",
    ("read", "strided"): "store together what is read together",
    ("read", "reverse"): "read forward: the kernel reads ahead only in that direction",
    ("write", "random"): "batch the writes, or write them as a log",
}


def of_paths(
    rows: Iterable[Mapping[str, Any]], paths: Mapping[int, str | None]
) -> list[dict[str, Any]]:
    """Rows of verdicts and flushes, one per path, direction and basis; `files` is the number of files.

    Calls, bytes, errors and time are those of all its files (`file_ids`), the verdict that of the one with
    most calls.
    """
    by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: -row["calls"]):
        path = paths.get(row["file_id"]) or row["file_id"]
        blank = {**row, "files": 0, "file_ids": []}
        first = by_key.setdefault((path, row["direction"], row.get("basis")), blank)
        if first["files"]:
            for name in {"calls", "time_ns", "done_bytes", "errors"} & set(row):
                first[name] += row[name]
        first["files"] += row.get("files", 1)
        first["file_ids"] += row.get("file_ids", [row["file_id"]])
    return list(by_key.values())


def named(row: Mapping[str, Any], path: str | None) -> str:
    """Path of a row, with its number of files: `t.db-journal × 50 files`."""
    again = row.get("files", 1)
    return (path or f"file {row['file_id']}") + (f" × {again} files" if again > 1 else "")


def subject(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `of_paths` for the sentence: those of equal use with most time, or the only one of them that
    matters."""

    def alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
        kind = None if row["direction"] == "sync" else row["together"]["class"]
        return row["direction"], row.get("basis"), kind

    return largest_set(rows, alike, lambda row: int(row["time_ns"]))


@dataclass(frozen=True)
class Below:
    """Layers below the calls of a sentence.

    `served`: the layers that served them. For page faults, `requests` is the number of requests that reached
    a device, `order` their class, and `nbytes` the bytes they read.
    """

    served: Served | None = None
    requests: int = 0
    order: str = ""
    nbytes: int = 0


def closing_sentence(
    rows: list[dict[str, Any]],
    paths: Mapping[int, str | None],
    wall_ns: int,
    lost: int = 0,
    *,
    below: Below | None = None,
    others_ns: int = 0,
    before: Mapping[int, int] | None = None,
    sizes: Mapping[int, int] | None = None,
) -> str:
    """One sentence with advice, from the verdicts' rows and the run's wall time [ns].

    Rows of direction `sync` (flushes; without a verdict) count as time too, `others_ns` is that of all other
    calls on files (open, unlink, …). `below`, if layers were traced, has those that served the calls of
    `subject(rows)`; `before` the bytes of files that were mapped before tracing started. `sizes` [bytes] are
    those of the files.
    """
    warning = _already_mapped(before or {}, paths)
    warning += f" {lost} events were lost: shares and verdicts are of the others." if lost else ""
    rows = of_paths(rows, paths)
    total_ns = sum(row["time_ns"] for row in rows)
    if (not rows or total_ns == 0) and before:
        return "No read or write of regular files was seen." + warning
    if not rows or total_ns == 0:
        return "It neither read nor wrote regular files." + warning
    subjects = subject(rows)
    direction = subjects[0]["direction"]
    little = total_ns + others_ns < _LITTLE * wall_ns
    below = below or Below()
    if below.served and not below.served.sufficient:
        below = replace(below, served=None)
    if subjects[0].get("basis") == FAULTS:
        warning = f" By {basis_text(FAULTS)}.{warning}"
    flushed_ns = sum(row["time_ns"] for row in rows if row["direction"] == "sync")
    top = subjects[0]
    if len(subjects) > 1:
        top = _summed(subjects)
        written = {n for row in rows if row["direction"] == "write" for n in row["file_ids"]}
        of_others = {n: nbytes for n, nbytes in (sizes or {}).items() if n not in written}
        sentence = _of_set(subjects, paths, wall_ns, of_others)
    elif direction == "sync":
        return _of_flushes(top, paths, total_ns, wall_ns, little) + warning
    else:
        same_way_ns = sum(row["time_ns"] for row in rows if row["direction"] == direction)
        sentence = _of_one(top, paths, same_way_ns, below.served)
        sentence += f", {of_run(total_ns / max(wall_ns, 1))}"
    if little:
        return f"{sentence}; storage is not what it waits for.{warning}"
    sentence = f"{sentence}; {_advice(top, subjects, below, flushed_ns, wall_ns)}"
    if direction != "sync" and flushed_ns >= _MUCH * total_ns:
        sentence += f"; flushes take {of_run(flushed_ns / max(wall_ns, 1))}"
    if others_ns >= total_ns:
        sentence += f"; open and other calls on names take {of_run(others_ns / max(wall_ns, 1))}"
    return f"{sentence}.{warning}"


def _of_one(
    top: Mapping[str, Any], paths: Mapping[int, str | None], same_way_ns: int, served: Served | None
) -> str:
    verdict, direction = top["together"], top["direction"]
    share = 100 * top["time_ns"] / same_way_ns
    what = f"{size(verdict['median_size_bytes'])} {verdict['class']} {direction}s"
    if verdict["class"] == "insufficient":
        what = f"{top['calls']:,} {direction}s of {size(verdict['median_size_bytes'])}"
    if verdict["k"]:
        what = what.replace("interleaved", f"interleaved ({verdict['k']} streams)")
    sentence = (
        f"{share:.0f} % of {direction} time: {what} on {named(top, paths.get(top['file_id']))}"
    )
    if served is not None and served.waiting:
        sentence += f" ({percent(served.waiting / served.total)} of them waited for the device)"
    return f"{sentence}, {duration(top['time_ns'] / max(top['calls'], 1))} each"


_NOUNS = {"read": "Reads", "write": "Writes", "sync": "Flushes"}


def _of_set(
    rows: Sequence[Mapping[str, Any]],
    paths: Mapping[int, str | None],
    wall_ns: int,
    sizes: Mapping[int, int],
) -> str:
    """Sentence on files of equal use, none of which has most of the time.

    `sizes` [bytes] are those at the first use, of files that were not written.
    """
    files = file_set(rows, paths)
    word = _NOUNS.get(files.direction, files.direction)
    if rows[0].get("basis") == FAULTS:
        word = f"Page faults ({files.direction}s)"
    sentence = (
        f"{word} of {files.name} take {of_run(files.time_ns / max(wall_ns, 1))}: {files.each()}"
    )
    if files.kind not in ("", "insufficient"):
        sentence += f", {files.kind}"
    listed_sizes = [sizes[number] for row in rows for number in row["file_ids"] if number in sizes]
    grown = any(  # since the first use, or of procfs, which has no sizes
        row.get("done_bytes", 0) and not any(sizes.get(number) for number in row["file_ids"])
        for row in rows
    )
    compared = len(listed_sizes) == files.files and any(listed_sizes) and not grown
    if files.direction == "read" and compared:
        times = files.nbytes / sum(listed_sizes)
        if 1 / _ONCE <= times <= _ONCE:
            sentence += ", read once"
        elif times >= _AGAIN:
            sentence += f", read {times:.1f} times"
    return sentence


def file_set(rows: Sequence[Mapping[str, Any]], paths: Mapping[int, str | None]) -> FileSet:
    """Rows of one direction and class as a set of files."""
    first = rows[0]
    kind = "" if first["direction"] == "sync" else str(first["together"]["class"])
    files = FileSet(first["direction"], kind)
    for row in rows:
        path = paths.get(row["file_id"])
        files.add(path, row["calls"], row.get("done_bytes", 0), row["time_ns"], row.get("files", 1))
    return files


def _summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row with the calls, bytes and time of several."""
    first = max(rows, key=lambda row: row["calls"])
    sums = {
        name: sum(row.get(name, 0) for row in rows)
        for name in ("calls", "time_ns", "done_bytes", "files")
    }
    return {**first, **sums}


def _advice(
    top: Mapping[str, Any],
    subjects: Sequence[Mapping[str, Any]],
    below: Below,
    flushed_ns: int,
    wall_ns: int,
) -> str:
    direction = top["direction"]
    many = len(subjects) > 1
    small = many and top.get("done_bytes", 0) < SMALL_FILE_BYTES * top["files"]
    if direction == "sync":
        return "write the files first and flush them together (syncfs), or pack them into one"
    if top.get("basis") == FAULTS:
        return _of_mapped(top, below, flushed_ns)
    memory = _of_memory(top, below.served, flushed_ns)
    verdict = top["together"]
    if small and verdict["class"] == "insufficient":
        pack = "pack the files (one archive or larger records)"
        if memory is not None:
            return f"{pack}: {memory.partition(':')[0]}, and it is their number that costs"
        if direction == "read":
            waiting = top["time_ns"] / max(wall_ns, 1)
            pack += f", or read ahead with more processes: {waiting:.1f} reads wait at a time"
        return pack
    advice = memory or _ADVICE.get((direction, verdict["class"]))
    if advice is None and verdict["median_size_bytes"] < 65536:
        return f"ask for more per call than {size(verdict['median_size_bytes'])}"
    return advice or "the order is good: only more bandwidth makes it faster"


def _of_mapped(top: Mapping[str, Any], below: Below, flushed_ns: int) -> str:
    """Advice on page faults, by the layer that served them and by the order of requests at the device, which
    the order of the faults does not show.
    """
    nbytes = top["done_bytes"] / max(top["calls"], 1)
    populate = "map the pages at once (MAP_POPULATE, madvise, larger pages)"
    populate += _not_the_disk(top, flushed_ns)
    served = below.served
    if served is None and top["time_ns"] / max(top["calls"], 1) < quick_ns(nbytes):
        return f"judging by their time, the page cache has the pages: {populate}"
    if served is not None and served.waiting_ns < _MUCH * served.total_ns:
        return f"the page cache has the pages: {populate}"
    if not below.requests:
        order = _ADVICE.get((top["direction"], top["together"]["class"]))
        return order or "read the file in order before it is mapped (madvise(MADV_WILLNEED))"
    each = size(below.nbytes / below.requests)
    sentence = (
        f"the device gets {below.requests:,} requests of {each} for them in {below.order} order"
    )
    if below.nbytes >= _AGAIN * max(top["done_bytes"], 1):
        times = below.nbytes / max(top["done_bytes"], 1)
        return f"{sentence}, {times:.1f} times what is used: madvise(MADV_RANDOM) reads only that"
    if below.order in _ORDERLY:
        return f"{sentence}: only more bandwidth makes it faster"
    return (
        f"{sentence}: read the file in order before it is used (madvise(MADV_WILLNEED)), or rewrite it in "
        "the order of use"
    )


def sizes_of(files: pa.Table) -> dict[int, int]:
    """Size of each file of a table `files` with sizes [bytes]."""
    with_size = files.filter(pc.is_valid(files["size_bytes"]))
    numbers, sizes = (with_size[name].to_pylist() for name in ("file_id", "size_bytes"))
    return dict(zip(numbers, sizes, strict=True))


def already_mapped(receipt: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of files that were mapped when tracing started, from a receipt."""
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
        "when tracing began: accesses to them cause no fault."
    )


def _not_the_disk(top: Mapping[str, Any], flushed_ns: int) -> str:
    """Addition if memory serves the calls: empty if flushes take much time in comparison."""
    return ", not a faster disk" if flushed_ns < _MUCH * top["time_ns"] else ""


def _of_memory(top: Mapping[str, Any], served: Served | None, flushed_ns: int) -> str | None:
    """Advice for calls of a row that do not wait for a device; None if they do."""
    nbytes = top["done_bytes"] / max(top["calls"], 1)
    small = nbytes < 65536
    fewer = "fewer, larger calls would help" if small else "reading or writing less would help"
    fewer += _not_the_disk(top, flushed_ns)
    if served is None:
        quick = top["time_ns"] / max(top["calls"], 1) < quick_ns(nbytes)
        if top.get("basis") == "device" or not quick:
            return None
        return f"judging by their time, the page cache serves them: {fewer}"
    if served.waiting_ns >= _MUCH * served.total_ns:
        return None
    most = max(("cached", "ahead", "filled", "untold"), key=lambda name: served.time_ns[name])
    if most == "untold":
        return None
    why = {
        "cached": f"the page cache serves them: {fewer}",
        "ahead": f"the kernel has read ahead what they ask for: {fewer}",
        "filled": "no device served most of it, as in holes of a sparse file",
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
    share = of_run(total_ns / max(wall_ns, 1))
    part = "Most time" if 2 * row["time_ns"] >= total_ns else "The largest part of the time"
    sentence = f"{part} goes to {row['calls']:,} flushes of {where}, {duration(mean_ns)} each"
    if little:
        return f"{sentence}, {share}; storage is not what it waits for."
    what = "requests" if row.get("basis") == "device" else "calls on files"
    sentence += f"; {what} take {share}"
    return f"{sentence}; commit in groups, or put this file on a device whose cache outlives a power cut."
